"""One sequence on a ring, as the coordinator keeps it for the user who waits for its tokens."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain

from molink.coordinator.ring.cache_use import CacheUse
from molink.coordinator.ring.prompt_scores import PromptScores
from molink.errors import FrameError, InvalidRequestError, MolinkError, RingError, StageError
from molink.serving.answer_log import AnswerLog
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.text_stream import TextStream
from molink.serving.timeline import RequestTimeline
from molink.serving.token_events import TokenEvent
from molink.stage_protocol.health import StageHealth
from molink.wire.frames import (
    FROM_COORDINATOR,
    PromptScore,
    Submit,
    decode_message,
    encode_message,
)
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.kv.changes import TakeBlocks
from molink_scheduler.prompt_cut import PromptCut
from molink_scheduler.request import Request, SamplingParams, WishedTokens
from molink_scheduler.routing.ring_forecast import RingState
from molink_scheduler.token_ids import TOKEN_BYTES
from molink_scheduler.waiting_line import Wait, WaitingLine

UNREAD_EVENTS_MAX = 256
"""Most events of one answer that its reader has not taken, beside what its connection holds: some
seconds of any answer, and 0.1 MB. At so many its sequence gives its place to others."""

TOKEN_WITHIN_S, FIRST_TOKEN_WITHIN_S = 300.0, 900.0
"""Between two tokens of a sequence, and until the first, before another ring is tried: who was
preempted waits for room, and who came last for all before, so this is only for what a head has lost
or holds back."""

UNREAD_CHARS_MAX = 2**16
"""Most characters in such events; with any usual tokenizer they have far fewer."""

HOLDS_MAX = 8
"""How often: each time its context is computed again, which others pay for."""


class RequestStalledError(RingError):
    """Raised when a ring that goes on has left one request lying."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a ring has brought its users, by the coordinator's own count."""

    tokens: int
    """Tokens that users have got since the ring's start."""
    decoding: int
    """Sequences that have had a token and wait for more."""
    prompt_tokens: int
    """Length of the longest prompt whose first token is waited for; 0: none is."""
    round_s: float
    """Smoothed time of a round of a sequence; 0: not known yet."""
    held_tokens: int = 0
    """Tokens of all sequences together of which the ring holds KV."""
    interrupted: int = 0
    """Sequences that have had a token, and none since they lost a stage or their ring."""
    moved_at: float = 0.0
    """When the latest token of those that decode came; 0: none does."""

    @classmethod
    def of(cls, live: Collection["LiveSequence"], tokens: int, round_s: float) -> "Served":
        """Facts of a ring that has brought so many tokens, and has these sequences under way."""
        return cls(
            tokens=tokens,
            decoding=sum(one.has_token for one in live),
            prompt_tokens=max(
                (one.known_tokens for one in live if one.wait is not None), default=0
            ),
            round_s=round_s,
            held_tokens=sum(one.held_tokens for one in live),
            interrupted=sum(one.is_interrupted for one in live),
            moved_at=max(
                (one.moved_at for one in live if one.has_token and not one.on_hold), default=0.0
            ),
        )


