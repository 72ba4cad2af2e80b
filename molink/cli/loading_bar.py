"""A progress bar for each stage while weights load, on standard error."""

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from molink.tasks import background_tasks

if TYPE_CHECKING:
    from molink.coordinator.cluster import Cluster

__all__ = ["LoadingBar", "until_loaded"]

REFRESH_S = 0.1
"""As often as the bars are drawn."""


async def until_loaded(cluster: "Cluster", stage_count: int) -> None:
    """Show how far a cluster's first ring is, until it serves."""
    with LoadingBar(stage_count) as bar:
        async with background_tasks() as tasks:
            tasks.create_task(_follow(cluster, bar))
            await cluster.service.until_ready()


async def _follow(cluster: "Cluster", bar: "LoadingBar") -> None:
    while True:
        for ring in cluster.rings:
            for index, fraction in ring.fractions.items():
                bar.update(index, fraction)
        await asyncio.sleep(REFRESH_S)


class LoadingBar:
    """Bars on a terminal, one for each stage; a log file gets nothing from it."""

    def __init__(self, stage_count: int) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self._tasks: list[TaskID] = [
            self._progress.add_task(f"stage {index} weights", total=1.0)
            for index in range(stage_count)
        ]

    def update(self, stage: int, fraction: float) -> None:
        """A stage has read this part of its weights."""
        self._progress.update(self._tasks[stage], completed=fraction)

    def __enter__(self) -> "LoadingBar":
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._progress.stop()
