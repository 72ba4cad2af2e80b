"""Threads for what would hold up the event loop: parsing long bodies, tokenizing long texts.

They are the API's own. In asyncio's pool, which joins, plans and the reading of weights share, a
few users with long prompts would make all of those wait.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_worker"]

Result = TypeVar("Result")

WORKERS_MAX = 2
"""Python's parser keeps the interpreter to itself, 20 ms for the worst body that is read, so more
would only take turns; tokenizers release it."""

_WORKERS = ThreadPoolExecutor(WORKERS_MAX, thread_name_prefix="api-worker")
"""Threads start with the first work."""


async def in_worker(work: Callable[[], Result]) -> Result:
    """Result of `work`, done in a thread after what was asked for before."""
    return await asyncio.get_running_loop().run_in_executor(_WORKERS, work)
