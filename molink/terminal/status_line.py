"""Status line of a command that stays running: events, and the present state.

Lines of events carry the time and go to standard error, so that they are in `docker logs` and in
the journal too, and scripts find only what they look for on standard output. The present state
stands below them on a terminal, is drawn only when it changes, and is gone at the end. A bar that
moves by itself was rejected: it draws ten times a second on a PC that its owner plays on. Weights
that load have bars (`progress`), since they change and only for a while.

What is shown may come from afar, so all of it is made printable; and the terminal may be gone, or
the disk under a log full, so that nothing is shown any more: the command goes on without.
"""

import logging
from contextlib import suppress
from datetime import datetime
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text

from molink.printable import printable_line
from molink.terminal.progress import UNSHOWN


class StatusLine:
    """Output of a command that stays running: a line for each event, and one for the present state.

    A context manager; without a terminal the present state is not shown. No method raises because
    nothing can be printed any more.
    """

    def __init__(
        self,
        console: Console | None = None,
        log: logging.Logger | None = None,
        *,
        quiet: bool = False,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._quiet = quiet
        """Whether the present state is not shown."""
        self._log = log
        """Where everything but results goes instead; None: to the console."""
        self._live: Live | None = None
        self._text = ""

    def event(self, sentence: str, **fields: object) -> None:
        """Print what has just happened, with the time; `fields` are for programs that read logs."""
        if self._log is not None:
            self._log.info("%s", sentence, extra={"fields": fields})
            return
        line = Text(f"{datetime.now():%H:%M:%S} ", style="dim")
        line.append(printable_line(sentence), style="not dim")
        self._print(line)

    def hint(self, text: str) -> None:
        """Print what can be done next, without a time."""
        if self._log is not None:
            self._log.info("%s", " ".join(text.split()))
            return
        self._print(Text(text))

    def result(self, line: str) -> None:
        """Print a line that scripts wait for, on standard output."""
        with suppress(*UNSHOWN):
            if self._live is not None:
                self._live.stop()
            print(printable_line(line), flush=True)
            if self._live is not None:
                self._live.start()

    def status(self, sentence: str) -> None:
        """Show the present state."""
        if self._live is not None and sentence != self._text:
            self._text = sentence
            with suppress(*UNSHOWN):
                text = Text(printable_line(sentence), style="cyan")
                self._live.update(text, refresh=True)

    def _print(self, text: Text) -> None:
        """Wrap between words on a terminal; in a log a sentence stays one line."""
        with suppress(*UNSHOWN):
            self._console.print(text, soft_wrap=not self._console.is_terminal)

    def __enter__(self) -> "StatusLine":
        if self._console.is_terminal and self._log is None and not self._quiet:
            self._live = Live(
                console=self._console, auto_refresh=False, transient=True, redirect_stdout=False
            )
            with suppress(*UNSHOWN):
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
            with suppress(*UNSHOWN):
                live.stop()