@dataclass(slots=True)
class LiveSequence:
    """Sequence whose tokens a user waits for."""

    request_id: int
    """On this ring; another one when it is computed anew there."""
    packed: bytes
    """Its prompt, as `Request` has it."""
    priority: int
    sampling: SamplingParams
    text: TextStream | None
    tokens: int
    """Most tokens of prompt and answer together."""
    output: list[int]
    """Tokens generated so far, on rings before this one too."""
    known_tokens: int
    """Tokens that the ring computes before the first that it generates."""
    moved_at: float
    """When it was submitted, or its latest token came."""
    stall_factor: float
    """How many times as long as usual it may wait."""
    cache_salt: str = ""
    wishes: WishedTokens = ()
    timeline: RequestTimeline | None = None
    log: AnswerLog | None = None
    """Where its place is kept on disk; None: it is not."""
    prediction: tuple[int, ...] = ()
    scores: PromptScores | None = None
    """Where the prompt's tokens are scored, and have not been before."""
    has_token: bool = False
    """Whether this ring has generated one."""
    held_tokens: int = 0
    """Its first tokens, of which every stage of the ring holds KV."""
    losses: int = 0
    """Count of stages that this ring has lost since the sequence came to it."""
    wait: Wait | None = None
    """Its place in the ring's line, while it waits for its first token there."""
    place: int = 0
    """Its place among prompts that wait on the ring (`prompt_order`)."""
    place_uncached: int = 0
    """Place that it would have among waiting prompts if nothing of it were cached."""
    state_when_sent: RingState | None = None
    """State of its ring when it was sent there; None: it was not yet."""
    on_hold: bool = False
    """Whether the ring computes nothing of it until its reader has read on."""
    holds: int = 0
    """How often the sequence was held for its reader."""
    events: asyncio.Queue[TokenEvent | MolinkError] = field(default_factory=asyncio.Queue)
    _unread_chars: int = 0
    """Characters in the text of events that wait for their reader."""

    def __post_init__(self) -> None:
        if self.timeline is not None:
            self.timeline.numbered(self.request_id)

    def is_overdue(self, now: float) -> bool:
        """Whether nothing has come for so long that another ring is better."""
        longest_s = TOKEN_WITHIN_S if self.has_token else FIRST_TOKEN_WITHIN_S
        return not self.on_hold and now - self.moved_at > self.stall_factor * longest_s

    def give_up(self, now: float, *, can_move: bool) -> None:
        """Have it go on in another ring, or fail where there is none that `can_move` it."""
        self.moved_at = now
        error = RequestStalledError if can_move else RingError
        self.enqueue(error("The ring has left the request lying: send it again later."))

    def answered(self, waited_s: float, cached_tokens: int, use: CacheUse, now: float) -> None:
        """Its first token comes, and with it how long it had waited on the head, and how much of it
        was cached. Nothing is looked up of a prompt whose own tokens are scored, an audit's too."""
        if not self.generated_tokens and self.sampling.prompt_logprobs is None:
            use.began(self.prompt_tokens, cached_tokens)
        if self.timeline is not None:
            self.timeline.answered(waited_s, cached_tokens, now)

    def begin_anew(self, request_id: int) -> None:
        """Be another request for the ring, of which nothing is held there."""
        self.request_id, self.has_token, self.held_tokens = request_id, False, 0
        self.known_tokens = self.prompt_tokens + len(self.output)
        self.scores = PromptScores.of(self.request)

    @classmethod
    def of(
        cls,
        number: int,
        request: GenerationRequest,
        output: tuple[int, ...],
        stall_factor: float,
        card: ModelCard,
        now: float,
    ) -> "LiveSequence":
        """The sequence of a request of which `output` was generated before. Raises
        InvalidRequestError when it is longer than the model, or than a head reads."""
        tokens, most = len(request.prompt_token_ids), request.sampling.max_tokens
        if tokens + most > card.model_len_max:
            raise _too_long(tokens, most, card)
        card.check_token_ids(chain(request.prompt_token_ids, output, request.sampling.named))
        text = None
        if card.tokenizer is not None:
            text = TextStream.of(card.tokenizer, request.sampling)
            for token_id in output:  # One by one, as they were sent: what is held back agrees.
                text.push((token_id,))
        live = cls(
            request_id=number,
            packed=request.packed,
            priority=request.priority,
            sampling=request.sampling,
            text=text,
            tokens=tokens + most,
            output=list(output),
            known_tokens=tokens + len(output),
            moved_at=now,
            stall_factor=stall_factor,
            cache_salt=request.owned_salt,
            wishes=request.wishes,
            timeline=request.timeline,
            log=request.log,
            prediction=request.prediction,
        )
        live.scores = PromptScores.of(live.request)
        _check_readable(live.request)
        return live

    def offer(self, handed: tuple[int, int] | None) -> TakeBlocks | None:
        """Word to the head of what another ring has handed over; None: nothing was."""
        if handed is None:
            return None
        blocks = self.prompt_tokens // BLOCK_TOKENS
        return TakeBlocks(self.request_id, ((0, blocks),), handed) if blocks else None

    def check_cut(self, ring: RingTerms) -> None:
        """Raise InvalidRequestError where a ring cannot cut its KV."""
        if self.is_cut and ring.requests_max is not None:
            raise InvalidRequestError(
                "This ring lets KV lie in its PCs' memory, or in others' of their LAN, where it "
                "cannot be cut: leave 'kv_budget' out."
            )

    def too_long(self, card: ModelCard) -> InvalidRequestError:
        """The error of one that is longer than its ring has room for now, and will soon."""
        return _too_long(self.prompt_tokens, self.tokens - self.prompt_tokens, card)

    def cannot_go_on(self, ring: RingTerms, losses_max: int) -> MolinkError | None:
        """Why its ring's next epoch computes it no further; None: it does. A ring to which a lender
        has come cuts nothing."""
        if self.losses > losses_max:
            many = f"The request has met {losses_max} losses of a stage: send it again later."
            return StageError(many)
        try:
            self.check_cut(ring)
        except InvalidRequestError as error:
            return error
        return None

    def join(self, line: WaitingLine, now: float) -> None:
        """Wait in a ring's line, unless it waits or runs there."""
        if not self.has_token and self.wait is None:
            self.wait = line.joined(now)

    def begin(self, line: WaitingLine, now: float) -> None:
        """Wait no more: a token has come."""
        if self.wait is not None:
            line.began(self.wait, now)
        self.wait = None

    def leave(self, line: WaitingLine, now: float) -> None:
        """Wait and run no more."""
        if self.wait is not None:
            line.left(now)
        elif self.has_token:
            line.ended()
        self.wait = None

    @property
    def is_interrupted(self) -> bool:
        """Whether its reader has had tokens and waits until their KV is there again."""
        return bool(self.output) and not self.held_tokens and not self.on_hold

    @property
    def is_behind(self) -> bool:
        """Whether its reader has left as much as may wait for it."""
        waiting = self.events.qsize()
        return waiting >= UNREAD_EVENTS_MAX or self._unread_chars >= UNREAD_CHARS_MAX

    def enqueue(self, event: TokenEvent | MolinkError) -> None:
        """Queue an event for the reader."""
        if isinstance(event, TokenEvent):
            self._unread_chars += len(event.text)
        self.events.put_nowait(event)

    async def next_event(self) -> TokenEvent:
        """What the reader is to be told next. Raises what has ended the answer."""
        event = await self.events.get()
        if isinstance(event, MolinkError):
            raise event
        self._unread_chars -= len(event.text)
        return event

    def hold(self) -> None:
        """Note that the ring computes nothing of it until its reader has read on; who was too slow
        too often is told so behind what it has not read."""
        self.on_hold, self.holds = True, self.holds + 1
        if self.holds > HOLDS_MAX:
            self.enqueue(
                InvalidRequestError(
                    f"The answer came faster than it was read, {self.holds} times: read it without "
                    "pauses, or ask for it as a whole (stream: false)."
                )
            )

    @property
    def uncomputed_tokens(self) -> int:
        """Tokens that the ring must compute before the first that it generates, as far as it is
        known here."""
        cached = 0 if self.state_when_sent is None else self.state_when_sent.cached_tokens
        done = 0 if self.timeline is None else self.timeline.prompt_tokens_done
        return max(1, self.known_tokens - max(cached, done))

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of its prompt."""
        return len(self.packed) // TOKEN_BYTES

    @property
    def is_cut(self) -> bool:
        """Whether stages keep a part of its prompt's KV only."""
        return PromptCut.of(self.prompt_tokens, self.sampling.kv_budget).is_cut

    @property
    def resumable_tokens(self) -> int:
        """Its first tokens of which stages can go on with KV when one of them is replaced: none
        where it is cut, as a replaced stage is sent the rows of all tokens, and cuts nothing."""
        return 0 if self.is_cut else self.held_tokens

    @property
    def generated_tokens(self) -> int:
        """Tokens of its answer so far, those of rings before among them."""
        return len(self.output)

    @property
    def request(self) -> Request:
        """Request as the head is to compute it from now on."""
        return Request(
            self.request_id,
            self.packed,
            self.sampling,
            output=tuple(self.output),
            priority=self.priority,
            cache_salt=self.cache_salt,
            wishes=self.wishes,
            prediction=self.prediction,
        )

    def take_of_prompt(self, said: PromptScore) -> str | None:
        """Take what the tail says of a token of the prompt; why it cannot be honest, else None."""
        return "log-probabilities unasked" if self.scores is None else self.scores.take(said)

    def take(self, token_ids: Collection[int], now: float) -> None:
        """Its next tokens have come, all in one message."""
        self.output += token_ids
        self.held_tokens = self.prompt_tokens + self.generated_tokens - 1
        if self.timeline is not None:
            self.timeline.tokens_came(len(token_ids), now)


