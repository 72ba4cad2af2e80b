"""Metrics of nodes, rings, stages and links: a report on the cluster, as Prometheus's families.

They are made anew of a report for each scrape, so a link that is gone is gone here too, and
nothing is counted twice. Cardinality is bounded: the only labels from afar are the names of nodes,
of which the first NODE_LABELS_MAX are told apart and all others are `other`, added up. There are
no labels by ring: rings are numbered for ever.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from molink.control.messages.payloads import NodeState
from molink.findings.finding import KINDS, Finding
from molink.printable import printable_line
from molink.report.capabilities import RING_PARTS, STAGE_PARTS
from molink.report.capability import Figure, is_counter
from molink.report.cluster import ClusterReport, RingLink

NODE_LABELS_MAX = 128
"""Names of nodes that are told apart since the start: some 4,000 series at most. A database of
metrics keeps each name that it has ever seen, and owners may rename their PCs."""

OTHER = "other"

Labelled = Sequence[tuple[tuple[str, ...], Any]]
"""Parts of a report, and the values of their labels."""

STAGE_FIGURES = (
    Figure("molink_stage_busy_ratio", "busy_share", "Part of the last half second computed."),
    Figure("molink_stage_busy_seconds_total", "busy_s", "Time spent computing."),
    Figure("molink_stage_steps_total", "steps", "Batches computed."),
    Figure("molink_stage_decode_step_seconds", "decode_step_s", "Smoothed time of a decode step."),
    Figure("molink_stage_prefill_row_seconds", "prefill_row_s", "Smoothed time of a prompt token."),
    Figure("molink_stage_kv_tokens_used", "kv_tokens_used", "Tokens in the KV cache."),
    Figure("molink_stage_kv_tokens_capacity", "kv_tokens_capacity", "Tokens that it holds."),
    Figure("molink_stage_kv_tokens_cached", "kv_tokens_cached", "Tokens in the prefix cache."),
    Figure("molink_stage_state_slots_used", "state_slots_used", "Requests with a state."),
    Figure(
        "molink_stage_state_slots_capacity",
        "state_slots_capacity",
        "Requests that it has room for.",
    ),
    Figure("molink_stage_weights_bytes", "weights_bytes", "Weights held."),
    Figure(
        "molink_stage_frames_refused_total", "frames_refused", "Messages that could not be used."
    ),
    Figure(
        "molink_stage_micro_batches", "micro_batch_count", "Micro-batches that circle; head only."
    ),
    Figure(
        "molink_stage_decode_round_seconds",
        "decode_round_s",
        "Smoothed time between two visits of a micro-batch.",
    ),
)

LINK_FIGURES = (
    Figure("molink_link_rate_bytes_per_second", "rate_mbps", "Believed rate.", 1e6 / 8),
    Figure("molink_link_rtt_seconds", "rtt_ms", "Round trip without queueing.", 1e-3),
    Figure("molink_link_queueing_delay_seconds", "queueing_delay_ms", "Queueing on the way.", 1e-3),
    Figure("molink_link_sent_bytes_total", "bytes_sent", "Bytes sent."),
    Figure("molink_link_messages_total", "messages_sent", "Messages sent."),
    Figure("molink_link_in_flight_bytes", "in_flight_bytes", "Sent and not acknowledged."),
    Figure("molink_link_chunk_bytes", "chunk_bytes", "Size of a chunk now."),
    Figure("molink_link_decode_queued_bytes", "decode_queued_bytes", "Decode waiting to leave."),
    Figure("molink_link_prefill_queued_bytes", "prefill_queued_bytes", "Prompts waiting to leave."),
    Figure(
        "molink_link_foreign_upload", "foreign_upload", "1 while others seem to use the uplink."
    ),
    Figure("molink_link_acks_refused_total", "acks_refused", "Acknowledgements that cannot be."),
    Figure(
        "molink_link_codec_saved_bytes", "bytes_saved", "Saved by packing; below 0: it cost bytes."
    ),
)

NODE_FIGURES = (
    Figure("molink_node_served_seconds_total", "uptime_s", "Time given to this cluster."),
    Figure("molink_node_token_layers_total", "token_layers", "Tokens times layers computed."),
    Figure("molink_node_sent_bytes_total", "bytes_sent", "Bytes uploaded, as the node says."),
)

FIGURES = (
    *STAGE_FIGURES,
    *(figure for part in STAGE_PARTS for figure in part.figures),
    *LINK_FIGURES,
    *NODE_FIGURES,
)


@dataclass(slots=True)
class NodeLabels:
    """Names of nodes as labels, of which there are only so many."""

    names_max: int = NODE_LABELS_MAX
    _known: set[str] = field(default_factory=set)

    def label(self, name: str) -> str:
        """The name, printable; `other` for a name that came too late."""
        shown = printable_line(name)
        if shown not in self._known:
            if len(self._known) >= self.names_max:
                return OTHER
            self._known.add(shown)
        return shown


@dataclass(slots=True, eq=False)
class ClusterCollector(Collector):
    """Collector of one report at a time."""

    report: ClusterReport | None = None
    """The latest one; None: there is none yet."""
    labels: NodeLabels = field(default_factory=NodeLabels)
    findings: Sequence[Finding] = ()
    """What stands out in it."""

    def collect(self) -> Iterator[Metric]:
        """All families of the report."""
        if (report := self.report) is None:
            return
        label = self.labels.label
        stages = [((label(one.node),), one) for ring in report.rings for one in ring.stages]
        links = [(self._ends(one), one) for ring in report.rings for one in ring.links]
        given = [((label(one.name),), one.contribution) for one in report.nodes]
        yield from _families(STAGE_FIGURES, ("node",), stages)
        for part in STAGE_PARTS:
            parts = [
                ((*labels, part.label_value(one)), one)
                for labels, stage in stages
                if (one := getattr(stage, part.field)) is not None
            ]
            yield from _families(part.figures, ("node", part.label), parts)
        yield from _families(LINK_FIGURES, ("source", "target"), links)
        yield from _families(NODE_FIGURES, ("node",), given)
        yield from _whole(report)
        yield _found(self.findings)

    def _ends(self, link: RingLink) -> tuple[str, str]:
        return self.labels.label(link.source), self.labels.label(link.target)


def _whole(report: ClusterReport) -> Iterator[Metric]:
    """Families of the cluster as a whole."""
    is_ready, build = report.unready_reason is None, report.build
    yield GaugeMetricFamily("molink_ready", "1 while requests are answered.", float(is_ready))
    names = ("version", "protocol")
    info = GaugeMetricFamily("molink_build_info", "1, with which MoLink it is.", labels=names)
    info.add_metric([build.version, str(build.protocol)], 1)
    yield info
    if (room := report.disk_free_bytes) is not None:
        yield GaugeMetricFamily("molink_disk_free_bytes", "Room on the coordinator's disk.", room)
    yield from _ending(report)
    yield GaugeMetricFamily("molink_rings", "Rings that serve.", len(report.rings))
    present = report.counts()
    states = {str(state): present.get(str(state), 0) for state in NodeState}
    yield labelled("molink_nodes", "Nodes in each state.", "state", states)
    counts = {"running": report.running, "waiting": report.waiting}
    yield labelled("molink_requests", "Requests by state.", "state", counts)
    for part in RING_PARTS:
        parts = [one for ring in report.rings if (one := getattr(ring, part.field))]
        for family in part.families(parts):
            yield labelled(*family)


def _ending(report: ClusterReport) -> Iterator[Metric]:
    """Families of what lets people in, and ends: certificates and invites."""
    if report.certificates:
        name = "molink_certificate_expiry_timestamp_seconds"
        ends = {one.name: one.ends_unix_s for one in report.certificates}
        yield labelled(name, "When a certificate ends.", "certificate", ends)
    if (invites := report.invites) is not None:
        yield GaugeMetricFamily("molink_invites_open", "Invites that let PCs in.", invites.open)
        if (at := invites.next_ends_unix_s) is not None:
            name = "molink_invite_expiry_timestamp_seconds"
            yield GaugeMetricFamily(name, "When the first open invite ends.", at)


def _found(findings: Sequence[Finding]) -> Metric:
    """How many findings of each kind and severity stand; 0 as well, so that alerts end."""
    names = ("finding", "severity")
    family = GaugeMetricFamily("molink_finding", "Findings that stand.", labels=names)
    for name, kind in KINDS.items():
        for severity in kind.severities:
            count = sum(one.kind == name and one.severity is severity for one in findings)
            family.add_metric((name, severity.word), count)
    return family


def kind_of(name: str) -> type[CounterMetricFamily | GaugeMetricFamily]:
    """What a metric is to Prometheus, by its name."""
    return CounterMetricFamily if is_counter(name) else GaugeMetricFamily


def labelled(name: str, words: str, label: str, values: Mapping[str, float]) -> Metric:
    """A family of one label, with a sample for each of its values."""
    family = kind_of(name)(name, words, labels=(label,))
    for value, number in values.items():
        family.add_metric((value,), number)
    return family


def _families(
    figures: Iterable[Figure], names: tuple[str, ...], parts: Labelled
) -> Iterator[Metric]:
    """A family for each figure, with a sample for each part that has it."""
    for figure in figures:
        family = kind_of(figure.name)(figure.name, figure.help, labels=names)
        for labels, value in _values(figure, parts).items():
            family.add_metric(labels, value)
        yield family


def _values(figure: Figure, parts: Labelled) -> dict[tuple[str, ...], float]:
    """Values of a figure by labels: counters of one label add up, the highest gauge counts."""
    values: dict[tuple[str, ...], float] = {}
    adds_up = is_counter(figure.name)
    for labels, part in parts:
        if (raw := getattr(part, figure.field)) is not None:
            value = figure.scale * float(raw)
            before = values.get(labels, 0.0 if adds_up else value)
            values[labels] = before + value if adds_up else max(before, value)
    return values
