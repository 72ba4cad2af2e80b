"""What `molink up` and `molink serve` leave for programs that watch: logs, a trace, OTLP."""

import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from molink.errors import UserError

if TYPE_CHECKING:
    from molink.api.metrics.route import Metrics
    from molink.cli.terminal import StatusLine
    from molink.coordinator.cluster import Cluster

__all__ = ["Watching", "watch_options"]

LOG_FORMATS = ("text", "json")

Command = Callable[..., Any]

_WATCH_OPTIONS = (
    click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        help="Of what is said on standard error: lines for people, or a JSON object a line.",
    ),
    click.option(
        "--trace-file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Write what each stage, link and request does, for ui.perfetto.dev; names of PCs are "
        "in it, prompts and answers are not.",
    ),
    click.option(
        "--otlp",
        metavar="URL",
        help="Send metrics, and a trace of each request, to the OpenTelemetry collector there "
        "(OTLP over HTTP, as http://127.0.0.1:4318); needs molink[otlp].",
    ),
)


@dataclass(frozen=True, slots=True)
class Watching:
    """Wishes of an operator. Raises UserError for a URL that is none, or without `molink[otlp]`."""

    log_format: str = "text"
    trace_file: Path | None = None
    otlp: str | None = None

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
    def is_json(self) -> bool:
        """Whether everything that is said is a log record."""
        return self.log_format == "json"

    def status_line(self) -> "StatusLine":
        """Where the command tells what happens."""
        from molink.cli.logs import OPERATOR_LOG
        from molink.cli.terminal import StatusLine

        return StatusLine(log=OPERATOR_LOG if self.is_json else None)

    @asynccontextmanager
    async def recording(self, cluster: "Cluster", metrics: "Metrics") -> AsyncIterator[None]:
        """Leave what is wished for while the block runs. Raises UserError when the trace file
        cannot be written."""
        from molink.cli.logs import log_request
        from molink.tasks import background_tasks

        cluster.service.request_log.watch(log_request)
        async with AsyncExitStack() as stack:
            works = []
            if self.trace_file is not None:
                works.append(self._trace(self.trace_file, cluster, stack))
            if self.otlp is not None:
                works.append(_export(self.otlp, metrics, stack))
            tasks = await stack.enter_async_context(background_tasks())
            for work in works:
                tasks.create_task(work.run())
            yield

    def _trace(self, path: Path, cluster: "Cluster", stack: AsyncExitStack) -> Any:
        from molink.coordinator.requests.cluster_trace import ClusterTrace
        from molink.serving.trace_file import TraceFile

        trace = ClusterTrace(cluster.service, TraceFile.create(path, time.monotonic(), time.time()))
        stack.callback(trace.close)
        return trace


def _export(url: str, metrics: "Metrics", stack: AsyncExitStack) -> Any:
    from molink.api.metrics.otlp import OtlpExport

    export = OtlpExport.to(url, metrics)
    stack.push_async_callback(export.close)
    return export


def watch_options(command: Command) -> Command:
    """Give the command one `watching` for these options, and have its ring traced if wished for;
    logs are set up before it runs."""

    @wraps(command)
    def run(**options: Any) -> Any:
        from molink.cli.logs import set_up_logs

        names = ("log_format", "trace_file", "otlp")
        watching = Watching(**{name: options.pop(name) for name in names})
        set_up_logs(watching.log_format, sys.stderr)
        ring = replace(options.pop("ring"), traced=watching.trace_file is not None)
        return command(watching=watching, ring=ring, **options)

    for option in reversed(_WATCH_OPTIONS):
        run = option(run)
    return run
