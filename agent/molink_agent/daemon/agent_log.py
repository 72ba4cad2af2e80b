"""Log of an agent: a file of its own, and whoever looks on."""

import logging
import logging.handlers
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from molink.errors import UserError
from molink.printable import PrintableFormatter

LOG_FILE = "agent.log"
LOG_BYTES_MAX, LOG_FILES_MAX = 2**20, 3
"""A year of an agent that has nothing to complain about."""


class StatusListener(Protocol):
    """Terminal or journal that shows what the agent does."""

    def event(self, sentence: str) -> None:
        """Show something that happened."""

    def status(self, sentence: str) -> None:
        """Show the state as it is now."""


class _ListenerHandler(logging.Handler):
    """Log handler that shows the agent's own warnings, too; a lost broker is shown anyhow."""

    def __init__(self, listener: StatusListener) -> None:
        super().__init__(logging.WARNING)
        self.addFilter(logging.Filter("molink_agent"))
        self._listener = listener

    def emit(self, record: logging.LogRecord) -> None:
        self._listener.event(record.getMessage())


class _OwnerFormatter(PrintableFormatter):
    """Lines for the owner, who reads what happened; warnings say whose they are, for reports of
    bugs."""

    _of_warnings = PrintableFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        is_warning = record.levelno >= logging.WARNING
        return self._of_warnings.format(record) if is_warning else super().format(record)


class _LogFile(logging.handlers.RotatingFileHandler):
    """Log that a full disk leaves with gaps, which ends and disturbs nothing."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def logged(data_dir: Path, listener: StatusListener) -> Iterator[None]:
    """Write the agent's log to a file, and to a listener, until the end of the block. Raises
    UserError for a file that cannot be opened."""
    path = data_dir / LOG_FILE
    try:
        file = _LogFile(path, maxBytes=LOG_BYTES_MAX, backupCount=LOG_FILES_MAX - 1)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): check its owner, or remove it."
        ) from None
    file.setFormatter(_OwnerFormatter("%(asctime)s %(message)s"))
    handlers = (file, _ListenerHandler(listener))
    root = logging.getLogger()
    before = root.level
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(before)
