"""What somebody sees of a command that stays running: a line for what happened, one for what is.

Lines of what happened carry the time and go to standard error, so that they are in `docker logs`
and in the journal too, and scripts find only what they look for on standard output. What is now
stands below them on a terminal, is drawn only when it changes, and is gone at the end. A bar that
moves by itself was rejected: it draws ten times a second on a PC that somebody plays on.
"""

from datetime import datetime
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

__all__ = ["RunningLine"]


class RunningLine:
    """Used as a context; without a terminal `now` shows nothing."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._live: Live | None = None
        self._text = ""

    def event(self, sentence: str) -> None:
        """Show something that happened."""
        line = Text(f"{datetime.now():%H:%M:%S} ", style="dim").append(sentence, style="not dim")
        self._print(line)

    def advise(self, text: str) -> None:
        """What can be done now: lines without a time."""
        self._print(Text(text))

    def out(self, line: str) -> None:
        """What scripts wait for, on standard output."""
        if self._live is not None:
            self._live.stop()
        print(line, flush=True)
        if self._live is not None:
            self._live.start()

    def now(self, sentence: str) -> None:
        """Show the state as it is now."""
        if self._live is not None and sentence != self._text:
            self._text = sentence
            self._live.update(Text(sentence, style="cyan"), refresh=True)

    def _print(self, text: Text) -> None:
        """Between words on a terminal; in a log a sentence stays one line."""
        self._console.print(text, soft_wrap=not self._console.is_terminal)

    def __enter__(self) -> "RunningLine":
        if self._console.is_terminal:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
