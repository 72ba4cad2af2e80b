"""Progress of long work: how much is done, how fast, and how long it still takes.

On a terminal a bar for each part, on standard error; where that is no terminal a line now and then,
so that a log says that it goes on and is not full of it. Work that ends within the first half
minute writes nothing there. Bars and lines say the same words, made by `progress_text`.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from molink.terminal.amounts import Unit, progress_text

UNSHOWN = (OSError, ValueError)
"""What printing raises where nobody can read it: a terminal that was closed, a full disk, a stream
that is closed, a character that it cannot encode."""

LINE_EVERY_S = 30.0
"""Between two lines in a log."""

DRAWN_PER_S = 2.0
"""On a PC that measures itself meanwhile, drawing is part of the load."""


@dataclass(slots=True)
class _Part:
    """One thing that is worked on."""

    name: str
    total: float | None
    done: float = 0.0


class WorkProgress:
    """Display of how far long work is; a context manager. No method raises because nothing can be
    printed any more."""

    def __init__(
        self,
        parts: str | Sequence[str],
        total: float | None = None,
        unit: Unit = "count",
        *,
        quiet: bool = False,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`parts`: what is worked on, one thing or several, each with this `total`; None: not known
        yet. Bytes are bytes, a share counts up to 1."""
        names = [parts] if isinstance(parts, str) else parts
        self._console = console or Console(stderr=True)
        self._unit, self._quiet, self._clock = unit, quiet, clock
        self._parts = [_Part(name, total) for name in names]
        self._began_at_s = clock()
        self._line_at_s = self._began_at_s + LINE_EVERY_S
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[text]}", markup=False),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
            transient=True,
            refresh_per_second=DRAWN_PER_S,
        )
        self._tasks = [self._bars.add_task(name, total=total, text="") for name in names]

    def expect(self, total: float, part: int = 0) -> None:
        """Tell how much there is."""
        self._parts[part].total = total
        self._show(part)

    def advance(self, amount: float = 1.0, part: int = 0) -> None:
        """So much more is done."""
        self.reach(self._parts[part].done + amount, part)

    def reach(self, done: float, part: int = 0) -> None:
        """So much is done in all."""
        self._parts[part].done = done
        self._show(part)

    def rename(self, name: str, part: int = 0) -> None:
        """Something else is worked on from now on."""
        if name == self._parts[part].name:
            return
        self._parts[part].name = name
        if not self._bars.disable:
            with suppress(*UNSHOWN):
                self._bars.update(self._tasks[part], description=name)

    def _show(self, part: int) -> None:
        state, now_s = self._parts[part], self._clock()
        if not self._bars.disable:
            text = self._text(state, now_s)
            with suppress(*UNSHOWN):
                self._bars.update(
                    self._tasks[part], completed=state.done, total=state.total, text=text
                )
        elif not self._quiet and now_s >= self._line_at_s:
            self._line_at_s = now_s + LINE_EVERY_S
            self._print_line(now_s)

    def _print_line(self, now_s: float) -> None:
        texts = [f"{one.name}: {self._text(one, now_s)}" for one in self._parts]
        with suppress(*UNSHOWN):
            self._console.print("; ".join(texts), soft_wrap=True, markup=False, highlight=False)

    def _text(self, part: _Part, now_s: float) -> str:
        elapsed_s = now_s - self._began_at_s
        per_s = part.done / elapsed_s if elapsed_s > 0 else 0.0
        return progress_text(part.done, part.total, per_s, self._unit)

    def __enter__(self) -> "WorkProgress":
        with suppress(*UNSHOWN):
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(*UNSHOWN):
            self._bars.stop()
