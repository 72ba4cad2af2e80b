"""Metrics and traces of requests over OTLP/HTTP, for a collector elsewhere: `molink[otlp]`.

Metrics are those of /metrics, read from the same registry at a fixed period, so there is one
definition of each; the names of OpenTelemetry's conventions get their dots back. A second set of
instruments through the SDK's meters was rejected: two lists would drift apart. A request becomes a
span when it has ended, with one within it for its wait, and for prefill and decode on each ring;
it belongs to its client's trace where that sent a `traceparent`.

Nothing here holds a request up: spans are sent from the SDK's own thread, metrics from a worker.
Headers, for keys, come from OTEL_EXPORTER_OTLP_HEADERS as everywhere.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricExporter,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue
from prometheus_client.core import Metric, Sample

from molink.api.metrics.request_metrics import UNANSWERED
from molink.api.metrics.route import Metrics
from molink.errors import ErrorGuard
from molink.serving.timeline import RequestTimeline
from molink.version import version

PERIOD_S = 15.0
"""Seconds between two exports of metrics; a scraper asks about as often."""

EXPORT_MS_MAX = 5_000
"""Milliseconds that an export may take: a collector that is gone must not hold up the end."""

NS = 1_000_000_000

DOTTED = {
    "gen_ai_server_request_duration_seconds": "gen_ai.server.request.duration",
    "gen_ai_server_time_to_first_token_seconds": "gen_ai.server.time_to_first_token",
    "gen_ai_server_time_per_output_token_seconds": "gen_ai.server.time_per_output_token",
    "gen_ai_client_token_usage": "gen_ai.client.token.usage",
    "gen_ai_operation_name": "gen_ai.operation.name",
    "gen_ai_provider_name": "gen_ai.provider.name",
    "gen_ai_request_model": "gen_ai.request.model",
    "gen_ai_token_type": "gen_ai.token.type",
    "error_type": "error.type",
}
"""Names and attributes of the conventions, by Prometheus's form of them."""

UNKNOWN: Any = None
"""Least and largest value: Prometheus keeps none, and OTLP may leave them out."""

UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "": ""}


# -- metrics --------------------------------------------------------------------------------------


def metrics_data(
    families: Iterable[Metric], resource: Resource, start_unix_s: float, now_unix_s: float
) -> MetricsData:
    """Prometheus's families as OTLP's; what has no samples is left out."""
    times = (int(start_unix_s * NS), int(now_unix_s * NS))
    metrics = [_metric(family, times) for family in families if family.samples]
    scope = ScopeMetrics(InstrumentationScope("molink", version()), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Metric, times: tuple[int, int]) -> OtlpMetric:
    unit = UNITS.get(family.name.rpartition("_")[2], "")
    data: Gauge | Sum | Histogram
    if family.type == "histogram":
        data = Histogram(_histograms(family.samples, times), AggregationTemporality.CUMULATIVE)
    elif family.type == "counter":
        totals = [one for one in family.samples if one.name.endswith("_total")]
        points = [_point(one, times) for one in totals]
        data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    else:
        data = Gauge([_point(one, times) for one in family.samples])
    return OtlpMetric(DOTTED.get(family.name, family.name), family.documentation, unit, data)


def _point(sample: Sample, times: tuple[int, int]) -> NumberDataPoint:
    return NumberDataPoint(_attributes(sample.labels), *times, float(sample.value))


def _attributes(labels: Mapping[str, str]) -> dict[str, str]:
    """Labels that are not empty, as an error's type is where there was none."""
    return {DOTTED.get(name, name): value for name, value in labels.items() if value}


@dataclass(slots=True)
class _Buckets:
    """Prometheus's samples of one histogram."""

    counts: list[tuple[float, int]] = field(default_factory=list)
    """Upper bounds of buckets, and how many values are below each."""
    sum: float = 0.0


def _histograms(samples: Iterable[Sample], times: tuple[int, int]) -> list[HistogramDataPoint]:
    """One point for each set of labels. Prometheus's buckets count all below them, OTLP's only
    their own."""
    found: dict[tuple[tuple[str, str], ...], _Buckets] = {}
    for sample in samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        one = found.setdefault(tuple(sorted(labels.items())), _Buckets())
        if sample.name.endswith("_bucket"):
            one.counts.append((float(sample.labels["le"]), int(sample.value)))
        elif sample.name.endswith("_sum"):
            one.sum = sample.value
    points = []
    for labelled, one in found.items():
        bounds, below = zip(*sorted(one.counts), strict=True)
        counts = [here - before for here, before in zip(below, (0, *below), strict=False)]
        points.append(
            HistogramDataPoint(
                attributes=_attributes(dict(labelled)),
                start_time_unix_nano=times[0],
                time_unix_nano=times[1],
                count=below[-1],
                sum=one.sum,
                bucket_counts=counts,
                explicit_bounds=bounds[:-1],
                min=UNKNOWN,
                max=UNKNOWN,
            )
        )
    return points


