"""Clients of pinned versions, installed once into a cache outside the checkout.

Each client has a folder of its own, so that none sees another's packages: `npm install` for those
of the npm index, a virtual environment for those of the Python index. A folder counts as installed
when the installation has come to its end.
"""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CACHE_VARIABLE", "Installed", "NotInstalledError", "cache_folder", "install"]

CACHE_VARIABLE = "MOLINK_CLIENTS_CACHE"

INSTALL_S_MAX = 900
"""The largest of them take some minutes on a slow line."""

NODE = "node@22.23.3"
"""Newer than what distributions have; some of the agents want it."""

READY = ".installed"


Commands = Callable[[Path, tuple[str, ...]], list[list[str]]]
"""Those that install packages into a folder, in order."""


class NotInstalledError(Exception):
    """Raised when a client cannot be had; the message says why."""


@dataclass(frozen=True, slots=True)
class Installed:
    """Client in the cache."""

    folder: Path
    path: tuple[Path, ...]
    """Folders of its programs."""

    def program(self, name: str) -> str:
        """A program of its own."""
        return next((str(one / name) for one in self.path if (one / name).exists()), name)


def cache_folder() -> Path:
    """Where clients are: what the environment says, or the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    return Path(given) if given else Path.home() / ".cache" / "molink-clients"


def install(name: str, index: str, packages: tuple[str, ...]) -> Installed:
    """A client of `index`, "npm" or "python". Raises NotInstalledError."""
    if index == "npm":
        node = _installed_node()
        folder = _once(name, packages, _npm)
        return Installed(folder, (folder / "node_modules" / ".bin", *node.path))
    folder = _once(name, packages, _python)
    return Installed(folder, (folder / "bin",))


def _installed_node() -> Installed:
    folder = _once("node", (NODE,), _npm)
    return Installed(folder, (folder / "node_modules" / ".bin",))


def _once(name: str, packages: tuple[str, ...], commands: Commands) -> Path:
    folder = cache_folder() / f"{name}-{_version(packages[0])}"
    ready = folder / READY
    wanted = "\n".join(packages) + "\n"
    if not ready.is_file() or ready.read_text(encoding="utf-8") != wanted:
        folder.mkdir(parents=True, exist_ok=True)
        for command in commands(folder, packages):
            _run(command, folder)
        ready.write_text(wanted, encoding="utf-8")
    return folder


def _version(package: str) -> str:
    """`1.2` of `@maker/name@1.2`, and of `name==1.2`."""
    return package.replace("==", "@").rpartition("@")[2]


def _npm(folder: Path, packages: tuple[str, ...]) -> list[list[str]]:
    options = ["--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder)]
    return [["npm", "install", *options, *packages]]


def _python(folder: Path, packages: tuple[str, ...]) -> list[list[str]]:
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    return [
        [sys.executable, "-m", "venv", "--without-pip", str(folder)],
        [*pip, "--quiet", "--no-compile", "--disable-pip-version-check", *packages],
    ]


def _run(command: list[str], folder: Path) -> None:
    try:
        status, said = _status(command, folder)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(f"could not be installed: {error}") from error
    if status:
        lines = said.strip().splitlines()
        raise NotInstalledError(f"could not be installed: {lines[-1] if lines else command[0]}")


def _status(command: list[str], folder: Path) -> tuple[int, str]:
    """Status of a command and what it said; when it takes too long, or this program is ended, all
    that it has started ends with it: pip works in a child, which would go on."""
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        process = subprocess.Popen(
            command, cwd=folder, stdout=said, stderr=said, start_new_session=True
        )
        try:
            status = process.wait(INSTALL_S_MAX)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        said.seek(0)
        return status, said.read()
