"""Messages of the control plane. They are checked where they arrive: a sender may lie.

Unknown keys are ignored, so that an older coordinator understands a newer agent. Numbers
that a node reports of itself are bounded here by what no PC exceeds; whether they are true, its
neighbours and its own stage's steps show.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from molink.control.messages.base import (
    NUMBER_MAX,
    Address,
    Bytes,
    ClockTime,
    Embedded,
    Key,
    Mbps,
    Message,
    Milliseconds,
    ModelName,
    ModelSize,
    Name,
    NodeId,
    Number,
    OptionalAddress,
    ProtocolNumber,
    Seconds,
    Sentence,
    ShortText,
    Token,
    Unreadable,
    Word,
)
from molink.control.messages.cell import CellFacts
from molink.control.versions import PROTOCOL_IF_UNSTATED
from molink.json_object import JsonObject
from molink.stage_protocol.draft_model import DRAFTER_KV_TOKENS_MAX
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.lan_lease import LanLease
from molink.stage_protocol.messages import HEALTH, LOADED, StageLoaded, StageReady, StageWork
from molink_scheduler.kv.changes import AwayBlocks
from molink_scheduler.kv.tiers import CACHE_RUNS_MAX
from molink_scheduler.resume import RESUMED_MAX


class Device(Message):
    """A device of a PC that may hold a stage."""

    kind: Literal["cpu", "cuda"]
    index: Annotated[int, Field(ge=0, le=63)] = 0
    name: ShortText
    memory_bytes: Bytes
    """All memory of the device."""
    free_bytes: Bytes
    """Memory that the owner lends now: the least of what is free and of the cap."""
    cap_bytes: Bytes | None = None
    """Cap that the owner has set; what holds a stage today must fit into it, too."""
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    element_bytes: Literal[2, 4] = 2
    """Bytes of a weight or a key in the number format that this device computes in by itself."""


class StepCost(Message):
    """Measured times of one decoder layer of the cluster's model: t(rows) = fixed + rows x row."""

    model: ModelName
    decode_fixed_s: Seconds
    decode_row_s: Seconds
    prefill_row_s: Seconds
    head_row_s: Seconds = 0.0
    """Output matrix and sampling of one row, on the tail only."""


class FormatCost(Message):
    """Measured times of products with a billion weights that a device holds in one format, whatever
    the model: with its shape they come to step times before it was ever timed there."""

    format: ShortText
    """Name of a `molink.checkpoint.model_shape.WeightFormat`; others are not counted with."""
    read_s: Seconds
    """Time of the products with one row."""
    row_s: Seconds
    """Time that each of many rows takes."""


class Profile(Message):
    """A PC, and what its owner lends of it."""

    devices: Annotated[tuple[Device, ...], Field(max_length=16)]
    cpu_threads: Annotated[int, Field(ge=1, le=4096)]
    memory_bytes: Bytes
    disk_free_bytes: Bytes
    upload_mbps: Mbps
    """Measured to the coordinator, or the owner's cap if that is less; 0: unknown."""
    download_mbps: Mbps
    """Measured from the coordinator; 0: unknown."""
    upload_cap_mbps: Mbps | None = None
    coordinator_rtt_ms: Milliseconds | None = None
    nat: ShortText = "unknown"
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)] = ()
    """Where its peer service may be reached directly, best first."""
    direct: bool = True
    """Whether it lets anybody connect at all; without it every link that leads here is relayed."""
    clock_offset_s: ClockTime = 0.0
    steps: StepCost | None = None
    """None until it has measured the cluster's model."""
    formats: Annotated[tuple[FormatCost, ...], Field(max_length=32)] = ()
    """Empty until it has measured them; agents up to 0.1 do not."""


class PeerAddress(Message):
    """A neighbour that a node shall measure: where it is, and with which token."""

    node_id: NodeId
    public_key: Key
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)]
    token: Token = ""
    """Lets this node measure that one (`transport.peer.protocol.probe_token`)."""


class ProbeOrder(Message):
    """Order to measure the paths to these neighbours; a PathReport answers it."""

    round: Number
    """Counts up: a node measures once for each."""
    model: ModelName
    """Model of which a layer's step times are wanted."""
    config: JsonObject = Field(default_factory=dict)
    """The model's config.json: all that timing a layer of random weights needs."""
    peers: Annotated[tuple[PeerAddress, ...], Field(max_length=64)]
    coordinator_token: Token = ""
    """Lets it measure the path to the coordinator, through the coordinator's relay; empty: no."""


