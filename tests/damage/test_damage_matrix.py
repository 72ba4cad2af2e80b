"""Nine files that coordinator and agent keep, and seven ways in which each may be damaged.

A restart serves again with what is still known, or says one sentence that names the file and what
to do. What may be lost is begun anew; members and keys never are.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.damage.kept_files import BY_NAME, FILES, NOTHING
from tests.damage.outcomes import Outcome, make_all, outcome

KEPT = {
    "registry.db": "anna",
    "live.sqlite": "a ring",
    "ledger.sqlite": "n1",
    "keys.sqlite": "ben",
    "tls.pem": "pinned",
    "identity.json": "node",
    "weights": "all of them",
    "limits.toml": "3 and 2",
}

BLOCK_BYTES, FLIPPED_BYTES = 4096, 8

SOMEBODY_ELSE = 65_534
"""Number of a user."""

WITHOUT_RIGHTS = ("setpriv", "--inh-caps=-all", "--bounding-set=-all")
IN_OWN_MOUNTS = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--map-root-user",)))


# -- damages --------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def flipped(path: Path) -> None:
    """Some bytes at the beginning of each block but the first, as a disk may return them."""
    data = bytearray(path.read_bytes())
    step = min(BLOCK_BYTES, len(data) // 2)
    for start in range(step, len(data), step):
        for at in range(start, min(len(data), start + FLIPPED_BYTES)):
            data[at] ^= 0x95
    path.write_bytes(data)


def read_only(path: Path, folder: Path) -> None:
    for one in (folder, *folder.rglob("*")):
        if not one.is_symlink():
            one.chmod(0o500 if one.is_dir() else 0o400)


def of_another_owner(path: Path, folder: Path) -> None:
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, SOMEBODY_ELSE, SOMEBODY_ELSE)
    else:  # Who is not root gives nothing away; he can lock himself out, which opens as little.
        path.chmod(0)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    root = tmp_path_factory.mktemp("good") / "kept"
    root.mkdir()
    make_all(root)
    return root


@pytest.fixture
def kept(good, tmp_path):
    """A copy, with what lies on other PCs beside it."""
    for name in ("kept", "kept-others"):
        shutil.copytree(good.with_name(name), tmp_path / name, symlinks=True)
    return tmp_path / "kept"


@pytest.fixture(scope="module")
def of_processes(good, tmp_path_factory):
    """Outcomes of all files by how they are damaged, each in a process that may not do all."""
    known: dict[str, dict[str, Outcome]] = {}

    def ask(damage: str) -> dict[str, Outcome]:
        if damage not in known:
            root = tmp_path_factory.mktemp("asked") / "kept"
            known[damage] = _full_disk(root) if damage == "full" else _asked(good, root, damage)
        return known[damage]

    return ask


def _asked(good: Path, root: Path, damage: str) -> dict[str, Outcome]:
    for name in ("kept", "kept-others"):
        shutil.copytree(good.with_name(name), root.with_name(name), symlinks=True)
    spoil = {"read-only": read_only, "another owner": of_another_owner}[damage]
    for file in FILES:
        spoil(file.path(root / file.name), root / file.name)
    return _in_child(WITHOUT_RIGHTS if os.geteuid() == 0 else (), root)


def _full_disk(root: Path) -> dict[str, Outcome]:
    root.mkdir()
    can = [*IN_OWN_MOUNTS, "mount", "-t", "tmpfs", "tmpfs", str(root)]
    tried = subprocess.run(can, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no disk of its own can be mounted here: {tried.stderr.strip()}")
    return _in_child(IN_OWN_MOUNTS, root, "full")


def _in_child(before: tuple[str, ...], *arguments: str | Path) -> dict[str, Outcome]:
    command = [*before, sys.executable, "-m", "tests.damage.outcomes", *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return {name: Outcome(**one) for name, one in json.loads(ended.stdout).items()}


# -- what comes of them ---------------------------------------------------------------------------


def test_each_is_kept_over_a_restart(kept):
    found = {file.name: outcome(file, kept / file.name) for file in FILES}
    assert found == {name: Outcome(known=known) for name, known in KEPT.items()}


DAMAGED = r" is damaged \(.+\): put .+\.copy in its place, or a copy of yours, and remove .+-wal"
NEWER = " was written by a newer MoLink: update this one"
CANNOT_OPEN = (
    r" cannot be opened \(.+\): check its owner, and whether its disk is full or read-only"
)
NO_CERTIFICATE = " is damaged: put back a copy, or delete it; the PCs then ask for the new one"
NO_TEXT = " is no text: put back a copy, or move it away"
NO_KEY = " is no key file any more: put back a copy, or delete it and join as a new node"
CANNOT_READ = r" cannot be read \(Permission denied\): check its owner"
SET_AGAIN = r" is not .+: correct it, or remove it and set your limits again"
UNKNOWN_LIMIT = ": there is no limit called 'teleports': this version knows vram_gb, .+"
CANNOT_BE_KEPT = r" cannot be kept in .+ \(Permission denied\): see to its owner and disk"

ANEW = (NOTHING,)
"""Served, and what was kept is forgotten."""

AGAIN = (None,)
"""Served with what was kept."""

NEVER_ANEW = (DAMAGED, DAMAGED, DAMAGED, NEWER, CANNOT_OPEN, CANNOT_OPEN, CANNOT_OPEN)
MAY_BE_LOST = (ANEW, ANEW, ANEW, NEWER, CANNOT_OPEN, CANNOT_OPEN, CANNOT_OPEN)

DAMAGES = ("cut", "emptied", "flipped", "newer", "read-only", "full", "another owner")
COMES_OF_IT = {
    "registry.db": NEVER_ANEW,
    "live.sqlite": MAY_BE_LOST,
    "ledger.sqlite": MAY_BE_LOST,
    "keys.sqlite": NEVER_ANEW,
    "tls.pem": (
        *(NO_CERTIFICATE, NO_CERTIFICATE, NO_TEXT, NO_CERTIFICATE),
        *(AGAIN, AGAIN, CANNOT_READ),
    ),
    "identity.json": (NO_KEY, NO_KEY, NO_TEXT, NO_KEY, AGAIN, AGAIN, CANNOT_READ),
    "weights": (AGAIN, AGAIN, AGAIN, AGAIN, CANNOT_BE_KEPT, AGAIN, AGAIN),
    "limits.toml": (SET_AGAIN, SET_AGAIN, SET_AGAIN, UNKNOWN_LIMIT, AGAIN, AGAIN, CANNOT_READ),
}
"""By file and damage: `AGAIN`, `ANEW`, or the sentence of the refusal behind the file's name."""

