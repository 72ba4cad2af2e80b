"""Health report of a stage to its supervisor while it serves, and the bounds of one report."""

from dataclasses import dataclass, field
from typing import Annotated

from annotated_types import Ge, Le, MaxLen, Predicate

from molink.stage_protocol.progress import ShadowLag, ShadowProgress, StageProgress
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.link.facts import LinkReport

FIGURE_MAX = 2**53
"""Beyond it integers are not exact as floats; no count of ours comes near."""

LINKS_MAX = 4
"""A stage has three that leave it at most."""

PROMPTS_MAX = 64
"""Prompts in one report of a head: a few are under way, and others have just ended."""

PIECES_MAX = 64
"""Pieces of prompts in one report of a head: two seconds of pieces that take 40 ms each."""

REFUSED_MAX, REASON_CHARS_MAX = 64, 200
"""Requests that a head has refused, in one report, and characters of the clause why: none is, as
the coordinator checks them by the same rules first."""

WITHOUT_ROOM_MAX = 64
"""Requests in one report of a head for which there is no room now; of more the first are told."""

DRAFTERS_MAX, DRAFTER_CHARS_MAX = 4, 64
"""Drafters of a head, and characters of the name of one."""

SKETCHES_MAX, SKETCH_NUMBERS_MAX = 32, 2048
"""Prompts in one report where rings are audited, and numbers of them all together: 20 KB. One
prompt has as many in a model of 500 layers."""


Sketch = Annotated[tuple[Annotated[float, Ge(-FIGURE_MAX)], ...], MaxLen(SKETCH_NUMBERS_MAX)]
"""Sketch of the rows of a prompt."""


Why = Annotated[str, MaxLen(REASON_CHARS_MAX), Predicate(str.isprintable)]
"""A clause for a person."""


@dataclass(frozen=True, slots=True)
class PackingHealth:
    """Figures of one codec since it came into use, on one side of a link."""

    codec: str
    raw_bytes: int
    """Bytes of the unpacked rows."""
    packed_bytes: int
    seconds: float
    """Seconds spent on packing, or on unpacking."""


@dataclass(frozen=True, slots=True)
class CacheTiersHealth:
    """Tokens of a ring cached below its devices' memory, and those that came back from there since
    the ring's head began."""

    host_tokens: int
    """Tokens cached in host memory."""
    file_tokens: int
    fetched_tokens: int
    """Tokens that came back into the devices."""
    lost_tokens: int
    """Tokens that some stage could not read back in time: they were computed again."""


@dataclass(frozen=True, slots=True)
class RoomOffer:
    """Room for KV that a stage offers to its ring."""

    number: int = 0
    """Number of the offer among the stage's, which rises; 0: it offers all that it has loaded."""
    kv_tokens: int = 0
    """Tokens that it holds; of offer 0 it does not say."""

    @classmethod
    def of(cls, room: StageRoom) -> "RoomOffer":
        """The last offer of a stage, if it made any."""
        return cls(room.number, BLOCK_TOKENS * room.offered) if room.number else cls()


@dataclass(frozen=True, slots=True)
class HostCacheHealth:
    """Host memory of a stage for cached KV."""

    taken_bytes: int
    """Bytes that it has taken when it loaded."""
    room_bytes: int
    """Bytes of these that may be used now."""
    held_bytes: int
    why_less: Annotated[str, MaxLen(300), Predicate(str.isprintable)] = ""
    """Why it is not more, a clause; empty: all that is lent is there."""


@dataclass(frozen=True, slots=True)
class LenderHealth:
    """Places of the KV of a stage that has a lender, or had one."""

    kv_tokens_own: int
    """Tokens that its own memory holds."""
    kv_tokens_away: int
    """Tokens in blocks that lie at the lender now, those of the cache among them."""
    step_wait_s: float = 0.0
    """Smoothed seconds for which a decode step with some of them waits for the lender; 0: there was
    none."""
    row_key_wait_s: float = 0.0
    """Smoothed seconds for which a step of prompts waits for each of its rows and each token there
    that the row reads; 0: there was none."""


@dataclass(frozen=True, slots=True)
class PairHealth:
    """A stage's end of a hand-over of KV between two rings, and its figures since it was paired."""

    number: int = 0
    """Number of the pair; 0: it is one of a single PC, by the path of a socket."""
    sends: bool = False
    """Whether it hands over; else it takes."""
    port: Annotated[int, Le(65_535)] = 0
    """Port at which the end listens that takes, as both know it; 0: at none."""
    linked: bool = False
    """Whether the other end is there."""
    blocks: int = 0
    """Blocks that it has sent, or that have come."""
    size_bytes: int = 0
    """Bytes of these."""
    seconds: float = 0.0
    """Seconds spent on sending them, or on waiting for them once they were asked for."""
    used: int = 0
    """Blocks that its ring has taken, of those that have come."""
    lost: int = 0
    """Blocks that could not be sent, or that were asked for and had not come: they are computed."""
    held_bytes: int = 0
    """Bytes that wait here, to be sent or to be taken."""
    held_byte_s: float = 0.0
    """Bytes times seconds for which they have waited here: how much memory it takes, for how
    long."""
    why: Why = ""
    """Why the other end takes nothing, a clause; empty: it does, or nothing was sent."""


