"""Messages between a stage process and its supervisor: a JSON object a line over standard streams.

The supervisor (a `StageManager` of `molink serve` or of an agent) sends commands to the child's
standard input and reads facts from its standard output; when the input closes the child ends, so
that no stage outlives the process that started it. Tokens and tensors never pass here.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Ge, Le, MaxLen, Predicate

from molink.checkpoint.kv_format import KvDtype
from molink.errors import FrameError
from molink.json_object import JsonObject
from molink.stage_protocol.cache_room import CacheRoom
from molink.stage_protocol.draft_model import TROUBLE_CHARS_MAX, DraftModel
from molink.stage_protocol.health import FIGURE_MAX, RoomOffer, StageHealth
from molink.stage_protocol.lan_lease import LanLease
from molink.stage_protocol.pairing import Pairing
from molink.wire.curve_keys import CurveKeys, check_keys
from molink.wire.kinds import Kinds
from molink.wire.schema import Inline, Rules, Schema
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.changes import NOWHERE, AwayBlocks
from molink_scheduler.kv.tiers import CACHE_RUNS_MAX, CacheTiers
from molink_scheduler.resume import RESUMED_MAX, Positions, Resume

OutgoingLink = Literal["next", "coordinator", "shadow"]
"""Names of the links that leave a stage; the last leads to the shadow of the next one."""


Port = Annotated[int, Ge(1), Le(65_535)]

Name = Annotated[str, MaxLen(20), Predicate(str.isprintable)]
"""Name of a device or a number format; it is printed where a stage runs."""

Reason = Annotated[str, MaxLen(200), Predicate(str.isprintable)]
"""A clause for a person."""

Trouble = Annotated[str, MaxLen(TROUBLE_CHARS_MAX), Predicate(str.isprintable)]
"""A sentence for a person, with what else has been said of it."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """Layers that a stage holds, and how it computes them."""

    layers: tuple[int, int]
    """Layers [start, end) of the stage."""
    device: Name
    dtype: Name
    kv_tokens: int | None = None
    """KV capacity wanted; None lets the stage choose from the memory that is free."""
    threads: Annotated[int, Ge(1), Le(1024)] = 1
    kv_dtype: KvDtype = "auto"
    kv_host_tokens: Annotated[int, Ge(0)] = 0
    """Tokens of KV beyond these that may lie at a lender: in the PC's memory, or by `lan_lease`."""
    drafts: bool = False
    """Whether its ring's tail drafts with a layer of the checkpoint, which that holds beside its
    own: token ids go round with rows."""
    lan_lease: LanLease | None = None
    """Room in another PC of its LAN, where its lender is; None: that is in its own PC."""


HOST = "host"
"""An `attention_device`: the PC's memory, attended to by its CPU."""

WORK_FIELDS = (
    *("layers", "device", "dtype", "threads", "kv_tokens", "kv_dtype", "kv_host_tokens"),
    *("drafts", "lan_lease"),
)
"""Fields of a stage's work, in the order of the command that loads it."""


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Command: load these layers and listen for the links that lead here."""

    model: str
    """A local directory, or a hub id."""
    work: Annotated[StageWork, Inline(WORK_FIELDS)]
    address: str
    """Address where its links listen, an IPv4 address or a name of the stage's own machine."""
    stages_here: int = 1
    """How many stages of the ring share its machine's memory."""
    keys: CurveKeys | None = None
    """Own pair of keys, and whom its links accept; None: its links are not encrypted."""
    memory_bytes: int | None = None
    """Bytes of its device's memory, at most; None: what there is."""
    cache_room: CacheRoom | None = None
    """Room for cached KV; None: it stays in the device's memory."""
    drafter: DraftModel | None = None
    """Model that drafts beside its layers; None: there is none."""
    attention_device: Name = ""
    """Device with its KV, where its process attends while another one has the weights: "host", or a
    card; empty: KV lies with the weights."""
    pairing: Pairing | None = None
    """Its end of the hand-over of KV between two rings; None: it has none."""
    first_port: int = 0
    """Least of the LINK_PORTS ports at which its links listen; 0: any free ones."""


@dataclass(frozen=True, slots=True)
class JoinRing:
    """Command: connect to the neighbours and start."""

    epoch: int
    next_address: str
    """Address of the next stage, or of the head when this is the tail."""
    coordinator_address: str | None
    """Address to which the tail sends its copy of each token; None elsewhere."""
    ring: Annotated[RingTerms, Inline()]
    upload_bytes_per_s: float | None
    """The node's cap on everything that it uploads; None: no cap."""
    next_key: str | None = None
    """Public key of the next stage in Z85; None where links are not encrypted."""
    coordinator_key: str | None = None
    """Public key of the coordinator in Z85; None where links are not encrypted."""
    resume: Resume | None = None
    """Requests and blocks with which a ring goes on that has lost a stage; None: it begins."""
    next_relayed: bool = False
    """Whether the relay leads to the next stage: a neighbour is not gone because that is."""


