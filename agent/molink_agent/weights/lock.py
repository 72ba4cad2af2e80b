"""One process at a time fetches into a directory.

The lock is the kernel's, on an open file: it goes with the process however that ends, so there is
never a stale one to remove by hand.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from molink.errors import WeightsError

__all__ = ["only_one"]

LOCK_FILE = ".lock"


@contextmanager
def only_one(directory: Path) -> Iterator[Path]:
    """Hold the directory, made if need be; its absolute path. Raises WeightsError when somebody
    else does."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise WeightsError(
            f"weights cannot be kept in {directory} ({error.strerror}): choose another --data-dir"
        ) from error
    try:
        _lock(descriptor, directory)
        yield directory.absolute()
    finally:
        os.close(descriptor)


def _lock(descriptor: int, directory: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip() or "unknown"
        raise WeightsError(
            f"another download (process {owner}) is writing into {directory}: wait for it, or give "
            "this agent a --data-dir of its own"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
