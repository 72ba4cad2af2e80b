"""Data directory where a user's programs keep what must not be lost, for one process at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molink.errors import UserError


def data_dir(name: str, given: str | None = None) -> Path:
    """The folder that was `given`, else the one called `name` where this user's data lies.

    Raises UserError for a user without a home.
    """
    if given is not None:
        return Path(given)
    try:
        root = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    except RuntimeError:
        raise UserError("This user has no home folder: give --data-dir.") from None
    return Path(root) / name


def api_socket(directory: Path, port: int) -> Path:
    """Socket at which the server of this data directory that listens at `port` answers, too."""
    return directory / f"api-{port}.sock"


def state_dir() -> Path:
    """Folder in which a user's programs keep what they learned and may lose. Raises RuntimeError
    for a user without a home."""
    root = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(root) / "molink"


@contextmanager
def only_one(what: str, lock: Path) -> Iterator[None]:
    """Hold a lock file in a data directory, which is made; it ends with the process.

    Raises UserError when another process holds it, or when it cannot be written; `what` begins the
    sentence, as in "An agent".
    """
    try:
        lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = lock.open("w")
    except OSError as error:
        raise UserError(
            f"{lock.parent} cannot be written ({error.strerror}): check its owner and its disk; "
            "another --data-dir begins anew."
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{what} runs with {lock.parent} already: give each its own --data-dir."
            ) from None
        yield
