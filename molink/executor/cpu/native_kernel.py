"""Compiles our C kernels on the user's machine, once, if it can.

They need a CPU with AVX512-BF16 and a C compiler, and are an improvement, not a requirement: where
either is missing, `native_library` returns None and torch's own kernels are used. CPUs with AMX are
left to oneDNN, whose prefill uses it. The result is kept in the user's cache directory under a name
made of the sources, so that changed sources are compiled anew; stages that start together each
compile and the last rename wins.

A torch C++ extension was rejected: it needs ninja, torch's headers and half a minute, for functions
that take pointers.
"""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from molink.executor.devices import cpu_capabilities

__all__ = ["FOLDER_VARIABLE", "native_library"]

SOURCES = tuple(sorted((Path(__file__).parent / "native").glob("*.[ch]")))

FOLDER_VARIABLE = "MOLINK_KERNELS_DIR"
"""Where the agent's service lets us write: to it the user's cache directory is read-only."""

FLAGS = (
    "-O3",
    "-shared",
    "-fPIC",
    "-mavx512f",
    "-mavx512bw",
    "-mavx512vl",
    "-mavx512bf16",
    "-mfma",
)

COMPILE_S_MAX = 60
"""A compiler that takes longer is stuck; it needs about one second."""


@cache
def native_library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they cannot be had."""
    if not _cpu_suits():
        return None
    path = _cache_directory() / f"kernels-{_source_key()}.so"
    try:
        if not path.is_file():
            _compile(path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return None


def _cpu_suits() -> bool:
    capabilities = cpu_capabilities()
    return bool(capabilities.get("avx512_bf16")) and not capabilities.get("amx_bf16")


def _cache_directory() -> Path:
    own = os.environ.get(FOLDER_VARIABLE)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(root) / "molink"


def _source_key() -> str:
    parts = [source.read_bytes() for source in SOURCES] + [" ".join(FLAGS).encode()]
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _compile(path: Path) -> None:
    """Compile to a temporary name and rename, with threads if the compiler has OpenMP."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise OSError("no C compiler")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    units = [str(source) for source in SOURCES if source.suffix == ".c"]
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        output = Path(directory) / path.name
        for extra in (["-fopenmp"], []):
            command = [compiler, *FLAGS, *extra, "-o", str(output), *units, "-lm"]
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_S_MAX, check=False)
            if done.returncode == 0:
                output.replace(path)
                return
    raise OSError("the C compiler refused the kernels")
