"""A data directory belongs to one process at a time: two would overwrite what the other keeps."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molink.errors import UserError

__all__ = ["only_one"]


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
        raise UserError(f"{lock.parent} cannot be written: {error.strerror}.") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"{what} runs with {lock.parent} already: give each its own --data-dir."
            ) from None
        yield
