"""Logs of a process of MoLink: lines for people, or one JSON object a line for programs.

A record that is made while a request is served bears the request's id. The same in a coordinator
and in the stages that it starts, whose records a program reads from the same stream.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

from molink.printable import PrintableFormatter, printable_line
from molink.serving.timeline import ARRIVAL

LOG_FORMATS = ("text", "json")

MESSAGE_CHARS_MAX = 4000
"""Longest message of one record: a traceback is cut at its beginning."""


class _RequestId(logging.Filter):
    """Filter that gives each record the id of the request that is being served."""

    def filter(self, record: logging.LogRecord) -> bool:
        arrival = ARRIVAL.get()
        record.request_id = arrival.request_id if arrival is not None else ""
        return True


class _LineFormatter(PrintableFormatter):
    """Formatter of lines: as before, with the request's id where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        request_id = printable_line(getattr(record, "request_id", ""))
        return f"[{request_id}] {line}" if request_id else line


class _JsonFormatter(logging.Formatter):
    """Formatter of JSON objects: time, level, logger, message, and `fields` of the record."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MESSAGE_CHARS_MAX],
        }
        if request_id := getattr(record, "request_id", ""):
            said["request_id"] = request_id
        said |= getattr(record, "fields", {})
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)[-MESSAGE_CHARS_MAX:]
        return json.dumps(said, default=str)


class _StandardErrorHandler(logging.StreamHandler[TextIO]):
    """Handler that writes on what standard error is now: a status line puts itself in its place, so
    that lines stand above it and are not glued to it."""

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, stream: TextIO) -> None:
        """Nothing is kept."""


def set_up_logs(log_format: str, stream: TextIO) -> None:
    """Have all loggers of this process write there in this format."""
    is_standard = stream is sys.stderr
    handler = _StandardErrorHandler() if is_standard else logging.StreamHandler(stream)
    handler.addFilter(_RequestId())
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(log_format == "json")
    logging.getLogger("molink").setLevel(logging.INFO if log_format == "json" else logging.WARNING)
