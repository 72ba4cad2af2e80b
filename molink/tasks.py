"""Groups of asyncio tasks: run together, ended together, and the first failure raised as it is.

`asyncio.TaskGroup` raises an ExceptionGroup; our callers catch errors by their kind.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

__all__ = [
    "Signal",
    "background_tasks",
    "cancel",
    "gathered",
    "spawn",
    "task_group",
    "unless",
    "until_stopped",
]

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """TaskGroup whose first failure ends the other tasks and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None


class _BlockEndedError(Exception):
    """Raised at the end of a block whose background tasks are to end with it."""


@asynccontextmanager
async def background_tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """TaskGroup whose tasks are cancelled when the block ends; a failure of one ends the block and
    is raised as it is."""
    try:
        async with task_group() as group:
            yield group
            raise _BlockEndedError
    except _BlockEndedError:
        pass


async def gathered(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order; the first failure ends the others and is raised as it is."""
    async with task_group() as group:
        tasks = [group.create_task(coroutine) for coroutine in coroutines]
    return [task.result() for task in tasks]


async def cancel(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks and wait until they have ended; what they raise is dropped."""
    running = [task for task in tasks if task is not None]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def spawn(coroutine: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
    """Start a task that its owner ends with `cancel`; a failure before that is logged."""
    task = asyncio.create_task(coroutine)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a background task has failed", exc_info=task.exception())


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, Result]) -> Result | None:
    """Result of `work`; None when the event comes first, and `work` has been cancelled then."""
    working = asyncio.create_task(work)
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait({working, waiting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        await cancel(working, waiting)


class Signal:
    """Wakes every task that waits for the next change of something.

    Nothing is lost where a task looks at that something, and waits without another `await` in
    between.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def send(self) -> None:
        """Wake the tasks that wait now."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self) -> None:
        """Wait until something changes."""
        await self._next.wait()


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or a stop signal cancels it; its errors are raised as they are.

    Ctrl-C and SIGTERM so end a command in order: what was started is stopped first.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for stop in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stop, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
