"""A cluster as GET /cluster tells it: rings with stages and links, and all nodes."""

from dataclasses import dataclass
from functools import cached_property

from molink.dashboard.model.fields import (
    Json,
    count,
    flag,
    number,
    objects,
    pair,
    part,
    text,
    texts,
)

COORDINATOR = "coordinator"


@dataclass(frozen=True, slots=True)
class Stage:
    """Stage of a ring, with its figures of the last second."""

    node: str
    layers: tuple[int, int] | None
    device: str
    busy_share: float | None
    decode_step_s: float | None
    prefill_row_s: float | None
    steps: int
    kv_used: int
    kv_capacity: int
    frames_refused: int
    micro_batches: float | None
    """Mean of micro-batches waiting or computed here in the last half second; None: not told."""
    states_used: int
    states_capacity: int
    """Requests whose states it holds at a time; 0: its layers keep none."""

    @property
    def kv_share(self) -> float | None:
        """Part of the KV cache that is in use."""
        return self.kv_used / self.kv_capacity if self.kv_capacity else None


@dataclass(frozen=True, slots=True)
class Link:
    """Directed link of a ring; ends are names of nodes, or the coordinator."""

    source: str
    target: str
    rate_mbps: float | None
    rtt_ms: float | None
    queueing_delay_ms: float | None
    decode_queued_bytes: int
    prefill_queued_bytes: int
    decode_waiting: int
    prefill_waiting: int
    bytes_sent: int
    in_flight_bytes: int
    foreign_upload: bool
    codec: str
    bytes_saved: int

    @property
    def ends(self) -> tuple[str, str]:
        """Names of its source and its target."""
        return self.source, self.target

    @property
    def decode_wait_s(self) -> float:
        """How long the decode bytes that are queued take to leave."""
        return 8 * self.decode_queued_bytes / (1e6 * self.rate_mbps) if self.rate_mbps else 0.0


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecast by which a ring was planned."""

    users: int
    tpot_s: float | None
    tpot_alone_s: float | None
    ttft_s: float | None
    tokens_per_s: float | None
    bottleneck: str


@dataclass(frozen=True, slots=True)
class Ring:
    """Ring that serves; the first stage is its head."""

    number: int
    stages: tuple[Stage, ...]
    links: tuple[Link, ...]
    running: int
    waiting: int
    round_s: float | None
    micro_batches: int | None
    """Micro-batches that may circle."""
    circling: float | None
    """Micro-batches that circled in the last half second, as a mean; None: not told."""
    codec: str
    codec_reason: str
    forecast: Forecast | None
    cached_tokens: int = 0
    """Tokens of prompts to come that are held."""
    hit_rate: float | None = None
    """Part of recent prompts that was cached; None: of none, or not told."""
    host_tokens: int = 0
    """Tokens cached in host memory, for want of room in the devices."""
    file_tokens: int = 0
    """Tokens cached on disk, for want of room in the devices."""

    def link_to(self, index: int) -> Link | None:
        """The link by which a stage gets its input; for the head, that of the tail."""
        source = self.stages[index - 1].node
        return self.link(source, self.stages[index].node)

    def link(self, source: str, target: str) -> Link | None:
        """The link between two; None: it has not been reported."""
        return next((one for one in self.links if one.ends == (source, target)), None)


@dataclass(frozen=True, slots=True)
class Node:
    """Device that has joined, and what it does."""

    id: str
    name: str
    pc: str
    state: str
    reason: str
    drained: bool
    quarantined: bool
    """Whether audits have found it out."""
    ring: int | None
    layers: tuple[int, int] | None
    loaded: float | None
    """Progress of its download and load, 0 to 1; None: nothing is under way."""
    device: str
    lent_bytes: int
    total_bytes: int
    upload_mbps: float | None
    upload_cap_mbps: float | None
    download_mbps: float | None
    coordinator_rtt_ms: float | None
    nat: str
    paths: tuple[tuple[str, str], ...]
    layer_step_s: float | None
    """Time of one row through one layer, as measured when it joined."""
    uptime_s: int
    token_layers: int
    bytes_sent: int
    doubts: tuple[str, ...]
    covers: str = ""
    """Name of the node whose place it takes should that go; empty: of none."""
    behind: tuple[int, float] | None = None
    """Tokens, and seconds, by which KV held for another node is behind; None: it holds none."""
    version: str = ""
    """Version of its MoLink; empty: not told."""


@dataclass(frozen=True)
class ClusterState:
    """Body of GET /cluster, as values."""

    model: str
    rings: tuple[Ring, ...]
    nodes: tuple[Node, ...]
    unready_reason: str
    intake_paused: bool
    troubles: tuple[str, ...]
    version: str = ""
    """Version of the coordinator's MoLink; empty: not told."""

    @classmethod
    def of(cls, body: Json) -> "ClusterState":
        """State in a body; an empty cluster where it tells nothing."""
        relay = part(body, "relay")
        return cls(
            model=text(body, "model"),
            rings=tuple(_ring(one) for one in objects(body, "rings")),
            nodes=tuple(_node(one) for one in objects(body, "nodes")),
            unready_reason=text(body, "unready_reason"),
            intake_paused=flag(body, "intake_paused"),
            troubles=texts(body, "trouble") + texts(relay, "trouble"),
            version=text(part(body, "build"), "version"),
        )

    @cached_property
    def nodes_by_name(self) -> dict[str, Node]:
        """Nodes by the names that stages and links have."""
        return {node.name: node for node in self.nodes}

    @property
    def running(self) -> int:
        """Sequences that run, on all rings."""
        return sum(ring.running for ring in self.rings)

    @property
    def waiting(self) -> int:
        """Sequences that wait, on all rings."""
        return sum(ring.waiting for ring in self.rings)

    def counts(self) -> dict[str, int]:
        """How many nodes there are in each state."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.state] = found.get(node.state, 0) + 1
        return found


def _ring(body: Json) -> Ring:
    stages, requests, wire = (
        list(objects(body, "stages")),
        part(body, "requests"),
        part(body, "wire"),
    )
    cache = part(body, "prefix_cache")
    tiers = part(cache, "tiers")
    head = stages[0] if stages else {}
    batches = number(head, "micro_batch_count")
    return Ring(
        number=count(body, "ring"),
        stages=tuple(_stage(one) for one in stages),
        links=tuple(_link(one) for one in objects(body, "links")),
        running=count(requests, "running"),
        waiting=count(requests, "waiting"),
        round_s=number(head, "decode_round_s"),
        micro_batches=None if batches is None else int(batches),
        circling=number(head, "micro_batches_circling"),
        codec=text(wire, "codec"),
        codec_reason=text(wire, "reason"),
        forecast=_forecast(part(body, "forecast")),
        cached_tokens=count(cache, "tokens"),
        hit_rate=number(cache, "recent_hit_rate"),
        host_tokens=count(tiers, "host_tokens"),
        file_tokens=count(tiers, "file_tokens"),
    )


def _stage(body: Json) -> Stage:
    return Stage(
        node=text(body, "node"),
        layers=pair(body, "layers"),
        device=text(body, "device"),
        busy_share=number(body, "busy_share"),
        decode_step_s=number(body, "decode_step_s") or None,
        prefill_row_s=number(body, "prefill_row_s") or None,
        steps=count(body, "steps"),
        kv_used=count(body, "kv_tokens_used"),
        kv_capacity=count(body, "kv_tokens_capacity"),
        frames_refused=count(body, "frames_refused"),
        micro_batches=number(body, "micro_batches_held"),
        states_used=count(body, "state_slots_used"),
        states_capacity=count(body, "state_slots_capacity"),
    )


def _link(body: Json) -> Link:
    return Link(
        source=text(body, "from"),
        target=text(body, "to"),
        rate_mbps=number(body, "rate_mbps"),
        rtt_ms=number(body, "rtt_ms"),
        queueing_delay_ms=number(body, "queueing_delay_ms"),
        decode_queued_bytes=count(body, "decode_queued_bytes"),
        prefill_queued_bytes=count(body, "prefill_queued_bytes"),
        decode_waiting=count(body, "decode_waiting"),
        prefill_waiting=count(body, "prefill_waiting"),
        bytes_sent=count(body, "bytes_sent"),
        in_flight_bytes=count(body, "in_flight_bytes"),
        foreign_upload=flag(body, "foreign_upload"),
        codec=text(body, "wire"),
        bytes_saved=int(number(body, "bytes_saved") or 0),
    )


def _forecast(body: Json) -> Forecast | None:
    if not body:
        return None
    return Forecast(
        users=count(body, "users"),
        tpot_s=number(body, "tpot_s"),
        tpot_alone_s=number(body, "tpot_alone_s"),
        ttft_s=number(body, "ttft_s"),
        tokens_per_s=number(body, "tokens_per_s"),
        bottleneck=text(body, "bottleneck"),
    )


def _node(body: Json) -> Node:
    profile, memory, shadow = (part(body, name) for name in ("profile", "memory", "shadow"))
    given, paths, ring = part(body, "contribution"), part(body, "paths"), number(body, "ring")
    return Node(
        id=text(body, "id"),
        name=text(body, "name"),
        pc=text(body, "pc"),
        state=text(body, "state"),
        reason=text(body, "reason"),
        drained=flag(body, "drained"),
        quarantined=flag(body, "quarantined"),
        ring=None if ring is None else int(ring),
        layers=pair(body, "layers"),
        loaded=number(body, "loaded"),
        device=text(body, "device"),
        lent_bytes=count(memory, "lent_bytes"),
        total_bytes=count(memory, "total_bytes"),
        upload_mbps=number(profile, "upload_mbps"),
        upload_cap_mbps=number(profile, "upload_cap_mbps"),
        download_mbps=number(profile, "download_mbps"),
        coordinator_rtt_ms=number(profile, "coordinator_rtt_ms"),
        nat=text(profile, "nat"),
        paths=tuple((text({"": to}, ""), text(paths, to)) for to in paths),
        layer_step_s=_layer_step_s(part(profile, "steps")),
        uptime_s=count(given, "uptime_s"),
        token_layers=count(given, "token_layers"),
        bytes_sent=count(given, "bytes_sent"),
        doubts=texts(body, "doubts"),
        covers=text(body, "covers"),
        behind=(count(shadow, "tokens"), number(shadow, "seconds") or 0.0) if shadow else None,
        version=text(body, "version"),
    )


def _layer_step_s(steps: Json) -> float | None:
    fixed = number(steps, "decode_fixed_s")
    return None if fixed is None else fixed + (number(steps, "decode_row_s") or 0.0)
