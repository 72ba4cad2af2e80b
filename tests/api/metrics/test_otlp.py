"""What an OpenTelemetry collector gets: the metrics of /metrics, and a trace of each request."""

import asyncio
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from molink.api.metrics.otlp import OtlpExport, metrics_data
from molink.api.metrics.route import Metrics
from molink.errors import RingError
from molink.report.requests import StageLayers
from molink.serving.timeline import Arrival, RequestTimeline
from tests.api.metrics.examples import answered, ended_with, observed_service

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class KeptMetrics:
    """Exporter that keeps what it is given."""

    def __init__(self):
        self.got = []

    def export(self, data, timeout_millis=0, **more):
        self.got.append(data)
        return MetricExportResult.SUCCESS

    def shutdown(self, **more):
        pass


@pytest.fixture
def service():
    return observed_service()


@pytest.fixture
def spans():
    return InMemorySpanExporter()


@pytest.fixture
def export(service, spans):
    return OtlpExport.through(Metrics(service), KeptMetrics(), spans)


def metrics_of(data):
    return {metric.name: metric for metric in data.resource_metrics[0].scope_metrics[0].metrics}


async def test_metrics_are_those_of_prometheus_in_the_conventions_names(service, export):
    answered(service.request_log)
    await export.export_metrics()
    (data,) = export.metric_exporter.got
    found = metrics_of(data)
    duration = found["gen_ai.server.request.duration"]
    (point,) = duration.data.data_points
    assert (duration.unit, point.count, point.sum) == ("s", 1, 5.0)
    assert dict(point.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "molink",
        "gen_ai.request.model": "demo",
    }
    assert sum(point.bucket_counts) == 1
    assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
    bound = next(n for n, count in enumerate(point.bucket_counts) if count)
    assert point.explicit_bounds[bound - 1] < 5.0 <= point.explicit_bounds[bound]
    assert found["molink_stage_busy_ratio"].unit == "1"
    steps = found["molink_stage_steps"].data
    assert steps.is_monotonic and [one.value for one in steps.data_points] == [7.0, 7.0]
    assert "gen_ai.server.time_to_first_token" in found
    assert "gen_ai.server.time_per_output_token" in found
    assert "gen_ai.client.token.usage" in found


def test_every_family_with_samples_is_carried(service):
    metrics = Metrics(service)
    answered(service.request_log)
    metrics.look()
    families = list(metrics.registry.collect())
    data = metrics_data(families, Resource.create({}), 0.0, 1.0)
    assert len(metrics_of(data)) == sum(bool(family.samples) for family in families)


async def test_a_request_is_a_span_with_its_parts_in_its_clients_trace(service, export, spans):
    arrival = Arrival("r", "chat", PARENT, at=10.0, unix_s=1000.0)
    timeline = RequestTimeline("demo", 100, 8, arrival=arrival)
    with service.request_log.following(timeline):
        timeline.submitted(3, (StageLayers("anna", (0, 9)),), 10.5)
        timeline.prompt_computed(100, 0.5, now=99.0)
        timeline.tokens_came(1, 12.0)
        timeline.tokens_came(2, 15.0)
        timeline.finished("length", 15.0)
    await export.close()
    found = {span.name: span for span in spans.get_finished_spans()}
    assert set(found) == {"wait", "prefill", "decode", "chat demo"}
    times = {name: (one.start_time / 1e9, one.end_time / 1e9) for name, one in found.items()}
    assert times == {
        "chat demo": (1000.0, 1005.0),
        "wait": (1000.0, 1001.0),
        "prefill": (1001.0, 1002.0),
        "decode": (1002.0, 1005.0),
    }
    request = found["chat demo"]
    assert format(request.context.trace_id, "032x") == PARENT.split("-")[1]
    assert format(request.parent.span_id, "016x") == PARENT.split("-")[2]
    assert found["wait"].parent.span_id == request.context.span_id
    assert request.attributes["gen_ai.usage.output_tokens"] == 3
    assert request.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert found["decode"].attributes["molink.nodes"] == ("anna",)


async def test_a_request_that_failed_is_a_failed_span(service, export, spans):
    ended_with(service.request_log, RingError("No ring."))
    await export.close()
    (span,) = spans.get_finished_spans()
    assert (span.status.is_ok, span.status.description) == (False, "No ring.")
    assert span.attributes["error.type"] == "error"


class Collector(ThreadingHTTPServer):
    """As much of an OpenTelemetry collector as takes OTLP over HTTP."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Take)
        self.got = {}
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Take(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.setdefault(self.path, []).append(body)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments):
        pass


async def test_a_collector_gets_both_over_http(service):
    collector = Collector()
    try:
        export = OtlpExport.to(f"http://127.0.0.1:{collector.server_port}/", Metrics(service))
        answered(service.request_log)
        await export.close()
    finally:
        await asyncio.to_thread(collector.shutdown)
        collector.server_close()
    metrics = ExportMetricsServiceRequest.FromString(collector.got["/v1/metrics"][0])
    names = {m.name for m in metrics.resource_metrics[0].scope_metrics[0].metrics}
    assert {"gen_ai.server.request.duration", "molink_ready"} <= names
    traces = ExportTraceServiceRequest.FromString(collector.got["/v1/traces"][0])
    assert "chat demo" in {s.name for s in traces.resource_spans[0].scope_spans[0].spans}
