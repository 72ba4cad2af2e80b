"""Scenario of a simulation: rings of stages and links, who asks for what, how the system works.

Frozen, plain and complete: the same scenario gives the same outcome, byte for byte. Units are
seconds, bytes, tokens, and megabits per second (10^6 bits) for rates of links.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from molink.workload.sessions import AgentSession
from molink_scheduler.batch import BatchClass
from molink_scheduler.head.settings import REPLAY_LOG_BYTES
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.routing.admission import NO_TARGETS, AdmissionPolicy, Targets
from molink_scheduler.routing.ring_choice import Routing

__all__ = [
    "DETECT_S",
    "LOAD_S",
    "AcksCut",
    "ConnectionReset",
    "DuplicatedMessages",
    "EntrySpec",
    "FaultSpec",
    "HostSuspended",
    "LateMessages",
    "LinkChange",
    "LinkCut",
    "LinkSpec",
    "NodeLoss",
    "OnePc",
    "RequestArrival",
    "RingSpec",
    "Scenario",
    "SlowNode",
    "StageSpec",
    "StepCost",
    "SystemSpec",
]


DETECT_S = 0.5
"""Seconds from the end of a stage's process until its coordinator knows: the node reports it."""

LOAD_S = 0.45
"""Seconds until a stage's layers are loaded again in a process that waits for them: 0.4 to 0.5 s of
the demo model, 4.1 to 4.3 s in a new one (docs/decisions/0041-survivors-stay.md)."""


@dataclass(frozen=True, slots=True)
class RequestArrival:
    """Time and lengths of one request of the workload."""

    at_s: float
    input_tokens: int
    output_tokens: int
    prompt: bytes = b""
    """Its tokens, packed; empty: they have no content, and nobody begins with what others have."""
    session: int | None = None
    """Number of the session that it is the next turn of; None: it is a request by itself."""


