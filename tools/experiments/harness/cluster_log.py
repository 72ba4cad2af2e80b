"""What GET /cluster says, read again and again."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from molink.bench.served_ring import ServedRing

__all__ = ["ClusterLog", "link_of", "logging_cluster"]

PERIOD_S = 0.2


def link_of(report: dict[str, Any], source: str, target: str) -> dict[str, Any]:
    """The link between two nodes."""
    found: dict[str, Any] = next(
        link for link in report["links"] if (link["from"], link["to"]) == (source, target)
    )
    return found


@dataclass(slots=True)
class ClusterLog:
    """Reports and when they came."""

    reports: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    def series(self, source: str, target: str, key: str) -> list[tuple[float, float]]:
        """One number of one link over time."""
        return [(at, link_of(report, source, target)[key]) for at, report in self.reports]


@asynccontextmanager
async def logging_cluster(ring: ServedRing) -> AsyncIterator[ClusterLog]:
    """Five times a second, until the block is left."""
    log = ClusterLog()

    async def poll() -> None:
        while True:
            log.reports.append((time.perf_counter(), await ring.cluster()))
            await asyncio.sleep(PERIOD_S)

    task = asyncio.create_task(poll())
    try:
        yield log
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