@dataclass(frozen=True, slots=True)
class DrafterHealth:
    """Figures of one drafter of a ring since the ring's epoch began."""

    name: Annotated[str, MaxLen(DRAFTER_CHARS_MAX), Predicate(str.isprintable)]
    rounds: int = 0
    """Rounds of users for which it has guessed."""
    drafts: int = 0
    """Tokens that it has guessed."""
    tried: int = 0
    """Guesses that followed right ones: what came behind a wrong one says nothing."""
    right: int = 0
    """Guesses that came true."""


@dataclass(frozen=True, slots=True)
class StageHealth:
    """Fact: how the stage is doing, about twice a second while it works."""

    kv_tokens_used: int
    busy_s: float
    """Seconds of computing since the start."""
    busy_share: float
    """Part of the time since the last report."""
    steps: int
    requests_running: int | None
    """Requests that run; only on the head."""
    requests_waiting: int | None
    frames_refused: int
    """Messages of the previous stage dropped: malformed, of an epoch to come, or not to be carried
    out here."""
    packed: PackingHealth
    """Activations that left."""
    unpacked: PackingHealth
    """Activations that came."""
    bytes_saved: Annotated[int, Ge(-FIGURE_MAX)]
    """Bytes that packing has saved since the start; negative where it made rows larger."""
    decode_round_s: float | None
    """Smoothed time between two visits of a micro-batch."""
    micro_batch_count: int | None
    """Number of micro-batches; only on the head."""
    decode_step_s: float
    prefill_row_s: float
    links: Annotated[tuple[LinkReport, ...], MaxLen(LINKS_MAX)]
    progress: StageProgress = field(default_factory=StageProgress)
    recent_prompts: Annotated[tuple[tuple[int, int, float], ...], MaxLen(PROMPTS_MAX)] = ()
    """Prompts of the last seconds, on the head: the ring's number of the request, tokens of its
    prompt that have been sent into the ring, and for how many seconds it had waited here before."""
    recent_pieces: Annotated[tuple[tuple[int, int, int, float], ...], MaxLen(PIECES_MAX)] = ()
    """Pieces of the last seconds, on the head: the ring's number of the request, a piece [first,
    end) of its prompt, and how many seconds after the request had come here it was begun."""
    micro_batches_held: float | None = None
    """How many were here since the last report, waiting or computed, as a mean; None: an older
    version that does not say."""
    micro_batches_circling: float | None = None
    """How many circled on the whole ring since the last report, as a mean; only on the head."""
    shadow: ShadowProgress | None = None
    """Progress of a shadow; None: the stage is none."""
    shadow_lag: ShadowLag | None = None
    """Lag of the next stage's shadow; None: it has none."""
    state_slots_used: int | None = None
    """Requests whose states it keeps; None: its layers keep none, or an older version."""
    recent_sketches: Annotated[tuple[tuple[int, int, Sketch], ...], MaxLen(SKETCHES_MAX)] = ()
    """Sketches of prompts that have ended in the last seconds, where the ring is audited: the
    ring's number of the request, how many tokens they have, and a sketch of their rows before its
    first layer and behind each layer (`molink_scheduler.audit`)."""
    host_is_short: bool = False
    """Whether its PC has so little memory left that requests are to be given up."""
    kv_tokens_cached: int | None = None
    """Tokens in blocks that the prefix cache holds, in use or not; None: an older version."""
    cache_tiers: CacheTiersHealth | None = None
    """Tiers of the cache, on a head whose ring has room below its devices' memory."""
    host_cache: HostCacheHealth | None = None
    """Host memory for cached KV; None: nothing is lent, or an older version."""
    recent_refused: Annotated[tuple[tuple[int, Why], ...], MaxLen(REFUSED_MAX)] = ()
    """Requests of the last seconds, on the head, that it cannot compute: the ring's number of each,
    and why."""
    rows_refused: int = 0
    """Requests since the start whose rows the previous stage sent as numbers that are not
    finite."""
    lender_lost_in: int | None = None
    """Epoch of the ring in which it has lost a lender of KV, the last such one: it stands still
    until the next; None: it has lost none."""
    offer: RoomOffer = field(default_factory=RoomOffer)
    """The last room that it has offered to its ring."""
    without_room: Annotated[tuple[int, ...], MaxLen(WITHOUT_ROOM_MAX)] = ()
    """Requests that wait, on the head, until the ring has as much room for KV again as they may
    need: the ring's number of each."""
    drafters: Annotated[tuple[DrafterHealth, ...], MaxLen(DRAFTERS_MAX)] = ()
    """Drafters, on the head of a ring that has some: its own, and those of the tail."""
    lender: LenderHealth | None = None
    """Its lender; None: it has had none, or an older version."""
    pair: PairHealth | None = None
    """Its end of a hand-over of KV; None: it has none, or an older version."""