# -- traces ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequestSpans:
    """Maker of spans from timelines that have ended."""

    tracer: trace.Tracer

    def __call__(self, timeline: RequestTimeline) -> None:
        """Make a request's spans."""
        arrival = timeline.arrival
        parent = TraceContextTextMapPropagator().extract({"traceparent": arrival.traceparent})
        name = f"{arrival.operation} {timeline.model}"
        span = self.tracer.start_span(
            name,
            parent,
            trace.SpanKind.SERVER,
            _request_attributes(timeline),
            start_time=int(arrival.unix_s * NS),
        )
        if timeline.finish_reason == "error":
            span.set_status(trace.Status(trace.StatusCode.ERROR, timeline.error))
        within = trace.set_span_in_context(span)
        for part, at, end, attributes in _parts(timeline):
            child = self.tracer.start_span(
                part, within, attributes=attributes, start_time=_unix_ns(timeline, at)
            )
            child.end(_unix_ns(timeline, end))
        span.end(_unix_ns(timeline, timeline.finished_at or arrival.at))


def _unix_ns(timeline: RequestTimeline, at: float) -> int:
    return int((timeline.arrival.unix_s + at - timeline.arrival.at) * NS)


def _request_attributes(timeline: RequestTimeline) -> dict[str, AttributeValue]:
    """Attributes of a request's span, by the conventions where they have a name."""
    reason = timeline.finish_reason or ""
    attributes: dict[str, AttributeValue] = {
        "gen_ai.operation.name": timeline.arrival.operation,
        "gen_ai.provider.name": "molink",
        "gen_ai.request.model": timeline.model,
        "gen_ai.request.max_tokens": timeline.answer_tokens_max,
        "gen_ai.usage.input_tokens": timeline.prompt_tokens,
        "gen_ai.usage.output_tokens": timeline.tokens,
        "gen_ai.response.finish_reasons": [reason],
        "gen_ai.response.id": timeline.arrival.request_id,
        "molink.choice": timeline.choice,
        "molink.ring_moves": timeline.moves,
    }
    return attributes | ({"error.type": reason} if reason in UNANSWERED else {})


def _parts(
    timeline: RequestTimeline,
) -> Iterable[tuple[str, float, float, dict[str, AttributeValue]]]:
    """Name, begin, end and attributes of the wait, and of prefill and decode on each ring."""
    begun, ended = timeline.arrival.at, timeline.finished_at or timeline.arrival.at
    for attempt in timeline.attempts:
        end = attempt.ended_at or ended
        started = attempt.started_at if attempt.started_at is not None else attempt.submitted_at
        first = attempt.first_token_at
        attributes: dict[str, AttributeValue] = {
            "molink.ring": attempt.ring,
            "molink.nodes": [stage.node for stage in attempt.stages],
            "molink.moved_because": attempt.moved_because,
        }
        yield "wait", begun, started, {"molink.ring": attempt.ring}
        yield "prefill", started, end if first is None else first, attributes
        if first is not None:
            yield "decode", first, end, attributes | {"gen_ai.usage.output_tokens": attempt.tokens}
        begun = end


# -- export ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class OtlpExport:
    """Exporter of one coordinator's metrics and traces, while `run` runs."""

    metrics: Metrics
    metric_exporter: MetricExporter
    provider: TracerProvider
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Exporting metrics over OTLP"))
    _began_unix_s: float = field(default_factory=time.time)

    @classmethod
    def to(cls, url: str, metrics: Metrics) -> "OtlpExport":
        """An export to the collector at this URL, to which `/v1/metrics` and `/v1/traces` are
        added."""
        base = url.rstrip("/")
        metric_exporter = OTLPMetricExporter(f"{base}/v1/metrics", timeout=EXPORT_MS_MAX / 1000)
        spans = OTLPSpanExporter(f"{base}/v1/traces", timeout=EXPORT_MS_MAX / 1000)
        return cls.through(metrics, metric_exporter, spans)

    @classmethod
    def through(
        cls, metrics: Metrics, metric_exporter: MetricExporter, spans: SpanExporter
    ) -> "OtlpExport":
        """An export through these exporters."""
        resource = Resource.create({"service.name": "molink", "service.version": version()})
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(
            BatchSpanProcessor(spans, export_timeout_millis=float(EXPORT_MS_MAX))
        )
        export = cls(metrics, metric_exporter, provider)
        tracer = provider.get_tracer("molink", version())
        metrics.service.request_log.watch(RequestSpans(tracer))
        return export

    async def run(self) -> None:
        """Export metrics until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            with self.guard:
                await self.export_metrics()

    async def export_metrics(self) -> None:
        """Send what the metrics are now."""
        self.metrics.look()
        await asyncio.to_thread(self._export)

    def _export(self) -> None:
        families = self.metrics.registry.collect()
        data = metrics_data(families, self.provider.resource, self._began_unix_s, time.time())
        self.metric_exporter.export(data, timeout_millis=EXPORT_MS_MAX)

    async def close(self) -> None:
        """Send what is left, unless the collector takes too long."""
        with self.guard:
            await self.export_metrics()
            await asyncio.to_thread(self._shut_down)

    def _shut_down(self) -> None:
        self.provider.force_flush(EXPORT_MS_MAX)
        self.provider.shutdown()
        self.metric_exporter.shutdown()
