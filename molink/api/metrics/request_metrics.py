"""Metrics of requests, made of their timelines: latencies, tokens, ends, moves.

Names and buckets are those of OpenTelemetry's conventions for generative AI where there are any, as
its rules turn them into Prometheus's (dots become underscores, seconds are named); buckets go on
upwards, because a prompt over home lines may take minutes. Each timeline is observed once, when it
has ended. Labels are few and bounded: the operation, the served model, how it ended.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from molink.api.metrics.cluster_metrics import labelled
from molink.serving.answers.deadline import DEADLINE
from molink.serving.events import EventLedger
from molink.serving.request_log import RequestLog
from molink.serving.timeline import OVERLOADED, RequestTimeline

PROVIDER = "molink"

FINISH_REASONS = ("stop", "length", DEADLINE, "cancelled", OVERLOADED, "error")
"""All reasons with which a timeline ends."""

UNANSWERED = ("cancelled", OVERLOADED, "error")
"""Finish reasons that the conventions' `error.type` names."""

SHARED_LABELS = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")

DURATION_BUCKETS_S = tuple(0.01 * 2**step for step in range(17))
"""Bounds from 0.01 to 81.92 s as the conventions say, then on to eleven minutes."""

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0),
)
TPOT_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    *(5.0, 10.0),
)
TOKEN_BUCKETS = tuple(float(4**power) for power in range(14))
"""Bounds from 1 to 67,108,864, as the conventions say."""

FORECASTS = "Seconds to first tokens, as they were forecast and as they came."

GOODPUT = "Requests with targets, by whether they came whole and within all of them."

HISTOGRAMS: tuple[tuple[str, str, str, tuple[str, ...], tuple[float, ...]], ...] = (
    (
        "gen_ai_server_request_duration",
        "From a request's arrival to its last token.",
        "seconds",
        (*SHARED_LABELS, "error_type"),
        DURATION_BUCKETS_S,
    ),
    (
        "gen_ai_server_time_to_first_token",
        "From a request's arrival to its first token.",
        "seconds",
        SHARED_LABELS,
        TTFT_BUCKETS_S,
    ),
    (
        "gen_ai_server_time_per_output_token",
        "Mean time between two tokens of a request, after the first.",
        "seconds",
        SHARED_LABELS,
        TPOT_BUCKETS_S,
    ),
    (
        "molink_request_tbt",
        "99th percentile of the gaps between a request's tokens.",
        "seconds",
        (),
        TPOT_BUCKETS_S,
    ),
    (
        "gen_ai_client_token_usage",
        "Tokens of a request's prompt and of its answer.",
        "",
        (*SHARED_LABELS, "gen_ai_token_type"),
        TOKEN_BUCKETS,
    ),
    (
        "molink_request_queue",
        "From a request's arrival until a ring began to compute it.",
        "seconds",
        (),
        DURATION_BUCKETS_S,
    ),
    (
        "molink_request_prefill",
        "From there to its first token.",
        "seconds",
        (),
        DURATION_BUCKETS_S,
    ),
)
"""Name, help, unit, labels and buckets of each."""


