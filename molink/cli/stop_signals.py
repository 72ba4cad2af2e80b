"""Ctrl-C and SIGTERM end a server in order: what was started is stopped, then the command ends."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

__all__ = ["until_stopped"]


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or a stop signal cancels it; its errors are raised as they are."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for stop in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stop, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
