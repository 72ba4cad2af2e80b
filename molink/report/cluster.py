"""A cluster as `GET /cluster` tells it: rings with stages and links, and all nodes.

Figures are those of the last health reports, at most a second old. Times are in seconds, sizes in
bytes, unless a name says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from molink.report.cell import CellReport, StageLenderReport
from molink.report.drafts import DrafterReport
from molink.report.kv_pairs import PairReport
from molink.report.nodes import NodeReport
from molink.report.prefix_cache import CacheReport
from molink.report.requests import EndedReport, GoodputReport

COORDINATOR = "coordinator"
"""Name of the coordinator as the end of a link."""


@dataclass(frozen=True, slots=True)
class StageReport:
    """Stage of a ring, with its figures of the last half second."""

    node: str
    """Name of the node that holds it."""
    pid: int | None
    """Process id, where the process runs on the coordinator's machine."""
    layers: tuple[int, int]
    """[first, behind the last]."""
    device: str
    dtype: str
    """Number format in which it computes."""
    kv_dtype: str
    """Number format of its KV cache."""
    attention_fallback: str | None
    """Why torch computes attention on a card in place of our kernel; None: it does not."""
    decode_fallback: str | None
    """Why decode steps of a card are launched, not replayed; None: none are."""
    fusion_fallback: str | None
    """Why the library computes between a layer's products; None: kernels do."""
    swap_fallback: str | None
    """Parts computed the library's way, as a faster module was off; None: nothing is."""
    weights_bytes: int
    kv_tokens_capacity: int
    """Tokens for which the KV cache has room."""
    kv_tokens_used: int
    kv_tokens_cached: int | None
    """Tokens in blocks of the prefix cache, in use or not; None: not told."""
    state_slots_capacity: int | None
    """Requests whose states it can keep at a time; None: its layers keep none."""
    state_slots_used: int | None
    busy_s: float
    """Seconds of computing since the start."""
    busy_share: float
    """Part of the last half second that was spent computing, 0 to 1."""
    steps: int
    """Batches computed since the start."""
    decode_step_s: float | None
    """Smoothed time of a decode step; 0: it has computed none, None: it has not reported."""
    prefill_row_s: float | None
    """Smoothed time of a prompt's token; 0: it has computed none, None: it has not reported."""
    decode_round_s: float | None
    """Smoothed time between two visits of a micro-batch."""
    micro_batch_count: int | None
    """Micro-batches that may circle; on the head only."""
    micro_batches_held: float | None
    """Mean of micro-batches waiting or computed here in the last half second; None: not told."""
    micro_batches_circling: float | None
    """Mean of micro-batches that circled in the last half second; on the head only."""
    frames_refused: int
    """Messages of the previous stage that could not be used."""
    kv_token_bytes: int = 0
    """Bytes that each token of a request keeps, in all of its layers; 0: not told."""
    kv_request_bytes: int = 0
    """Bytes that a request keeps whatever its length: states, and KV of windows."""
    folds: int = 1
    """Blocks of its layers that keep all of a cut prompt that lie in one block; 1: none does."""
    lender: StageLenderReport | None = None
    """Left out where it has never had a lender."""
    pair: PairReport | None = None
    """Its end of a hand-over of KV; None: it has none."""
    silent_s: float = 0.0
    """Seconds for which a neighbour and the coordinator have heard nothing of it; 0: they do."""

    @property
    def kv_share(self) -> float | None:
        """Part of the KV cache that is in use."""
        return self.kv_tokens_used / self.kv_tokens_capacity if self.kv_tokens_capacity else None


@dataclass(frozen=True, slots=True)
class EmulatedLink:
    """Home link that every hop of a ring emulates."""

    mbps: float
    one_way_ms: float


