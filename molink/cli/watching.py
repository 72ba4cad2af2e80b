"""Logs and OTLP traces that `molink up` and `molink serve` leave for programs that watch.

Logs are lines for people, or one JSON object a line for programs. Lines are warnings, on standard
error, beside what the command tells its operator. As JSON, everything is a log record: what happens
to the cluster, and each request that has ended, too.
"""

import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from molink.cli.options import settings_options
from molink.config.setting import setting
from molink.errors import UserError
from molink.logs import LOG_FORMATS, set_up_logs
from molink.serving.timeline import RequestTimeline
from molink.terminal.command_line import quiet_option

if TYPE_CHECKING:
    from molink.api.metrics.route import Metrics
    from molink.coordinator.cluster import Cluster
    from molink.terminal.status_line import StatusLine

Command = Callable[..., Any]

OPERATOR_LOG = logging.getLogger("molink.cluster")
"""What the command tells its operator, where everything is a log record."""

LOGGED = (
    *("choice", "key_id", "finish_reason", "error", "prompt_tokens", "tokens"),
    *("queue_s", "prefill_s", "decode_s", "total_s"),
)
"""What the log tells of a request's timeline."""

log = logging.getLogger("molink.requests")


def log_request(timeline: RequestTimeline) -> None:
    """Log that a request has ended: at INFO, so that lines for people do not have it."""
    logged = {name: getattr(timeline, name) for name in LOGGED}
    rings = [attempt.ring for attempt in timeline.attempts]
    fields = {"request_id": timeline.arrival.request_id, **logged, "rings": rings}
    log.info("request ended: %s", timeline.finish_reason, extra={"fields": fields})


@dataclass(frozen=True, slots=True)
class Watching:
    """Wishes of an operator. Raises UserError for a URL that is none, or without `molink[otlp]`."""

    log_format: str = setting(
        "--log-format",
        "text",
        "Format of what is said on standard error: lines for people, or a JSON object a line.",
        choices=LOG_FORMATS,
    )
    otlp: str | None = setting(
        "--otlp URL",
        None,
        "Send metrics, and a trace of each request, to the OpenTelemetry collector there "
        "(OTLP over HTTP, as http://127.0.0.1:4318); needs molink[otlp].",
    )
    quiet: bool = False
    """Whether no progress is shown; what happens is."""

    def __post_init__(self) -> None:
        if self.otlp is None:
            return
        parts = urlsplit(self.otlp)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UserError(f"--otlp takes a URL such as http://127.0.0.1:4318, got {self.otlp!r}.")
        try:
            import_module("molink.api.metrics.otlp")
        except ModuleNotFoundError:
            raise UserError("--otlp needs more packages: pip install 'molink[otlp]'.") from None

    @property
    def shows_progress(self) -> bool:
        """Whether a person looks on."""
        return not (self.is_json or self.quiet)

    @property
    def is_json(self) -> bool:
        """Whether everything that is said is a log record."""
        return self.log_format == "json"

    def status_line(self) -> "StatusLine":
        """Line in which the command tells what happens."""
        from molink.terminal.status_line import StatusLine

        return StatusLine(log=OPERATOR_LOG if self.is_json else None, quiet=self.quiet)

    @asynccontextmanager
    async def recording(self, cluster: "Cluster", metrics: "Metrics") -> AsyncIterator[None]:
        """Leave what is wished for while the block runs."""
        from molink.tasks import background_tasks

        cluster.service.request_log.watch(log_request)
        async with AsyncExitStack() as stack:
            tasks = await stack.enter_async_context(background_tasks())
            if self.otlp is not None:
                tasks.create_task(_export(self.otlp, metrics, stack).run())
            yield


def _export(url: str, metrics: "Metrics", stack: AsyncExitStack) -> Any:
    from molink.api.metrics.otlp import OtlpExport

    export = OtlpExport.to(url, metrics)
    stack.push_async_callback(export.close)
    return export


def watch_options(command: Command) -> Command:
    """Give the command one `watching` for these options; logs are set up before it runs."""

    @wraps(command)
    def run(**options: Any) -> Any:
        names = ("log_format", "otlp", "quiet")
        watching = Watching(**{name: options.pop(name) for name in names})
        set_up_logs(watching.log_format, sys.stderr)
        return command(watching=watching, **options)

    return settings_options(Watching)(quiet_option(run))
