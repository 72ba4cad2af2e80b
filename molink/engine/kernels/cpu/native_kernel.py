"""Compiles our C kernels on the user's machine, once, if it can.

They need a CPU that has the instructions and a C compiler, and are an improvement, not a
requirement: where either is missing, `native_library` returns None and torch's own kernels are
used. The result is kept in the user's cache directory under a name made of the sources, so that
changed sources are compiled anew; stages that start together each compile and the last rename wins.

A torch C++ extension was rejected: it needs ninja, torch's headers and half a minute, for functions
that take pointers.
"""

import ctypes
import hashlib
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from molink.engine.device.devices import cpu_capabilities

SOURCES = Path(__file__).parent / "native"

FOLDER_VARIABLE = "MOLINK_KERNELS_DIR"
"""Variable with a folder that the agent's service may write to: its user's cache is read-only."""

FLAGS = ("-O3", "-shared", "-fPIC")


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Instructions that a folder of kernels is compiled for."""

    folder: str
    flags: tuple[str, ...]
    """Names that the compiler has for them."""
    capabilities: tuple[str, ...]
    """Names that torch has for those which not every CPU with the others has."""

    @property
    def sources(self) -> list[Path]:
        """Files of the set, and those that all sets share."""
        return sorted([*SOURCES.glob("*.h"), *(SOURCES / self.folder).glob("*.[ch]")])


AVX512 = InstructionSet(
    "avx512",
    ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512bf16", "-mfma"),
    ("avx512_bf16",),
)
AVX2 = InstructionSet("avx2", ("-mavx2", "-mfma"), ("avx2", "fma3"))

COMPILE_S_MAX = 180
"""A compiler that takes longer is stuck; it needs about five seconds of a core."""


@cache
def native_library(instructions: InstructionSet = AVX512) -> ctypes.CDLL | None:
    """The compiled kernels of one instruction set, or None where they cannot be had."""
    capabilities = cpu_capabilities()
    if not all(capabilities.get(name) for name in instructions.capabilities):
        return None
    for folder in _cache_directories():
        path = folder / f"kernels-{_source_key(instructions)}.so"
        try:
            if not path.is_file():
                _compile(instructions, path)
            return ctypes.CDLL(str(path))
        except OSError:
            continue  # It cannot be written, or nothing in it may be run.
        except (RuntimeError, subprocess.SubprocessError):
            return None
    return None


def _cache_directories() -> Iterator[Path]:
    """Folders where compiled kernels may lie: the user's cache, and for users without one, as
    containers have them, a folder of their own among the temporary ones."""
    with suppress(RuntimeError):  # There is no home.
        own = os.environ.get(FOLDER_VARIABLE)
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        yield Path(own) if own else Path(root) / "molink"
    folder = Path(tempfile.gettempdir()) / f"molink-kernels-{os.getuid()}"
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700:
            yield folder  # Nobody else could have put code there.


def _source_key(instructions: InstructionSet) -> str:
    parts = [source.read_bytes() for source in instructions.sources]
    parts.append(" ".join((*FLAGS, *instructions.flags)).encode())
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _compile(instructions: InstructionSet, path: Path) -> None:
    """Compile to a temporary name and rename, with threads if the compiler has OpenMP."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("no C compiler")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    units = [str(source) for source in instructions.sources if source.suffix == ".c"]
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        output = Path(directory) / path.name
        for extra in (["-fopenmp"], []):
            flags = [*FLAGS, *instructions.flags, *extra]
            command = [compiler, *flags, "-o", str(output), *units, "-lm"]
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_S_MAX, check=False)
            if done.returncode == 0:
                output.replace(path)
                return
    raise RuntimeError("the C compiler refused the kernels")