@dataclass(frozen=True, slots=True)
class FollowRing:
    """Command: be the shadow of a stage of this ring, which passes nothing on."""

    epoch: int
    ring: Annotated[RingTerms, Inline()]


@dataclass(frozen=True, slots=True)
class SetAllowed:
    """Command: accept these keys (Z85) and no others from now on, on open links too."""

    keys: tuple[str, ...]
    """The previous stage's (at the head: the tail's), then the coordinator's."""

    def __post_init__(self) -> None:
        check_keys(self.keys)


@dataclass(frozen=True, slots=True)
class SetUploadCap:
    """Command: upload no more than this from now on, activations included."""

    bytes_per_s: float | None
    """Cap on the upload; None: no cap."""

    def __post_init__(self) -> None:
        if self.bytes_per_s is not None and not 0 < self.bytes_per_s < math.inf:
            raise ValueError("an upload cap is above 0 bytes a second")


@dataclass(frozen=True, slots=True)
class SetCacheRam:
    """Command: hold no more cached KV in host memory than this from now on, of what was taken when
    the stage loaded."""

    lent_bytes: Annotated[int, Ge(0)] | None
    """Bytes; None: all that was taken."""


@dataclass(frozen=True, slots=True)
class SetPair:
    """Command: be this end of a hand-over of KV from now on, in place of any other."""

    pairing: Pairing | None = None
    """None: of none."""


@dataclass(frozen=True, slots=True)
class SetShadow:
    """Command: from now on send the next stage's shadow what the ring leaves time for."""

    epoch: int
    """Epoch of the ring; in any other the command is void."""
    address: str | None
    """Address of the shadow; None: the next stage has no shadow any more."""
    key: str | None = None
    """Public key of the shadow in Z85; None where links are not encrypted."""


@dataclass(frozen=True, slots=True)
class HoldLinks:
    """Command: give no link up until the next EnterRing. The ring has lost a stage, and it may take
    longer than a neighbour waits by itself until another one is in its place."""


@dataclass(frozen=True, slots=True)
class SetRoom:
    """Command: offer the ring room for so many tokens of KV from now on, as far as there are places
    for them. Fewer are given back once the ring's head counts with fewer."""

    kv_tokens: Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True)
class Borrow:
    """Command: have KV of so many tokens lie at this lender as well, where none holds any; the ring
    is offered the places once they are there. Of the lease that it has, for fewer: the others are
    wanted back, and are given back once the ring counts with fewer."""

    kv_host_tokens: Annotated[int, Ge(0)]
    lan_lease: LanLease


@dataclass(frozen=True, slots=True)
class MovePath:
    """Command: lead a link to another address of the same neighbour; PathMoved answers."""

    link: OutgoingLink
    address: str
    relayed: bool = False
    """Whether the relay leads there."""


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """Fact: this part of the weights is read."""

    fraction: float


@dataclass(frozen=True, slots=True)
class StageLoaded:
    """Fact: the layers are there, and links may connect."""

    port: Port
    """Port where the previous stage connects (the tail, when this is the head)."""
    coordinator_port: Port | None
    """Port where the coordinator connects; only on the head."""
    device: str
    dtype: str
    kv_tokens_capacity: int
    weights_bytes: int
    state_slots: int | None = None
    """Requests whose states or windows it can keep at a time; None: its layers keep none."""
    kv_dtype: KvDtype = "auto"
    attention_fallback: Reason | None = None
    """Why torch computes attention on a card in place of our kernel; None: it does not."""
    decode_fallback: Reason | None = None
    """Why some or all decode steps of a card are launched, not replayed; None: none are."""
    fusion_fallback: Reason | None = None
    """Why the library's operations compute, on a card, what kernels could between a layer's
    products, all of it or some; None: they do not."""
    swap_fallback: Reason | None = None
    """Parts computed the library's way, as a faster module was off with the weights that serve, and
    by how much; None: nothing is."""
    tiers: CacheTiers | None = None
    """Room for cached KV below the device's memory; None: there is none."""
    state_snapshots: int = 0
    """Snapshots of states that it has room for, for the prefix cache."""
    can_go_back: bool = False
    """Whether its slots hold windows of KV alone: a request may go on from a few tokens before, as
    it may where there are no slots. Recurrences move on for good."""
    kv_token_bytes: int = 0
    """Bytes that each token of a request keeps in its layers."""
    kv_request_bytes: int = 0
    """Bytes that a request keeps whatever its length: states, and KV of windows."""
    requests_max: int | None = None
    """Requests that it has room of its own for at a time, where other KV lies at a lender; None: as
    many as have blocks."""
    drafts: bool = False
    """Whether it has the checkpoint's layer that drafts, on the tail of a ring."""
    drafter_trouble: Trouble | None = None
    """Why the model that was to draft here does not; None: it does, or there is none."""
    folds: int = 1
    """Blocks of layers that keep all of a cut prompt for which one of its blocks has room."""


