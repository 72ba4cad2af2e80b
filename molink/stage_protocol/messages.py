"""How a stage process talks with its supervisor: one JSON object a line over its standard streams.

The supervisor (a `StageManager` of `molink serve` or of an agent) sends commands to the child's
standard input and reads facts from its standard output; when the input closes the child ends, so
that no stage outlives whoever started it. Tokens and tensors never pass here.
"""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from molink.errors import FrameError
from molink.stage_protocol.health import StageHealth, health_from_fields
from molink.transport.curve import CurveKeys, check_keys
from molink_scheduler.link.facts import LinkMemory

__all__ = [
    "Command",
    "Fact",
    "JoinRing",
    "LoadProgressed",
    "LoadStage",
    "MovePath",
    "OutgoingLink",
    "PathMoved",
    "SetAllowed",
    "SetUploadCap",
    "StageFailed",
    "StageLoaded",
    "StageReady",
    "Steering",
    "decode_line",
    "encode_line",
]


OutgoingLink = Literal["next", "coordinator"]
"""Names of the links that leave a stage."""


@dataclass(frozen=True, slots=True)
class LoadStage:
    """Command: load these layers and listen for the links that lead here."""

    model: str
    """A local directory, or a hub id."""
    layers: tuple[int, int]
    """[start, end)."""
    device: str
    dtype: str
    threads: int
    kv_tokens: int | None
    """KV capacity wanted; None lets the stage choose from the memory that is free."""
    address: str
    """Where its links listen, an IPv4 address or a name of the stage's own machine."""
    stages_here: int = 1
    """How many stages of the ring share its machine's memory."""
    keys: CurveKeys | None = None
    """Its own pair, and whom its links accept; None: its links are not encrypted."""


@dataclass(frozen=True, slots=True)
class JoinRing:
    """Command: connect to the neighbours and start."""

    epoch: int
    next_address: str
    """The next stage, or the head when this is the tail."""
    coordinator_address: str | None
    """Where the tail sends its copy of each token; None elsewhere."""
    kv_tokens_capacity: int
    """The smallest on the ring: what the head admits by."""
    micro_batch_count: int | None
    """None: the measured round decides."""
    micro_batch_candidates: tuple[int, ...]
    span_tokens: int | None
    """None: as the links allow."""
    policy: str
    """Which transmission scheduler the links use."""
    upload_bytes_per_s: float | None
    """The node's cap on everything that it uploads; None: no cap."""
    next_memory: LinkMemory | None = None
    """What was last known of the link to the next stage..."""
    coordinator_memory: LinkMemory | None = None
    """...and of that to the coordinator."""
    next_key: str | None = None
    """The next stage's public key in Z85; None where links are not encrypted..."""
    coordinator_key: str | None = None
    """...and the coordinator's."""


@dataclass(frozen=True, slots=True)
class SetAllowed:
    """Command: accept these keys (Z85) from now on and nobody else, on open links too."""

    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        check_keys(self.keys)


@dataclass(frozen=True, slots=True)
class SetUploadCap:
    """Command: upload no more than this from now on, activations included."""

    bytes_per_s: float | None
    """None: no cap."""

    def __post_init__(self) -> None:
        if self.bytes_per_s is not None and not 0 < self.bytes_per_s < math.inf:
            raise ValueError("an upload cap is above 0 bytes a second")


@dataclass(frozen=True, slots=True)
class MovePath:
    """Command: lead a link to another address of the same neighbour; PathMoved answers."""

    link: OutgoingLink
    address: str

    def __post_init__(self) -> None:
        if self.link not in get_args(OutgoingLink) or not isinstance(self.address, str):
            raise ValueError("a path is of one of the links that leave, and leads to an address")


@dataclass(frozen=True, slots=True)
class LoadProgressed:
    """Fact: this part of the weights is read."""

    fraction: float


@dataclass(frozen=True, slots=True)
class StageLoaded:
    """Fact: the layers are there, and links may connect."""

    port: int
    """Where the previous stage connects (the tail, when this is the head)."""
    coordinator_port: int | None
    """Where the coordinator connects; only on the head."""
    device: str
    dtype: str
    kv_tokens_capacity: int
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class StageReady:
    """Fact: every link that leaves here was answered."""


@dataclass(frozen=True, slots=True)
class PathMoved:
    """Fact: how a MovePath ended, the link carried on meanwhile; or, unasked and not moved, that
    nothing is acknowledged at this address any more and another way is wanted."""

    link: OutgoingLink
    address: str
    moved: bool
    """Whether it leads there; else it leads where it did before."""
    reason: str
    """One clause for a person, when it does not."""


@dataclass(frozen=True, slots=True)
class StageFailed:
    """Fact: the stage cannot go on; it ends after this."""

    message: str
    """One sentence for a person."""
    user_fault: bool
    """Whether the operator's input was wrong (exit code 2) rather than something of ours."""


Steering = SetAllowed | MovePath | SetUploadCap
"""Commands that a stage takes at any time, and at once."""

Command = LoadStage | JoinRing | Steering
Fact = LoadProgressed | StageLoaded | StageReady | PathMoved | StageHealth | StageFailed

_KINDS: dict[str, type[Command | Fact]] = {
    "load_stage": LoadStage,
    "join_ring": JoinRing,
    "set_allowed": SetAllowed,
    "set_upload_cap": SetUploadCap,
    "move_path": MovePath,
    "load_progressed": LoadProgressed,
    "stage_loaded": StageLoaded,
    "stage_ready": StageReady,
    "path_moved": PathMoved,
    "stage_health": StageHealth,
    "stage_failed": StageFailed,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def encode_line(value: Command | Fact) -> bytes:
    """One line of JSON, newline included."""
    return json.dumps({"kind": _NAMES[type(value)], **asdict(value)}).encode() + b"\n"


def decode_line(line: bytes) -> Command | Fact:
    """The command or fact of one line. Raises FrameError when it is none."""
    try:
        fields: dict[str, Any] = json.loads(line)
        kind = _KINDS[fields.pop("kind")]
        if kind is StageHealth:
            return health_from_fields(fields)
        if kind is JoinRing:
            fields["micro_batch_candidates"] = tuple(fields["micro_batch_candidates"])
            for memory in ("next_memory", "coordinator_memory"):
                if fields[memory] is not None:
                    fields[memory] = LinkMemory(**fields[memory])
        if kind is LoadStage:
            start, end = fields["layers"]
            fields["layers"] = (start, end)
            if fields.get("keys") is not None:
                keys = fields["keys"]
                fields["keys"] = CurveKeys(**keys | {"allowed": tuple(keys["allowed"])})
        if kind is SetAllowed:
            fields["keys"] = tuple(fields["keys"])
        return kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FrameError(f"not a line between a stage and its supervisor: {line[:80]!r}") from error