class PathMeasured(Message):
    """The path from this node to another, as it has measured it."""

    to: NodeId
    path: Literal["direct", "relay", "none"]
    address: OptionalAddress = ""
    rtt_ms: Milliseconds
    rate_mbps: Mbps
    """What this node can send there; 0: not measured."""


class PathReport(Message):
    """Report of all paths that a node has measured in a round."""

    round: Number
    paths: Annotated[tuple[PathMeasured, ...], Field(max_length=64)]


class RateSeen(Message):
    """Rate at which a neighbour has sent here while it measured the path."""

    sender: NodeId
    rate_mbps: Mbps


class RatesSeen(Message):
    """Rates at which neighbours' bytes came, by this node's own count, against which their own
    reports are checked."""

    rates: Annotated[tuple[RateSeen, ...], Field(max_length=64)]


class NodeState(StrEnum):
    """State of a node, as GET /cluster shows it."""

    JOINING = "joining"
    LOADING = "loading"
    SERVING = "serving"
    STANDBY = "standby"
    PAUSED = "paused"
    OUTDATED = "outdated"
    DRAINING = "draining"
    LOST = "lost"
    LEFT = "left"


class Presence(Message):
    """Presence of a node: it is there or, as its last will, is not."""

    name: Name
    incarnation: Annotated[Token, Field(min_length=8)]
    """Drawn at each start of the agent: two of them under one id are a copied data directory."""
    started_unix_s: ClockTime
    """Coordinator's clock as the agent knows it: of two incarnations the later one stays."""
    version: ShortText
    """For people; `protocol` is what counts."""
    protocol: ProtocolNumber = PROTOCOL_IF_UNSTATED
    online: bool
    reason: Sentence = ""


class Accepted(Message):
    """The start of an agent that counts; an agent of an earlier one, with the same keys, ends."""

    incarnation: Token
    started_unix_s: ClockTime


class Services(Message):
    """Services that the coordinator runs for its nodes, with this node's own keys to them."""

    relay: OptionalAddress = ""
    """host:port; empty: there is none."""
    relay_token: Token = Field(default="", repr=False)
    probe_key: Token = Field(default="", repr=False)
    """By which its peer service knows who may measure."""
    stun_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """UDP, at the coordinator's host; 0: it answers none."""
    model: ModelSize | None = None
    """What it serves; None: of an older coordinator."""


class WeightsSource(Message):
    """Source of a model's weights: the coordinator, or the hub. It holds no address: an agent asks
    the coordinator that it has joined, and shows its token to nobody else."""

    model: ModelName
    """Public name; the hub's id where it comes from there."""
    from_hub: bool = False


class AssignedDrafter(Message):
    """Model that drafts on the head of a ring, or on its tail, and where its node gets it."""

    weights: WeightsSource
    layers: Annotated[int, Field(ge=1, le=10_000)]
    kv_tokens: Annotated[int, Field(ge=1, le=DRAFTER_KV_TOKENS_MAX)]
    """Tokens of KV that it may hold."""
    refused: Sentence = ""
    """Why it is not to draft; empty: it is."""
    reads_from: Annotated[int, Field(ge=0, le=10_000)] | None = None
    """The first layer whose KV it reads, on the tail; None: it drafts on the head."""


@dataclass(frozen=True, slots=True)
class AssignedWork(StageWork):
    """Work of a stage on a node, and where the node gets the weights."""

    weights: WeightsSource = field(kw_only=True)
    prefix_cache: bool = field(default=True, kw_only=True)
    """Whether the ring is to cache KV, for which the node's owner may lend room."""
    drafter: AssignedDrafter | None = field(default=None, kw_only=True)
    """Model that drafts where the first layer is, or the last; None: there is none."""


class StageLink(Message):
    """Outgoing link of a stage: to whom it leads, and where that can be reached."""

    to: Word
    """A node id, or "coordinator"."""
    public_key: Key
    addresses: Annotated[tuple[Address, ...], Field(max_length=16)]
    """Tried in this order; the link's own port at the receiver."""
    port_name: Word
    """"ring" or "requests": which of the receiver's ports, when the path is relayed."""
    relay: OptionalAddress = ""
    """host:port of the relay that leads there too; empty: none."""