@dataclass(frozen=True, slots=True)
class StageReady:
    """Fact: every link that leaves here was answered."""

    epoch: int = 0
    """Epoch of the order to join; of an older one it may come when the next has been sent."""
    missing: Annotated[tuple[int, ...], MaxLen(RESUMED_MAX)] = ()
    """Requests of `JoinRing.resume` that this stage cannot go on with."""
    cached: Annotated[Positions, MaxLen(CACHE_RUNS_MAX)] = ()
    """Runs of cached blocks that may stay (`Resume.chains_stay`)."""
    offer: RoomOffer = field(default_factory=RoomOffer)
    """The last room that it has offered to its ring."""
    away: AwayBlocks = NOWHERE
    """Blocks below its device's memory that may stay, too."""


@dataclass(frozen=True, slots=True)
class PathMoved:
    """Fact: how a MovePath ended, the link carried on meanwhile; or, unasked and not moved, that
    nothing is acknowledged at this address any more and another way is wanted."""

    link: OutgoingLink
    address: str
    moved: bool
    """Whether it leads there; else it leads where it did before."""
    reason: str
    """Clause for a person, when the link does not move."""


@dataclass(frozen=True, slots=True)
class StageFailed:
    """Fact: the stage cannot go on; it ends after this."""

    message: str
    """Sentence for a person."""
    user_fault: bool
    """Whether the operator's input was wrong (exit code 2) rather than something of ours."""
    link: OutgoingLink | None = None
    """Link that was lost, or could not be opened; None: it was no link."""
    device_full: bool = False
    """Whether its device had no memory for what it was to hold, or for a step."""


LinkSteering = SetAllowed | MovePath | SetUploadCap | SetShadow | HoldLinks
"""Commands about links that a stage takes at any time, and at once."""

Steering = LinkSteering | SetCacheRam | SetPair
"""All commands that a stage takes so."""

EnterRing = JoinRing | FollowRing
"""Commands to take part in a ring's epoch."""

RoomCommand = SetRoom | Borrow
"""Commands about a stage's room, of each kind the last."""

LoopCommand = LoadStage | EnterRing | SetRoom
"""Commands that a stage's loop takes between two steps; a running stage hears of them before."""

BetweenSteps = LoopCommand | Borrow
"""All commands that a stage takes between two steps."""

LinkSteered = Callable[[LinkSteering | BetweenSteps], None]
"""Carries out what a running stage is told of its links."""

Steered = Callable[[Steering | BetweenSteps], None]
"""Carries out all that a running stage is told."""

Command = BetweenSteps | Steering
Fact = LoadProgressed | StageLoaded | StageReady | PathMoved | StageHealth | StageFailed

LINES: Kinds[Command | Fact] = Kinds(
    {
        "load_stage": LoadStage,
        "join_ring": JoinRing,
        "follow_ring": FollowRing,
        "set_room": SetRoom,
        "borrow": Borrow,
        "set_allowed": SetAllowed,
        "set_shadow": SetShadow,
        "set_upload_cap": SetUploadCap,
        "set_cache_ram": SetCacheRam,
        "set_pair": SetPair,
        "hold_links": HoldLinks,
        "move_path": MovePath,
        "load_progressed": LoadProgressed,
        "stage_loaded": StageLoaded,
        "stage_ready": StageReady,
        "path_moved": PathMoved,
        "stage_health": StageHealth,
        "stage_failed": StageFailed,
    },
    Rules(),
)

REPORTED = Rules(least=0, most=FIGURE_MAX, text_max=40, unknown_ok=True)
"""Rules for what comes from a stranger's PC, perhaps of a newer version, and is computed with."""

HEALTH, LOADED = Schema(StageHealth, REPORTED), Schema(StageLoaded, REPORTED)
TERMS, RESUME = Schema(RingTerms, REPORTED), Schema(Resume, REPORTED)
"""Schemas by which nodes and coordinator pass them on."""


def encode_line(value: Command | Fact) -> bytes:
    """Line of JSON, newline included."""
    kind, fields = LINES.write(value)
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def decode_line(line: bytes) -> Command | Fact:
    """The command or fact of one line. Raises FrameError when it is none."""
    try:
        fields: JsonObject = json.loads(line)
        kind = fields.pop("kind")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise FrameError(f"not a line between a stage and its supervisor: {line[:80]!r}") from None
    return LINES.read(kind, fields)
