"""`GET /metrics`, for Prometheus: as protected as GET /cluster.

The snapshot of the cluster is taken on the event loop, which its state belongs to; it becomes text
in a thread, since a thousand nodes make thousands of lines.
"""

from aiohttp import hdrs, web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder

from molink.api.metrics.cluster_metrics import ClusterCollector
from molink.api.metrics.request_metrics import RequestMetrics
from molink.api.requests import in_worker
from molink.serving.service import GenerationService

METRICS_PATH = "/metrics"


class Metrics:
    """All metrics of one coordinator, in a registry of their own."""

    def __init__(self, service: GenerationService) -> None:
        self.registry = CollectorRegistry()
        self.service = service
        self._cluster = ClusterCollector()
        self.registry.register(self._cluster)
        self._requests = RequestMetrics(service.request_log, service.events, self.registry)
        ProcessCollector(registry=self.registry)

    def look(self) -> None:
        """Take the cluster's state as it is now; on the event loop."""
        self._cluster.report = self.service.cluster()
        self._cluster.findings = self.service.watch.findings
        self._requests.look()


def add_metrics_route(app: web.Application, metrics: Metrics) -> None:
    """Serve metrics in the format that the scraper asks for."""

    async def get_metrics(request: web.Request) -> web.Response:
        """Metrics of requests, rings, links, stages and nodes, as Prometheus reads them."""
        metrics.look()
        encode, content_type = choose_encoder(request.headers.get(hdrs.ACCEPT, ""))
        body = await in_worker(lambda: encode(metrics.registry))
        return web.Response(body=body, headers={hdrs.CONTENT_TYPE: content_type})

    app.add_routes([web.get(METRICS_PATH, get_metrics)])