@dataclass(frozen=True, slots=True)
class RingLink:
    """Directed link of a ring; ends are names of nodes, or the coordinator."""

    source: str
    """Name of the end that sends."""
    target: str
    """Name of the end that receives."""
    messages_sent: int
    """Messages since the start."""
    bytes_sent: int
    """Bytes since the start."""
    decode_waiting: int
    """Messages of decode of which something has not left."""
    prefill_waiting: int
    """Messages of prompts of which something has not left."""
    decode_queued_bytes: int
    prefill_queued_bytes: int
    chunk_bytes: int
    """Size of a chunk now."""
    rate_mbps: float | None
    """Believed rate."""
    rtt_ms: float | None
    """Round trip without queueing and without the chunk's own time."""
    queueing_delay_ms: float | None
    in_flight_bytes: int
    """Bytes sent and not acknowledged."""
    foreign_upload: bool
    """Whether others seem to use the uplink."""
    acks_refused: int
    """Acknowledgements that cannot be."""
    emulated: EmulatedLink | None
    """Home link that it emulates; None: it is as it is."""
    wire: str | None = None
    """Codec of its activations; left out where it carries none."""
    bytes_saved: int | None = None
    """Bytes that packing has saved, below 0 where it cost some; left out where it carries none."""

    @property
    def ends(self) -> tuple[str, str]:
        """Names of its source and its target."""
        return self.source, self.target

    @property
    def rtt_s(self) -> float | None:
        """Round trip without queueing."""
        return None if self.rtt_ms is None else self.rtt_ms / 1000

    @property
    def decode_wait_s(self) -> float:
        """How long the decode bytes that are queued take to leave."""
        return 8 * self.decode_queued_bytes / (1e6 * self.rate_mbps) if self.rate_mbps else 0.0


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Sequences on a ring, by what they do."""

    running: int
    waiting: int
    without_room: int = 0
    """Those of the waiting ones that may grow beyond the room that the ring has for KV now."""


@dataclass(frozen=True, slots=True)
class RingCodec:
    """Codec of a ring's links, and why."""

    codec: str
    reason: str
    check_passed: bool | None
    """Whether the wanted codec passed its check; None where there was none."""


@dataclass(frozen=True, slots=True)
class RingForecast:
    """Forecast by which a ring was planned."""

    users: int
    """Users that it serves at once within the bound on the time per token."""
    tpot_s: float | None
    """Seconds per token with all of them."""
    tpot_alone_s: float | None
    """Seconds per token of one alone."""
    ttft_s: float | None
    """Seconds to the first token."""
    tokens_per_s: float | None
    """Tokens of all of them together."""
    bottleneck: str


@dataclass(frozen=True, slots=True)
class PaceReport:
    """Pace of a ring beside the answers that it gives now, as its own tokens have told."""

    tpot_s: float
    """Mean seconds between two tokens of an answer."""
    tbt_p90_s: float
    """Seconds that 90 % of the gaps between tokens stay within."""
    tbt_p99_s: float
    """Seconds that 99 % of them stay within."""


@dataclass(frozen=True, slots=True)
class RingReport:
    """Ring that serves; the first stage is its head."""

    model: str
    epoch: int
    """Number of its stages' present assignment; it rises when the ring is mended."""
    stages: tuple[StageReport, ...]
    links: tuple[RingLink, ...]
    """Links in the order in which a request meets them; of a stage that has not reported, none."""
    requests: RequestCounts
    wire: RingCodec
    prefix_cache: CacheReport | None
    """None: the ring caches nothing."""
    requests_left_lying: int
    """Requests that had to be moved because the ring had left them lying."""
    number: int
    """Number of the ring, counted since the coordinator's start."""
    forecast: RingForecast | None
    """None: its nodes were not measured."""
    drafters: tuple[DrafterReport, ...] = ()
    """Those who have guessed tokens."""
    pace: PaceReport | None = None
    """Left out until enough gaps between tokens have told."""
    quiet_s: float | None = None
    """Seconds since an answer under way got a token; left out while none has had one."""

    @property
    def round_s(self) -> float | None:
        """Seconds between two visits of a micro-batch at the head."""
        return self.stages[0].decode_round_s if self.stages else None

    @property
    def micro_batches(self) -> int | None:
        """Micro-batches that may circle."""
        return self.stages[0].micro_batch_count if self.stages else None

    @property
    def circling(self) -> float | None:
        """Micro-batches that circled in the last half second, as a mean; None: not told."""
        return self.stages[0].micro_batches_circling if self.stages else None

    def link_to(self, index: int) -> RingLink | None:
        """The link by which a stage gets its input; for the head, that of the tail."""
        source = self.stages[index - 1].node
        return self.link(source, self.stages[index].node)

    def link(self, source: str, target: str) -> RingLink | None:
        """The link between two; None: it has not been reported."""
        return next((one for one in self.links if one.ends == (source, target)), None)