def newest_to_shed(live: Collection[LiveSequence]) -> LiveSequence | None:
    """The newest sequence of the lowest priority that the ring computes; None: it computes at most
    one."""
    computed = [one for one in live if not one.on_hold]
    if len(computed) < 2:
        return None
    return max(computed, key=lambda one: (one.priority, one.request_id))


def _too_long(tokens: int, most: int, card: ModelCard) -> InvalidRequestError:
    why = f"The prompt's {tokens} tokens and max_tokens {most} exceed the model's"
    return InvalidRequestError(f"{why} {card.model_len_max}: shorten one. {card.bound}".rstrip())


def _check_readable(request: Request) -> None:
    """Raise InvalidRequestError unless the head can read it: what it cannot it drops unheard."""
    try:
        decode_message(encode_message(Submit(request), 0), FROM_COORDINATOR)
    except FrameError as error:
        raise InvalidRequestError(f"No ring can read this request: {error}.") from None


def note_prompts(live: Mapping[int, LiveSequence], head: StageHealth, now: float) -> None:
    """Take what a head reports of its prompts into the timelines of the sequences, and end those
    that it cannot compute: no other ring of the model could."""
    for request_id, reason in head.recent_refused:
        if (one := live.get(request_id)) is not None:
            one.enqueue(InvalidRequestError(f"The ring cannot compute this: {reason}."))
    for request_id, tokens, waited_s in head.recent_prompts:
        one = live.get(request_id)
        if one is not None and one.timeline is not None:
            one.timeline.prompt_computed(tokens, waited_s, now)
    for request_id, start, end, after_s in head.recent_pieces:
        one = live.get(request_id)
        if one is not None and one.timeline is not None:
            one.timeline.piece_sent(start, end, after_s, now)
