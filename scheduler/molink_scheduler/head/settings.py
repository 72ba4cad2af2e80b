"""Settings of a whole ring and of its head, chosen by the operator or the cost model."""

from dataclasses import dataclass

from molink_scheduler.batch import DRAFTS_MAX, MICRO_BATCH_COUNT_MAX
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.prompt_order import OWN_WORK_TIMES
from molink_scheduler.request import ModelLimits

__all__ = [
    "PREFILL_TOKENS_IN_FLIGHT_MAX",
    "REPLAY_LOG_BYTES",
    "SPAN_TOKENS_MAX",
    "STATE_CHUNK_TOKENS",
    "HeadSettings",
    "RingTerms",
]

SPAN_TOKENS_MAX = 4096
"""Tokens of a 16,384-wide model in fp32 that a frame holds (`molink.wire.frames`)."""

PREFILL_TOKENS_IN_FLIGHT_MAX = 2048
"""Prefill that may be under way at once: enough to keep every hop of a long ring busy, and a bound
on what can stand in front of a decode batch in a queue that knows no priority."""


REPLAY_LOG_BYTES, REPLAY_LOG_BYTES_MAX = 500_000_000, 1_024_000_000_000
"""16 users of 4,000 tokens each on a 4,096-wide model; what more is for a larger ring to ask."""

STATE_CHUNK_TOKENS = 64
"""Rows that recurrences compute as one in the library. Cut at its multiples, a prompt is summed in
the order in which it would be as a whole, so that answers hardly depend on what else was computed;
and the library pads what is no multiple."""


@dataclass(frozen=True, slots=True)
class RingTerms:
    """Settings that all stages of a ring share, one value from the command line to the head.

    Raises ValueError for values out of range.
    """

    kv_tokens_capacity: int = 0
    """The smallest on the ring, by which the head admits; 0 until its stages have loaded."""
    micro_batch_count: int | None = None
    """How many decode micro-batches circle; None lets the measured round decide."""
    micro_batch_candidates: tuple[int, ...] = (1,)
    """Counts that may be chosen then."""
    span_tokens: int | None = None
    """Most prompt tokens per batch; fewer where decode is due sooner. None: as the link allows."""
    state_slots: int | None = None
    """The fewest on the ring, of those stages whose layers keep states or windows; None: none
    does."""
    replay_log_bytes: int = REPLAY_LOG_BYTES
    """Memory of each stage's PC for rows that it has sent, from which a replaced neighbour is
    fed."""
    audited: bool = False
    """Whether stages report sketches of their rows, for audits."""
    prefix_cache: bool = False
    """Whether requests that begin alike share KV, and what was computed is kept for the next."""
    tiers: CacheTiers | None = None
    """Room for cached KV below device memory; None: there is none."""
    state_snapshots: int = 0
    """Snapshots of states for the prefix cache: the fewest on the ring that a stage whose layers
    keep states has room for."""
    can_go_back: bool = False
    """Whether a request may go on from a few tokens before, although layers keep something in
    slots: windows of KV, and no states."""
    fifo_prompts: bool = False
    """Whether prompts are computed in the order in which they come, as where the time to a first
    token is promised: short ones that pass would make others miss it."""
    kv_tokens_most: int = 0
    """Tokens that it holds with all places of its stages, where some of them are away for now: the
    bound of one request. Less than its capacity: none are."""
    draft_width_max: int = 0
    """Most drafts of a request's span; 0: nobody drafts."""
    drafts_at_head: bool = True
    """Whether the head has drafters, where anybody drafts."""
    drafts_at_tail: bool = False
    """Whether the tail has the checkpoint's layer that drafts."""
    draft_width_fixed: bool = False
    """Whether as many are drafted for everybody, whatever they cost: for measurements."""
    requests_max: int | None = None
    """Requests that may hold KV at a time, the fewest on the ring; None: as many as have blocks."""
    folds: int = 1
    """Blocks of layers that keep all of a cut prompt for which one block has room, the fewest on
    the ring; 1: cuts give nothing back."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("span_tokens", self.span_tokens, SPAN_TOKENS_MAX),
            ("micro_batch_count", self.micro_batch_count, MICRO_BATCH_COUNT_MAX),
        ):
            if value is not None and not 1 <= value <= most:
                raise ValueError(f"{name} must be 1 to {most}, got {value}")
        if not 0 <= self.draft_width_max <= DRAFTS_MAX:
            raise ValueError(
                f"draft_width_max must be 0 to {DRAFTS_MAX}, got {self.draft_width_max}"
            )
        if not 0 <= self.replay_log_bytes <= REPLAY_LOG_BYTES_MAX:
            raise ValueError(
                f"replay_log_bytes must be 0 to {REPLAY_LOG_BYTES_MAX}, got {self.replay_log_bytes}"
            )

    @property
    def tokens_most(self) -> int:
        """Tokens that one request may have: what the ring holds with all of its places."""
        return max(self.kv_tokens_capacity, self.kv_tokens_most)

    @property
    def slots(self) -> int | None:
        """Requests that may hold anything at a time; None: as many as have blocks."""
        given = (self.state_slots, self.requests_max)
        return min((one for one in given if one is not None), default=None)

    @property
    def own_work_times(self) -> int:
        """Factor by which places of prompts are given (`PromptOrder`)."""
        return 0 if self.fifo_prompts else OWN_WORK_TIMES

    @property
    def cut_tokens(self) -> int:
        """Prompts are cut at its multiples where the step has time for one; 1: anywhere."""
        return 1 if self.state_slots is None else STATE_CHUNK_TOKENS

    @property
    def cache_tokens(self) -> int:
        """Tokens that can be cached at a time, in the devices' memory and below it."""
        below = self.tiers or CacheTiers()
        return self.kv_tokens_capacity + BLOCK_TOKENS * (below.host_blocks + below.file_blocks)

    @property
    def caches_states(self) -> bool:
        """Whether cached blocks can be begun with: states need room for their snapshots."""
        return self.state_slots is None or self.state_snapshots > 0


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """Settings of a ring's head: the ring's, and what only the head needs."""

    ring: RingTerms
    row_bytes: int = 0
    """Bytes of one row on a link between stages, for the cost model."""
    prefill_tokens_in_flight_max: int = PREFILL_TOKENS_IN_FLIGHT_MAX
    limits: ModelLimits | None = None
    """Limits of the model; None: nobody knows them, as in a simulation."""