@dataclass(slots=True, eq=False)
class RequestMetrics(Collector):
    """Observer of timelines that have ended, and collector of the counts over all."""

    log: RequestLog
    events: EventLedger
    registry: CollectorRegistry
    _ended: dict[str, int] = field(default_factory=dict)
    """Requests by how they ended."""
    _moves: int = 0
    _prompt_tokens: int = 0
    """Tokens of the prompts of ended requests that were answered."""
    _cached_tokens: int = 0
    """Tokens of answered prompts that were in a cache and not computed again."""
    _forecast_s: float = 0.0
    """Forecast seconds to first tokens that came, summed over ended requests with a forecast."""
    _came_s: float = 0.0
    """Measured seconds to first tokens, summed over ended requests that had a forecast."""
    _tokens_ended: int = 0
    """Tokens generated for requests that have ended."""
    _live: int = 0
    """Requests that waited or ran at the last look."""
    _tokens: int = 0
    """Tokens generated for all requests until the last look."""
    _moves_seen: int = 0
    """Moves of all requests to another ring until the last look."""
    _histograms: dict[str, Histogram] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name, help_, unit, labels, buckets in HISTOGRAMS:
            self._histograms[name] = Histogram(
                name, help_, labels, unit=unit, buckets=buckets, registry=self.registry
            )
        self.registry.register(self)
        self.log.watch(self.observe)

    def observe(self, timeline: RequestTimeline) -> None:
        """Take a timeline into account that has ended."""
        reason = timeline.finish_reason or "error"
        self._ended[reason] = self._ended.get(reason, 0) + 1
        self._moves += timeline.moves
        self._tokens_ended += timeline.tokens
        if timeline.first_token_at is not None:
            self._prompt_tokens += timeline.prompt_tokens
            self._cached_tokens += timeline.cached_tokens
        if timeline.forecast_ttft_s is not None and timeline.ttft_s is not None:
            self._forecast_s += timeline.forecast_ttft_s
            self._came_s += timeline.ttft_s
        shared = (timeline.arrival.operation, PROVIDER, timeline.model)
        error = reason if reason in UNANSWERED else ""
        self._observe("gen_ai_server_request_duration", timeline.total_s, *shared, error)
        self._observe("gen_ai_server_time_to_first_token", timeline.ttft_s, *shared)
        self._observe("gen_ai_server_time_per_output_token", timeline.tpot_s, *shared)
        self._observe("molink_request_tbt", timeline.gaps_within_s(99.0))
        self._observe("molink_request_queue", timeline.queue_s)
        self._observe("molink_request_prefill", timeline.prefill_s)
        if timeline.attempts:
            self._observe("gen_ai_client_token_usage", timeline.prompt_tokens, *shared, "input")
            self._observe("gen_ai_client_token_usage", timeline.tokens, *shared, "output")

    def _observe(self, name: str, value: float | None, *labels: str) -> None:
        histogram = self._histograms[name]
        if value is not None:
            (histogram.labels(*labels) if labels else histogram).observe(value)

    def look(self) -> None:
        """Add up what all requests have had until now; on the event loop, so that none is counted
        twice or not at all while it ends."""
        live = self.log.live
        self._live = len(live)
        self._tokens = self._tokens_ended + sum(one.tokens for one in live)
        self._moves_seen = self._moves + sum(one.moves for one in live)

    def collect(self) -> Iterator[Metric]:
        """Counts over all requests and events, as of the last look."""
        ends = {reason: self._ended.get(reason, 0) for reason in FINISH_REASONS}
        computed = self._prompt_tokens - self._cached_tokens
        prompts = {"computed": computed, "cached": self._cached_tokens}
        seconds = {"forecast": self._forecast_s, "came": self._came_s}
        families: tuple[tuple[str, str, str, Mapping[str, float]], ...] = (
            ("molink_requests_ended_total", "Requests by how they ended.", "finish_reason", ends),
            ("molink_goodput_total", GOODPUT, "outcome", self.log.goodput.counts),
            ("molink_events_total", "Events in the ledger by kind.", "kind", self.events.counts),
            ("molink_prompt_tokens_total", "Tokens of answered prompts.", "source", prompts),
            ("molink_first_token_seconds_total", FORECASTS, "what", seconds),
        )
        for family in families:
            yield labelled(*family)
        tokens, moves = "Tokens of all answers.", "Times that a request went on in another ring."
        yield CounterMetricFamily("molink_tokens_generated_total", tokens, self._tokens)
        yield CounterMetricFamily("molink_request_moves_total", moves, self._moves_seen)
        yield GaugeMetricFamily("molink_requests_live", "Requests that wait or run.", self._live)
