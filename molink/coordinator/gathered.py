"""Several coroutines at once, of which the first failure counts."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

__all__ = ["gathered"]

Result = TypeVar("Result")


async def gathered(coroutines: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order; the first failure ends the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
