"""A progress bar for each stage while weights load, on standard error."""

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

__all__ = ["LoadingBar"]


class LoadingBar:
    """Shown on a terminal only; a log file gets nothing from it."""

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