CASES = [
    (name, damage, comes)
    for name, all_of_them in COMES_OF_IT.items()
    for damage, comes in zip(DAMAGES, all_of_them, strict=True)
]


@pytest.mark.parametrize(
    ("name", "damage", "comes"), CASES, ids=[f"{name}-{damage}" for name, damage, _ in CASES]
)
def test_a_restart_serves_or_says_what_to_do(name, damage, comes, kept, of_processes):
    found = _found(name, damage, kept, of_processes)
    assert not found.trace
    if comes in (AGAIN, ANEW):
        assert found == Outcome(known=KEPT[name] if comes is AGAIN else NOTHING)
    else:
        assert re.fullmatch(rf"\S*{re.escape(name)}{comes}.*", found.sentence)
        assert "Errno" not in found.sentence and not found.known
    put_aside = [one for one in (kept / name).iterdir() if ".damaged-" in one.name]
    assert len(put_aside) == (name in MAY_BE_PUT_ASIDE and damage in ("cut", "flipped"))


MAY_BE_PUT_ASIDE = ("live.sqlite", "ledger.sqlite")


def _found(name, damage, kept, of_processes) -> Outcome:
    file, folder = BY_NAME[name], kept / name
    if damage in ("read-only", "another owner", "full"):
        return of_processes(damage)[name]
    if damage == "newer":
        file.newer(folder)
    else:
        {"cut": cut, "emptied": emptied, "flipped": flipped}[damage](file.path(folder))
    return outcome(file, folder)


SQLITE_FILES = ("registry.db", "live.sqlite", "ledger.sqlite", "keys.sqlite")
PLACES = (*range(0, 100, 7), *range(2600, 4096, 61), *range(4096, 12_288, 997))
"""In the head of the file, in the names of tables and columns, and in the other blocks."""


@pytest.mark.parametrize("name", SQLITE_FILES)
def test_no_single_byte_of_a_database_ends_in_a_traceback(name, kept):
    file, folder = BY_NAME[name], kept / name
    whole = file.path(folder).read_bytes()
    for at in PLACES:
        if at < len(whole):
            for one in folder.iterdir():
                one.unlink()
            file.path(folder).write_bytes(whole[:at] + bytes([whole[at] ^ 0x95]) + whole[at + 1 :])
            found = outcome(file, folder)
            assert (
                found.known == KEPT[name]
                or name in found.sentence
                or (name in MAY_BE_PUT_ASIDE and found.known == NOTHING)
            ), (at, found)
