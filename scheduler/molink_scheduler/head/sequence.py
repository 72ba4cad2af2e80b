"""One request on the head: which of its tokens are known, and how far the ring has been asked to
compute them."""

from array import array
from dataclasses import dataclass, field

from molink_scheduler.batch import Admission, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.owners import split_salt
from molink_scheduler.prompt_cut import PromptCut
from molink_scheduler.request import Request
from molink_scheduler.token_ids import TOKEN_BYTES

WEIGHT_OF_NEWEST = 0.1
"""Weight of a round in the smoothed pace, which tells KV that is held some dozens of rounds on."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens computed catch up with tokens known; everything else about a running request follows
    from the two."""

    request: Request
    request_id: int = field(init=False)
    """Id of the request; ids rise with arrival, so the largest is the newest."""
    known: "array[int]" = field(init=False)
    """Prompt and output so far."""
    planned_tokens: int = 0
    """Tokens that have been sent into the ring, in order."""
    returned_tokens: int = 0
    """Tokens that were sent into the ring and have come out of the tail."""
    admitted: bool = False
    """Whether the stages hold (or are about to hold) KV of it."""
    decoding: bool = False
    """Whether it circles with the micro-batches: its prompt is computed, its first token drawn."""
    sits_out: bool = False
    """Whether it decodes no further until others have given blocks back."""
    cancelled: bool = False
    preempting: bool = False
    """Whether it is to give its blocks back as soon as nothing of it is in flight."""
    kept_tokens: int = 0
    """First tokens of the request of which the ring's survivors hold KV from the epoch before."""
    cached_runs: tuple[tuple[int, int], ...] = ()
    """Cached blocks that it has begun with."""
    cached_blocks: int = 0
    """First blocks of the request whose tokens are cached."""
    pinned: int | None = None
    """Node of the directory in which these end."""
    was_fetched: bool = False
    """Whether cached blocks were brought back for it since it last held any KV; that is done
    once."""
    place: int | None = None
    """Place among prompts that wait (`prompt_order`); None: it has not waited yet."""
    spared_tokens: int = 0
    """Tokens whose blocks were given back, because its prompt is cut and what is left was
    folded."""
    is_cached: bool = True
    """Whether more of it is cached as it is computed."""
    undrafted: bool = False
    """Whether it is drafted for no more: a row of a span with drafts went beyond its format."""
    snapshot: int | None = None
    """Snapshot that the request begins with, until every stage has begun with it."""
    keep_at: list[int] = field(default_factory=list)
    """Positions of its prompt, ascending, behind which its states are to be kept."""
    states: dict[int, int] = field(default_factory=dict)
    """Snapshots that were ordered and stand behind no cached block yet, by position."""
    pace: float = 1.0
    """Smoothed tokens of a round in which it decodes."""
    group: str = field(init=False)
    """Group of requests with which it shares cached blocks."""
    owner: str = field(init=False)
    """Owner whose share of the cache it takes."""
    _packed: bytes = field(init=False)

    def __post_init__(self) -> None:
        self.request_id = self.request.request_id
        self.known, self._packed = self.request.prompt_ids, self.request.prompt
        self.known.extend(self.request.output)
        self.group, self.owner = split_salt(self.request.cache_salt)

    @property
    def packed(self) -> bytes:
        """The known tokens as the directory of cached blocks compares them."""
        packed_tokens = len(self._packed) // TOKEN_BYTES
        if packed_tokens < len(self.known):
            self._packed += self.known[packed_tokens:].tobytes()
        return self._packed

    @property
    def begun_tokens(self) -> int:
        """First tokens of the request that were cached when it was admitted."""
        return BLOCK_TOKENS * sum([blocks for _, blocks in self.cached_runs])

    @property
    def cut(self) -> PromptCut:
        """Where its KV is cut."""
        return PromptCut.of(self.request.prompt_tokens, self.request.sampling.kv_budget)

    @property
    def shared_tokens(self) -> int:
        """First tokens of which it may share blocks with others: all, unless its KV is cut."""
        cut = self.cut
        return cut.whole_tokens if cut.is_cut else len(self.known)

    @property
    def is_computed(self) -> bool:
        """Whether all that is known of it is computed, on all stages."""
        return self.returned_tokens == self.planned_tokens == len(self.known)

    @property
    def generated_tokens(self) -> int:
        """Tokens of its answer so far."""
        return len(self.known) - self.request.prompt_tokens

    @property
    def tokens_pending(self) -> int:
        """Tokens known that the ring has not been asked to compute."""
        return len(self.known) - self.planned_tokens

    @property
    def in_flight(self) -> bool:
        """Whether any of it is under way on the ring."""
        return self.returned_tokens < self.planned_tokens

    @property
    def token_is_late(self) -> bool:
        """Whether the tail has all known tokens, and keeps the next one until its grammar's mask is
        there."""
        return self.returned_tokens == len(self.known)

    @property
    def stopping(self) -> bool:
        """Whether nothing more of it may be planned."""
        return self.cancelled or self.preempting

    @property
    def queue_order(self) -> tuple[int, bool, int, int, int]:
        """Rank among waiting sequences, the least first: within one priority those that were kept
        go first, the shortest of them ahead; else places decide."""
        priority, request_id = self.request.order
        return priority, not self.kept_tokens, self.kept_tokens, self.place or 0, request_id

    @property
    def is_kept(self) -> bool:
        """Whether survivors hold KV of it, after which nothing was planned yet."""
        return self.kept_tokens > 0 and self.planned_tokens <= self.kept_tokens

    @property
    def replays(self) -> bool:
        """Whether the next tokens are computed for the head's own KV, which it lacks."""
        return self.planned_tokens < self.kept_tokens

    @property
    def is_fed_again(self) -> bool:
        """Whether rows by which the next stage is fed again were the last to leave of it."""
        return self.admitted and self.is_kept and self.planned_tokens > 0

    @property
    def goes_on(self) -> bool:
        """Whether the next span is the first one after what was kept."""
        return 0 < self.kept_tokens == self.planned_tokens

    def take_span(self, tokens_max: int) -> Span:
        """Plan the next at most `tokens_max` pending tokens."""
        start, known = self.planned_tokens, len(self.known)
        until = self.kept_tokens if start < self.kept_tokens else known
        end = until if until - start <= tokens_max else start + tokens_max
        self.planned_tokens = end
        return Span(self.request_id, start, end, end == known)

    def take_drafts(self, drafts: tuple[int, ...]) -> Span:
        """Plan the one pending token, and drafts of those that may follow it."""
        start, known = self.planned_tokens, len(self.known)
        assert start == known - 1, "who decodes has one token pending"
        self.planned_tokens = end = known + len(drafts)
        return Span(self.request_id, start, end, samples=True, drafts=drafts)

    def round_came(self, tokens: int) -> None:
        """A round has brought so many tokens."""
        self.pace += WEIGHT_OF_NEWEST * (tokens - self.pace)

    def settle_drafts(self, span: Span) -> None:
        """A span is back, and its tokens are known: what is computed is what was known, and the
        drafts that came true. All others, and those behind the end of an answer, were computed for
        nothing."""
        self.planned_tokens = self.returned_tokens = max(span.known_end, len(self.known) - 1)

    def redo_undrafted(self) -> None:
        """Rows of a span with drafts were refused, and it may have been a draft's that went beyond
        its format: give the blocks back, whose KV nobody may trust, and begin anew without."""
        self.planned_tokens = self.returned_tokens = len(self.known) - 1
        self.preempting = self.undrafted = True

    def keep(self, tokens: int, *, fresh: bool) -> None:
        """Go on from its first `tokens` tokens, of which survivors hold KV; `fresh`: the head
        itself holds none and has to compute them again."""
        self.kept_tokens = tokens
        if not fresh:
            self.planned_tokens = self.returned_tokens = tokens

    def feed_no_further(self) -> None:
        """Go on from the last of its replayed rows."""
        self.kept_tokens = self.planned_tokens

    def begin_cached(self, runs: tuple[tuple[int, int], ...], node: int) -> None:
        """Begin behind these cached blocks, which end in a node that is held for it."""
        self.cached_runs, self.pinned = runs, node
        self.planned_tokens = self.returned_tokens = self.begun_tokens
        self.cached_blocks = self.begun_tokens // BLOCK_TOKENS

    def awaits(self, span: Span) -> bool:
        """Whether a span is the next one out."""
        return span.start == self.returned_tokens and span.end <= self.planned_tokens

    def admission(self) -> Admission:
        """Admission that stages must have before its first span."""
        request = self.request
        return Admission(
            request_id=request.request_id,
            prompt_tokens=request.prompt_tokens,
            tokens_expected=request.tokens_max,
            sampling=request.sampling,
            prompt=tuple(request.prompt_ids) if request.sampling.needs_prompt else (),
            output=tuple(self.known[request.prompt_tokens :]),
            kept_tokens=self.kept_tokens if self.goes_on else 0,
            cached=self.cached_runs,
            snapshot=self.snapshot,
        )

    def forget_computed(self) -> None:
        """Start over: its KV is gone, its tokens are not."""
        self.planned_tokens = 0
        self.returned_tokens = 0
        self.kept_tokens = 0
        self.cached_runs = ()
        self.cached_blocks = 0
        self.was_fetched = False
        self.spared_tokens = 0
        self.is_cached = True
        self.admitted = False
        self.decoding = False
        self.sits_out = False
        self.preempting = False