class StepCost(Protocol):
    """Step times of a stage: by a roofline, by a profile, or drawn for a swarm."""

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step of `rows` rows of `sequences` sequences.

        `kv_tokens` is how many keys all rows attend to in sum over sequences (of a decode batch:
        the sum of its sequences' lengths; of a prefill span: tokens before and in the span).
        """
        ...


@dataclass(frozen=True, slots=True)
class LinkChange:
    """Change of a link: from `at_s` on it has this rate and delay; a rate of 0 cuts it."""

    at_s: float
    mbps: float
    one_way_s: float


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Rate, delay, jitter and loss of one directed link."""

    mbps: float
    one_way_s: float
    jitter_s: float = 0.0
    """Uniform extra delay, never reordering."""
    loss: float = 0.0
    """Share of chunks that arrive late by a retransmission (one round trip)."""
    changes: tuple[LinkChange, ...] = ()


@dataclass(frozen=True, slots=True)
class StageSpec:
    """Stage: a run of layers on a node."""

    layers: int
    cost: StepCost
    kv_tokens: int
    """KV capacity in tokens."""
    upload_mbps: float | None = None
    """The node's upload, shared by all that leaves it; None: only its link limits it."""
    name: str = ""
    after_idle: tuple[tuple[float, float], ...] = ()
    """Pairs (idle for so long, so much longer takes the next step), rising; beyond the last as the
    last. Empty: a step takes its time whatever was before."""
    replay_log_bytes: float = REPLAY_LOG_BYTES
    """Rows that it keeps for a stage behind it that is replaced."""
    state_slots: int | None = None
    """Requests whose states it holds at a time; None: its layers keep none."""
    tiers: CacheTiers = field(default_factory=CacheTiers)
    """Room for cached KV below the device's memory."""


@dataclass(frozen=True, slots=True)
class OnePc:
    """Costs that stages have in common which share the cores of one PC."""

    slowdown_together: tuple[float, ...]
    """Multiples of the time alone that a step takes while 1, 2, ... stages compute."""
    chunk_s: float = 0.0
    """Time of a core for every chunk on a link: both ends, acknowledgement and emulator."""
    hop_s: float = 0.0
    """Software's time on a hop while nothing else computes, most of it for waking up."""


@dataclass(frozen=True, slots=True)
class RingSpec:
    """Stages in order; `links[i]` leads from stage i to the next, the last one back to the head."""

    stages: tuple[StageSpec, ...]
    links: tuple[LinkSpec, ...]
    row_bytes: int
    """Bytes of a row between stages as the system sends it raw: hidden size times 2 at 16 bits."""
    coordinator_one_way_s: float = 0.0
    """Delay from the coordinator to the head, and from the tail to the coordinator."""
    on_one_pc: OnePc | None = None
    """All stages are processes of one PC; None: each has a PC of its own."""


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """A drafter of each ring, and how good it is; a width of 0: there is none."""

    width: int = 0
    """Drafts of a span."""
    acceptance: float = 0.88
    """Chance that a draft is right whose context is."""
    step_s: float = 0.001
    """Seconds of a draft for all users that are asked about at once."""
    at_tail: bool = False
    """Whether the tail drafts, within its steps, and not the head."""


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A way to schedule requests and to move bytes. Presets are in `molink_sim.systems`."""

    name: str = "molink"
    policy: str = "molink"
    """Order on the links: a name of `molink_sim.network.policies.POLICIES`."""
    micro_batches: int | None = None
    """Number of micro-batches; None: as the core chooses."""
    span_tokens: int | None = None
    """Tokens of a span; None: as the core chooses; whole prompts are spans of the longest
    prompt."""
    tensors_per_hop: int = 1
    codec: str = "raw"
    hop_one_way_delays: float = 1.0
    """One-way delays that a message costs per hop: 1 when it streams, about 3 for request/response
    with a trigger and an idle window."""
    hop_software_s: float = 0.0
    """Serialisation, event loops and triggers of one hop, both ends together."""
    window_opens: bool = False
    """Whether a burst after a quiet time waits for TCP's window to open (`network.line.Window`)."""
    link_model: str = "paced"
    """Model of links where `paced` is set. `paced`: every chunk and acknowledgement; `ideal`:
    strict priority in pieces of one quantum at the true rate, in closed form, for worlds of a
    thousand nodes."""
    paced: bool = True
    """Whether chunks are acknowledged and paced; baselines hand all to the connection."""
    prefill_blocks_decode: bool = False
    """Whether a request's prefill and the decode of its micro-batch share one step of the ring."""
    prompts_alone: bool = False
    """Whether a ring has one batch of prompts under way at a time, where those share a step."""
    survivors_stay: bool = True
    """Whether a ring that loses a stage goes on; else its requests end with an error."""
    prefix_cache: bool = False
    """Whether prompts with content begin with what is cached of others."""
    fifo_prompts: bool = False
    """Whether prompts are computed in the order in which they come."""
    drafter: DrafterSpec = DrafterSpec()
    """Drafter of each ring, if any."""


@dataclass(frozen=True, slots=True)
class EntrySpec:
    """How the coordinator chooses a ring, and whom it refuses."""

    routing: Routing = Routing.LOAD
    admission: AdmissionPolicy = AdmissionPolicy.ACCEPT
    targets: Targets = NO_TARGETS


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """Trouble at one place of a ring from `at_s` to `until_s`; its kind is the subclass."""

    ring: int
    place: int
    """A stage, or the link that leaves it."""
    at_s: float
    until_s: float


@dataclass(frozen=True, slots=True)
class NodeLoss(FaultSpec):
    """A stage is gone; at `until_s` its layers are loaded again, there, on another node or on a
    neighbour's.

    Its ring goes on from what survivors keep (`molink_sim.ring.recovery`), or where it cannot
    starts anew, with empty KV.
    """

    shadow_lacks_tokens: int | None = None
    """Tokens of each request that a shadow lacks which takes its place as soon as the loss is
    noticed; None: no shadow does."""
    neighbour_takes: bool = False
    """Whether no node can hold its layers, so that a neighbour takes them beside its own: its ring
    goes on with a place less, and this node is no part of it any more."""


@dataclass(frozen=True, slots=True)
class HostSuspended(FaultSpec):
    """A stage's host sleeps: it computes, sends and acknowledges nothing, and then goes on."""

    silent_s: float
    """Seconds after which it is taken for lost, if it sleeps for longer. Its ring waits for the
    layers on another node for `load_s` then."""
    load_s: float = LOAD_S


@dataclass(frozen=True, slots=True)
class LinkCut(FaultSpec):
    """Cut of a link: nothing passes it; what was under way comes after the cut."""


@dataclass(frozen=True, slots=True)
class AcksCut(FaultSpec):
    """A link cut in one direction: its bytes arrive, their acknowledgements come after the cut."""


@dataclass(frozen=True, slots=True)
class ConnectionReset(FaultSpec):
    """A link's connection is reset: what was under way is lost, and repeated when there is another
    one, at `until_s`."""


@dataclass(frozen=True, slots=True)
class SlowNode(FaultSpec):
    """Steps that begin on the stage take `factor` times as long: somebody plays a game there."""

    factor: float


@dataclass(frozen=True, slots=True)
class LateMessages(FaultSpec):
    """A share of what leaves on the link comes up to `delay_s` later, and all behind it too."""

    share: float
    delay_s: float


@dataclass(frozen=True, slots=True)
class DuplicatedMessages(FaultSpec):
    """A share of what arrives over the link arrives again, up to `delay_s` later."""

    share: float
    delay_s: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rings, requests, system and faults: everything that decides a run but chance.

    Chance is drawn from `seed`.
    """

    rings: tuple[RingSpec, ...]
    arrivals: Sequence[RequestArrival]
    system: SystemSpec = field(default_factory=SystemSpec)
    entry: EntrySpec = field(default_factory=EntrySpec)
    sessions: Sequence[AgentSession] = ()
    """Sessions that are replayed beside the arrivals."""
    sessions_at_once: int = 1
    duration_s: float = 1800.0
    """Requests arrive until then."""
    warmup_s: float = 0.0
    """Requests that arrive before are served but not counted."""
    drain_s: float = 600.0
    """How long after `duration_s` the world goes on, so that what is under way may end."""
    detect_s: float = DETECT_S
    """Seconds from the loss of a stage until the coordinator knows."""
    seed: int = 0
    faults: tuple[FaultSpec, ...] = ()
    record_timeline: bool = False
    """Whether to keep who computed or sent what when, for the Gantt picture (memory!)."""
    requests_at_once_max: int | None = None
    """Requests that users have under way; a further one is sent, and its time counts, when another
    has ended. None: each is sent as it arrives."""
