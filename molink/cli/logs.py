"""How a command that stays running logs: lines for people, or one JSON object a line for programs.

Lines are warnings, on standard error, beside what the command tells its operator. As JSON,
everything is a log record: what happens to the cluster, and each request that has ended, too. A
record that is made while a request is served bears the request's id.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from molink.printable import PrintableFormatter, printable_line
from molink.serving.timeline import ARRIVAL, RequestTimeline

__all__ = ["LOG_FORMATS", "log_request", "set_up_logs"]

LOG_FORMATS = ("text", "json")

MESSAGE_CHARS_MAX = 4000
"""Of one record: a traceback is cut at its beginning."""

log = logging.getLogger("molink.requests")


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
        said: dict[str, Any] = {
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


def set_up_logs(log_format: str) -> None:
    """Have all loggers of this process write to standard error in this format."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_RequestId())
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _LineFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("molink").setLevel(logging.INFO if log_format == "json" else logging.WARNING)


def log_request(timeline: RequestTimeline) -> None:
    """Log that a request has ended: at INFO, so that lines for people do not have it."""
    fields = {
        "request_id": timeline.arrival.request_id,
        "choice": timeline.choice,
        "key_id": timeline.key_id,
        "finish_reason": timeline.finish_reason,
        "prompt_tokens": timeline.prompt_tokens,
        "tokens": timeline.tokens,
        "queue_s": timeline.queue_s,
        "prefill_s": timeline.prefill_s,
        "decode_s": timeline.decode_s,
        "total_s": timeline.total_s,
        "rings": [attempt.ring for attempt in timeline.attempts],
        "error": timeline.error,
    }
    log.info("request ended: %s", timeline.finish_reason, extra={"fields": fields})