class StageFact(Message):
    """Progress of a node with an assignment."""

    revision: Number
    """Revision of the assignment that this fact is about."""
    kind: Literal["downloading", "loading", "loaded", "ready", "failed", "stopped"]
    fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    line: Annotated[StageLoaded | Unreadable | None, Embedded(LOADED, none={})] = Field(
        default_factory=lambda: None
    )
    """What the stage tells of itself once it is "loaded"."""
    message: Sentence = ""
    user_fault: bool = False
    """Whether a stage "failed" because what was asked for cannot be, as opposed to this node."""
    about: Annotated[str, Field(pattern=r"^([a-z2-7]{16}|coordinator)?$")] = ""
    """Other end of the lost link by which it "failed": a node id or "coordinator"; empty: no
    link."""
    missing: Annotated[tuple[Number, ...], Field(max_length=RESUMED_MAX)] = ()
    """Requests of `GoOn.resume` that a stage that is "ready" cannot go on with."""
    cached: Annotated[tuple[tuple[Number, Number], ...], Field(max_length=CACHE_RUNS_MAX)] = ()
    """Runs of cached blocks that may stay on a stage that is "ready"."""
    in_host: Annotated[tuple[tuple[Number, Number], ...], Field(max_length=CACHE_RUNS_MAX)] = ()
    """Runs in host memory that may stay, too."""
    in_file: Annotated[tuple[tuple[Number, Number], ...], Field(max_length=CACHE_RUNS_MAX)] = ()
    directory: Number = 0
    """Directory that has numbered these (`AwayBlocks`)."""
    offer: tuple[Number, Number] = (0, 0)
    """Number of the last offer of room for KV of a stage that is "ready", and its tokens."""

    @classmethod
    def of_ready(cls, revision: int, ready: StageReady) -> "StageFact":
        """A stage has joined, and says what it keeps."""
        return cls(
            revision=revision,
            kind="ready",
            missing=ready.missing,
            cached=ready.cached,
            in_host=ready.away.host,
            in_file=ready.away.file,
            directory=ready.away.directory,
            offer=(ready.offer.number, ready.offer.kv_tokens),
        )

    @property
    def away(self) -> AwayBlocks:
        """Blocks below the device's memory that may stay."""
        return AwayBlocks(self.in_host, self.in_file, self.directory)


class NodeHealth(Message):
    """Heartbeat of a node, with its stage's report when it has one."""

    incarnation: Token
    state: NodeState
    uptime_s: Annotated[float, Field(ge=0, le=NUMBER_MAX)]
    stage: Annotated[StageHealth | Unreadable, Embedded(HEALTH)] | None = None
    paths: Annotated[dict[Word, Word], Field(max_length=2)] = Field(default_factory=dict)
    """Outgoing link's name to "direct" or "relay"."""
    cell: CellFacts | None = None
    """What the PC lends to others of its LAN; None: nothing, or this is a further device of it."""


class NodeWish(Message):
    """Wish of a node's owner."""

    wish: Literal["serve", "pause", "leave"]
    reason: Sentence = ""


class LinkKeys(Message):
    """Keys of those who may connect to this node's links: the previous stage's (at the head the
    tail's), then the coordinator's."""

    revision: Number
    allowed: Annotated[tuple[Key, ...], Field(max_length=2)]


class ShadowOrder(Message):
    """Order to send the next stage's shadow what the ring leaves time for."""

    revision: Number
    epoch: Number
    """Epoch of the ring in which the order holds; in any other it is void."""
    protocol: ProtocolNumber = PROTOCOL_IF_UNSTATED
    """Protocol that the ring speaks, and so the shadow."""
    link: StageLink | None = None
    """Link to the shadow; None: there is no shadow any more."""


class StageLease(Message):
    """Lease that a stage of a ring is given while it serves: where its KV may lie as well."""

    ring: Number
    """Ring of the stage; one of any other gets nothing."""
    tokens: Annotated[int, Field(ge=0, le=NUMBER_MAX)]
    """Tokens of KV that it has room for; fewer than before: the others are wanted back."""
    lease: LanLease


class CoordinatorPresence(Message):
    """Presence of the coordinator."""

    online: bool
    session: Token
    """Drawn at each start: stages of an older one end."""
    model: ModelName = ""
    protocol: ProtocolNumber = PROTOCOL_IF_UNSTATED
    protocol_min: ProtocolNumber = PROTOCOL_IF_UNSTATED
    """It speaks these and all numbers between them."""
