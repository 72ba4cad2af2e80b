"""Groups of asyncio tasks: run together, ended together, and the first failure raised as it is.

`asyncio.TaskGroup` raises an ExceptionGroup; our callers catch errors by their kind.
"""

import asyncio
import errno
import logging
import signal
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

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


OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
"""asyncio says so for each connection that it cannot accept, and tries again after a second."""


@dataclass(slots=True)
class LoopErrors:
    """Exception handler of an event loop: logs the 1st, 2nd, 4th, 8th ... connection that cannot be
    accepted, and everything else as asyncio does."""

    not_accepted: int = 0

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log one error."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in OUT_OF_RESOURCES:
            loop.default_exception_handler(context)
            return
        self.not_accepted += 1
        if self.not_accepted.bit_count() == 1:
            log.error(
                "connections cannot be accepted (%d times so far): %s; close some, or let this "
                "process have more (ulimit -n)",
                self.not_accepted,
                error.strerror,
            )


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or a stop signal cancels it; its errors are raised as they are.

    Ctrl-C, SIGTERM and a terminal that is closed (unless `nohup` has the command outlive it) so end
    it in order: what was started is stopped first.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(LoopErrors())
    outlives = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    for stop in (signal.SIGINT, signal.SIGTERM, *(() if outlives else (signal.SIGHUP,))):
        loop.add_signal_handler(stop, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