@dataclass(frozen=True, slots=True)
class BuildReport:
    """MoLink of the coordinator."""

    version: str
    protocol: int
    """Newest protocol between coordinator and nodes that it speaks."""
    protocol_min: int
    """Oldest protocol that it speaks."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Audits since the start, by their end."""

    share: float
    """Part of the requests that is audited, 0 to 1."""
    passed: int
    failed: int
    unfinished: int
    spans: int
    """Pieces of stages' work that were compared."""
    unfinished_by: Mapping[str, int]
    """Unfinished audits by the reason, those that were tried once more among them."""


@dataclass(frozen=True, slots=True)
class RelayReport:
    """Relay for nodes that cannot reach each other."""

    address: str
    """Where it listens."""
    trouble: str
    """Why it does not work; empty: it does."""


@dataclass(frozen=True, slots=True)
class CertificateReport:
    """Certificate that a coordinator shows, or of who has signed it."""

    name: str
    """`api`: users are shown it; `agents`: agents are; `authority`: that of --tls-ca."""
    ends_unix_s: float
    """When it is refused from, seconds since 1970; of a chain the first end."""


@dataclass(frozen=True, slots=True)
class InvitesReport:
    """Invites with which a PC can join."""

    open: int
    next_ends_unix_s: float | None
    """When the first of them ends, seconds since 1970; None: there is none."""


@dataclass(frozen=True)
class ClusterReport:
    """Rings, nodes, and what a coordinator has to say of itself."""

    model: str
    rings: tuple[RingReport, ...]
    unready_reason: str | None
    """Why requests are refused; None: they are not."""
    intake_paused: bool
    """Whether the operator has paused the intake of requests."""
    nodes: tuple[NodeReport, ...]
    """All nodes that have joined, by name."""
    build: BuildReport
    trouble: tuple[str, ...]
    """Sentences on what fails: broker, disk, books, audits."""
    audits: AuditReport | None = None
    relay: RelayReport | None = None
    """Left out by `molink serve`, whose nodes need none."""
    cell: CellReport | None = None
    """Left out by `molink serve`, whose nodes lend nothing to each other."""
    goodput: GoodputReport | None = None
    """Left out until a request with targets has ended."""
    unix_s: float = 0.0
    """Time of the report, seconds since 1970."""
    last_minute: EndedReport | None = None
    """Left out until a request has ended."""
    disk_free_bytes: int | None = None
    """Room on the coordinator's disk; left out where nothing is kept."""
    certificates: tuple[CertificateReport, ...] | None = None
    """Those that are shown since the start; left out without TLS."""
    invites: InvitesReport | None = None
    """Left out by `molink serve`, which no PC joins."""

    @property
    def troubles(self) -> tuple[str, ...]:
        """Sentences on what fails, the relay among it."""
        own = (self.relay.trouble,) if self.relay is not None and self.relay.trouble else ()
        return self.trouble + own

    @cached_property
    def nodes_by_name(self) -> dict[str, NodeReport]:
        """Nodes by the names that stages and links have."""
        return {node.name: node for node in self.nodes}

    @property
    def running(self) -> int:
        """Sequences that run, on all rings."""
        return sum(ring.requests.running for ring in self.rings)

    @property
    def waiting(self) -> int:
        """Sequences that wait, on all rings."""
        return sum(ring.requests.waiting for ring in self.rings)

    def counts(self) -> dict[str, int]:
        """How many nodes there are in each state."""
        found: dict[str, int] = {}
        for node in self.nodes:
            found[node.state] = found.get(node.state, 0) + 1
        return found
