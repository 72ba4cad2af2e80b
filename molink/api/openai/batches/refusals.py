"""How requests for files and batches are refused, by the caller's fault or by the disk's."""

import asyncio
import sqlite3
from collections.abc import Callable
from typing import TypeVar

from molink.api.errors import ApiError

FULL = "The server's disk is full: delete files, or send yours again later."

Result = TypeVar("Result")


def refused(sentence: str, status: int, param: str | None) -> ApiError:
    """The error of a sentence, a status and the parameter at fault."""
    return ApiError(sentence, status=status, param=param)


async def on_disk(work: Callable[..., Result], *values: object) -> Result:
    """Result of what may wait for the disk. Raises ApiError (507) when that fails."""
    try:
        return await asyncio.to_thread(work, *values)
    except (OSError, sqlite3.Error):
        raise ApiError(FULL, status=507, code="insufficient_storage") from None
