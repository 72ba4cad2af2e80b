"""Disk work off the event loop, and what a disk may answer."""

import asyncio
import errno
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

from molink.errors import WeightsError

__all__ = ["DiskFullError", "in_thread", "on_disk"]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class DiskFullError(Exception):
    """Raised when the disk takes no more; what is on it stays."""


async def in_thread(
    function: Callable[Arguments, Result], *arguments: Arguments.args, **options: Arguments.kwargs
) -> Result:
    """Run it in a thread; a cancelled caller leaves only when the thread is done, so nobody finds a
    file half written by a ghost."""
    task = asyncio.ensure_future(asyncio.to_thread(function, *arguments, **options))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def on_disk(action: Callable[[], Result]) -> Result:
    """The result of `action`. Raises DiskFullError or WeightsError for an OSError."""
    try:
        return action()
    except OSError as error:
        if error.errno in DISK_FULL:
            raise DiskFullError from error
        where = Path(str(error.filename)).name if error.filename else "a file"
        raise WeightsError(
            f"{where} cannot be written ({error.strerror}): see to the disk and its rights"
        ) from error
