"""Values that cross the seam between a stage and its engine; rows are numpy's, blocks are bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from molink.engine_protocol.drawn import DrawnToken, LateToken
from molink.stage_protocol.health import LenderHealth
from molink.stage_protocol.messages import StageLoaded
from molink.wire.elements import Elements
from molink.wire.frames import PromptScore
from molink_scheduler.batch import Batch
from molink_scheduler.kv.changes import NOWHERE, AwayBlocks
from molink_scheduler.request import ModelLimits
from molink_scheduler.stage.replay_log import ReplayLog

BlockBytes = npt.NDArray[np.uint8]
"""Cached KV blocks as bytes, [B, W] or one of them [W]."""

Drafts = tuple[tuple[int, tuple[int, ...]], ...]
"""Drafts as (request, token ids): what may come behind the tokens that were drawn of it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Layers that an engine has loaded, all of them where it has taken some beside others."""

    loaded: StageLoaded
    """Report of them, but for the stage's ports and the tiers of its cache."""
    layers: range
    is_head: bool
    """Whether batches enter the ring here, as token ids."""
    is_tail: bool
    """Whether tokens are drawn here."""
    takes_token_ids: bool
    """Whether layers read something of the token itself, so that ids go round with rows."""
    hidden_size: int
    """Width of the rows that travel between stages."""
    kv_blocks: int
    """KV blocks that requests and the cache share."""
    block_bytes: int
    """Size of one of them when it is packed."""
    limits: ModelLimits
    tokenizer: Any = None
    """The model's tokenizer on the tail; None elsewhere, and where the checkpoint has none."""

    @property
    def dtype(self) -> str:
        """Format of the numbers that it computes in, by its name on the wire."""
        return self.loaded.dtype


class Held(NamedTuple):
    """What a stage holds when it takes a lost neighbour's layers beside its own."""

    log: ReplayLog
    """Rows that it has sent, which feed layers behind its own."""
    computed: dict[int, int]
    """Tokens of each request of which it holds KV."""


class StepInputs(NamedTuple):
    """Inputs of one step."""

    batch: Batch
    token_ids: Sequence[int] = ()
    """Token ids of all rows, on the head and where layers read them."""
    rows: Sequence[Elements] = ()
    """Rows [T, D] in pieces that are laid end to end; none on the head."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of one step: rows for the next stage, or the tail's tokens."""

    rows_TD: Elements | None
    """Rows for the next stage; None on the tail."""
    drawn: tuple[DrawnToken, ...] = ()
    """Tokens on the tail, one per span that samples, in batch order, but for those that are
    late."""
    scores: tuple[PromptScore, ...] = ()
    """Scores on the tail of the prompts' tokens that the batch's rows predict, where they are
    wanted."""
    late: tuple[LateToken, ...] = ()
    """Tokens on the tail that wait for the masks of their grammars."""
    token_ids: tuple[int, ...] = ()
    """Token ids of the rows, for the next stage; none where its layers do not read them."""
    computed_s: float | None = None
    """Seconds that a card took for the step; None on a CPU, where the clock tells."""
    drafts: Drafts = ()
    """Drafts on the tail, of requests that want some (`Span.wants`)."""
    forced: Drafts = ()
    """Tokens on the tail that grammars allow alone, of requests that want drafts; they go before
    other drafts."""


class Fed(NamedTuple):
    """Rows that a stage would have sent, had it held all of its layers from the start."""

    batch: Batch
    rows_TD: Elements
    token_ids: tuple[int, ...]


class RowsKept(NamedTuple):
    """What is left of the epoch before when a ring goes on."""

    missing: tuple[int, ...]
    """Requests that the stage cannot go on with."""
    gone: frozenset[int]
    """Requests whose KV is there, and which do not go on."""
    cached: frozenset[int]
    """Numbers of the cached blocks in the device's memory."""
    chains_stay: bool
    """Whether these may stay."""
    blocks: int | None = None
    """KV blocks that there are places for now, where that is fewer than before; None: it is not."""
    away: AwayBlocks = NOWHERE
    """Blocks below the device's memory that may stay, too."""


Sketch = tuple[float, int, int, tuple[float, ...]]
"""Time at which a prompt ended, its request, its tokens, and the numbers that stand for its
rows."""


@dataclass(frozen=True, slots=True)
class EngineReport:
    """What an engine holds and has seen lately."""

    kv_tokens_used: int
    kv_tokens_cached: int
    state_slots_used: int | None
    """Requests whose states it keeps; None: its layers keep none."""
    host_is_short: bool
    """Whether the PC has so little memory left that what can be done without is to go."""
    sketches: Sequence[Sketch] = ()
    """Sketches of prompts that were computed lately, the newest first; none before they are
    wanted."""
    kv_blocks: int = 0
    """KV blocks that there are places for, but for those that a lender wants back; 0: it does not
    say."""
    lender_is_lost: bool = False
    """Whether a lender of KV has gone while nobody asked it."""
    lender: LenderHealth | None = None
    """What lies at a lender; None: there was never one."""
