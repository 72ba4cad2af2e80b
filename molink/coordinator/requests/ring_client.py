"""Client of one ring: hands requests to its head, and turns its tail's tokens into text.

It is not on the path of a round: the tail sends each token to the head, which starts the next
round, and a copy here for the user.

The coordinator's two links to one ring: requests go to the head, tokens come from the tail.

The same `ProcessLinks` as in a stage; what happens in its thread is queued for the event loop.

What the tail says is checked before anything is made of it: tokens of a request that nobody made,
outside of the vocabulary, or more than were asked for end the ring, and the tail is to blame. Its
requests go on in the next ring. To drop such a message was rejected: the tokens that belong in its
place never come, and users would wait for them.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any, assert_never

from molink.coordinator.members.ring import Ring
from molink.coordinator.requests.cluster_report import ring_report
from molink.coordinator.requests.codec_check import CodecProbe, await_trial
from molink.errors import (
    InvalidRequestError,
    LinkFullError,
    MolinkError,
    RingError,
    StageError,
)
from molink.serving.service import GenerationRequest, ModelCard, TokenEvent, TokenLogprob
from molink.serving.text_stream import TextStream
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.inbound import Arrived
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import ProcessLinks
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import (
    FROM_TAIL,
    Cancel,
    FinishReason,
    Sampled,
    SetCodec,
    Submit,
    TokenSample,
)
from molink_scheduler.codec_choice import CodecDecision, LosslessTrial, choose_codec
from molink_scheduler.link.facts import LinkMemory, LinkReport
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.silence import GiveUp, Reconnect, SilenceStep
from molink_scheduler.link.transmission import make_transmission
from molink_scheduler.request import LOGPROBS_MAX, Request, SamplingParams

__all__ = ["HeadLost", "HeadSilent", "LinkEvent", "RingClient", "RingClientLinks", "TailRefused"]


@dataclass(frozen=True, slots=True)
class HeadSilent:
    """Event: the head acknowledges nothing, and another path to it is wanted."""


@dataclass(frozen=True, slots=True)
class HeadLost:
    """Event: the link to the head is given up; the reason is a sentence."""

    reason: str
    is_ours: bool = False
    """Whether the coordinator's own links have failed."""


@dataclass(frozen=True, slots=True)
class TailRefused:
    """Event: the tail has sent what no tail sends."""


LinkEvent = Sampled | HeadSilent | HeadLost | TailRefused


@dataclass(slots=True)
class RingClientLinks:
    """Both links, while their thread runs. Made by `bind`."""

    _loop: asyncio.AbstractEventLoop
    head: PacedLink | None = None
    _events: "asyncio.Queue[Arrived | HeadSilent | HeadLost]" = field(default_factory=asyncio.Queue)
    _links: ProcessLinks = field(init=False)

    @classmethod
    def bind(cls, host: str, epoch: int, keys: CurveKeys | None = None) -> "RingClientLinks":
        """Listen for the tail; with `keys`, encrypted. Needs a running event loop."""
        links = cls(asyncio.get_running_loop())
        links._links = ProcessLinks.bind(
            "coordinator", host, (FROM_TAIL,), links._queue, links._on_failure, keys, epoch
        )
        return links

    @property
    def port(self) -> int:
        """Where the tail connects."""
        return self._links.inbound[0].port

    @property
    def report(self) -> LinkReport | None:
        """What is known of the link to the head; None before it is connected."""
        return self.head.report() if self.head is not None else None

    async def connect(
        self, head_address: str, memory: LinkMemory | None = None, head_key: str | None = None
    ) -> None:
        """Open the link to the head; `memory` is what was last known of it, `head_key` the head's
        public key in Z85 where links are encrypted.

        Raises RingError when it does not answer, ValueError when keys are given for one end only.
        """
        queue, pacer = make_transmission(), LinkPacer(memory)
        self.head = self._links.connect(
            "head", head_address, head_key, queue, pacer, self._on_silence
        )
        if not await asyncio.to_thread(self._links.open, self.head):
            raise RingError("The head does not answer: check its link.")

    async def next_event(self) -> LinkEvent:
        """The next batch of tokens that the tail has finished, or what becomes of the head. Nothing
        more is read from the tail while much of what it sent waits for this call."""
        event = await self._events.get()
        if not isinstance(event, Arrived):
            return event
        message = self._links.decode(event)
        return message if isinstance(message, Sampled) else TailRefused()

    def send(self, message: Submit | Cancel | SetCodec) -> None:
        """Send to the head. When too much waits for it already, it counts as lost, and RingError is
        raised."""
        assert self.head is not None, "connect comes first"
        try:
            self._links.send(self.head, message)
        except LinkFullError as error:
            lost = HeadLost(f"The link to the head is lost: {error}.")
            self._events.put_nowait(lost)
            raise RingError(lost.reason) from None

    async def move_head(self, address: str) -> MoveOutcome:
        """Lead the link to the head to another address of it; requests go on meanwhile."""
        assert self.head is not None, "connect comes first"
        outcome: asyncio.Future[MoveOutcome] = self._loop.create_future()

        def done(how: MoveOutcome) -> None:
            self._loop.call_soon_threadsafe(_settle, outcome, how)

        self._links.move(self.head, address, done)
        return await outcome

    def close(self) -> None:
        """Close both links, and end their thread."""
        self._links.close()

    def _on_failure(self, error: Exception) -> None:
        """In the link thread, which ends."""
        self._queue(HeadLost(f"The coordinator's links have failed: {error!r:.200}.", is_ours=True))

    def _on_silence(self, link: PacedLink, step: SilenceStep) -> None:
        """In the link thread: the path to the head seems dead."""
        match step:
            case Reconnect(ask_for_path):
                if ask_for_path:
                    self._queue(HeadSilent())
            case GiveUp(silent_s):
                reason = f"For {silent_s:.0f} s the head has acknowledged nothing over any way."
                self._queue(HeadLost(reason))
            case other:
                assert_never(other)

    def _queue(self, event: Arrived | HeadSilent | HeadLost) -> None:
        """In the link thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)


def _settle(future: "asyncio.Future[MoveOutcome]", outcome: MoveOutcome) -> None:
    """The caller may have been cancelled meanwhile."""
    if not future.done():
        future.set_result(outcome)


REQUESTS_MAX = 4096
"""Sequences accepted at a time, running and waiting; beyond it users get 503 instead of a long
wait."""

_FINISH_REASONS = {
    FinishReason.NONE: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}


@dataclass(slots=True)
class _Sequence:
    """Sequence whose tokens a user waits for."""

    sampling: SamplingParams
    text: TextStream | None
    tokens: int
    """Of prompt and answer together, at most."""
    generated_tokens: int
    """Those of rings before among them."""
    events: asyncio.Queue[TokenEvent | MolinkError] = field(default_factory=asyncio.Queue)


@dataclass(slots=True)
class RingClient:
    """A `GenerationService` over one ring, while `run` runs."""

    card: ModelCard
    ring: Ring
    links: RingClientLinks
    head_silent: Callable[[], None]
    """Called when the head acknowledges nothing and another path to it is wanted."""
    unready_reason: str | None = None
    codec: CodecDecision = field(default_factory=lambda: choose_codec("raw", None))
    """How activations are packed, and why."""
    tokens_sent: int = 0
    """Tokens handed to users since the start."""
    _live: dict[int, _Sequence] = field(default_factory=dict)
    _next_request_id: int = 1
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no sequence runs or waits."""

    def __post_init__(self) -> None:
        self._idle.set()

    async def run(self) -> None:
        """Hand out tokens until cancelled; then what runs fails and what comes is refused. Raises
        StageError when the head is lost, RingError when our own links have failed."""
        try:
            while True:
                match await self.links.next_event():
                    case Sampled() as message:
                        self._take_sampled(message)
                    case TailRefused():
                        raise self._tail_error("what no ring's last stage sends")
                    case HeadSilent():
                        self.head_silent()
                    case HeadLost(reason, is_ours):
                        raise RingError(reason) if is_ours else self.ring.stages[0].fail(reason)
                    case other:
                        assert_never(other)
        finally:
            self._end("The ring has ended.")

    async def until_idle(self) -> None:
        """Until no sequence runs or waits."""
        await self._idle.wait()

    @property
    def outstanding_tokens(self) -> int:
        """Tokens of all sequences: prompts and all that they may generate."""
        return sum(live.tokens for live in self._live.values())

    async def generate(
        self, request: GenerationRequest, output: tuple[int, ...] = ()
    ) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence; closing the generator cancels it on the ring.

        `output` is what another ring has generated of it: those tokens are computed again and not
        sent again."""
        request_id, live = self._submit(request, output)
        try:
            while True:
                event = await live.events.get()
                if isinstance(event, MolinkError):
                    raise event
                if event.finish_reason is not None:
                    self._forget(request_id)
                yield event
                if event.finish_reason is not None:
                    return
        finally:
            if self._forget(request_id) and self.unready_reason is None:
                with suppress(RingError):  # `run` hears of it too.
                    self.links.send(Cancel(request_id))

    async def choose_codec(self, wanted: str) -> None:
        """Check codecs with the model's own text as far as `wanted` asks for, and take one."""
        check = trial = None
        if wanted not in ("raw", "lossless"):
            codec = "int8" if wanted == "auto" else wanted
            prompts = await CodecProbe.start(self)
            self.links.send(SetCodec(codec))
            check = await prompts.compare(codec)
            if wanted == "auto" and not check.passed:
                trial = await self._try_lossless(prompts)
        self.codec = choose_codec(wanted, check, trial)
        self.links.send(SetCodec(self.codec.codec))

    async def _try_lossless(self, prompts: CodecProbe) -> LosslessTrial | None:
        self.links.send(SetCodec("lossless"))
        await prompts.send_texts()
        return await await_trial(self.ring.stages, self.ring.terms.upload_mbps)

    def cluster(self) -> dict[str, Any]:
        """The body of GET /cluster."""
        report = ring_report(self.card.name, self.ring, self.links.report, len(self._live))
        return report | {"wire": asdict(self.codec)}

    def _end(self, reason: str) -> None:
        self.unready_reason = reason
        for live in self._live.values():
            live.events.put_nowait(RingError(reason))

    def _submit(self, request: GenerationRequest, output: tuple[int, ...]) -> tuple[int, _Sequence]:
        if self.unready_reason is not None:
            raise RingError(self.unready_reason)
        if len(self._live) >= REQUESTS_MAX:
            raise RingError(f"The server is busy with {REQUESTS_MAX} requests: try again later.")
        sampling = request.sampling
        tokens = len(request.prompt_token_ids) + sampling.max_tokens
        if tokens > self.card.model_len_max:
            raise InvalidRequestError(
                f"The prompt's {len(request.prompt_token_ids)} tokens and max_tokens "
                f"{sampling.max_tokens} exceed the model's {self.card.model_len_max}: shorten one."
            )
        request_id = self._next_request_id
        self._next_request_id += 1
        tokenizer = self.card.tokenizer
        text = TextStream(tokenizer, sampling.stop) if tokenizer is not None else None
        if text is not None:
            for token_id in output:  # One by one, as they were sent: what is held back agrees.
                text.push((token_id,))
        self.links.send(Submit(Request(request_id, request.prompt_token_ids, sampling, output)))
        self._idle.clear()
        live = self._live[request_id] = _Sequence(sampling, text, tokens, len(output))
        return request_id, live

    def _forget(self, request_id: int) -> bool:
        """False for a sequence that has ended before."""
        was_live = self._live.pop(request_id, None) is not None
        if not self._live:
            self._idle.set()
        return was_live

    def _take_sampled(self, message: Sampled) -> None:
        """Hand tokens out; those of requests that have ended are dropped. Raises StageError when
        they cannot be what was asked for."""
        for token in message.tokens:
            live = self._live.get(token.request_id)
            if (objection := self._objection(token, live)) is not None:
                raise self._tail_error(objection)
            if live is not None:
                live.generated_tokens += 1
                self.tokens_sent += 1
                live.events.put_nowait(_event(live, token))

    def _objection(self, token: TokenSample, live: _Sequence | None) -> str | None:
        """Why a token cannot be the tail's honest answer; None: it can."""
        if not 0 < token.request_id < self._next_request_id:
            return "a token of a request that nobody has made"
        words = (token.token_id, *(word for word, _ in token.top))
        if not all(0 <= word < self.card.vocabulary_size for word in words):
            return "a token that is not in the vocabulary"
        if len(token.top) > LOGPROBS_MAX:
            return f"more than {LOGPROBS_MAX} log-probabilities of a token"
        if live is None:
            return None
        left = live.sampling.max_tokens - live.generated_tokens
        if left < 1 or (left == 1 and token.finish is FinishReason.NONE):
            return "more tokens than were asked for"
        return None

    def _tail_error(self, what: str) -> StageError:
        """The end of the ring for something that its tail sent, which is held against it."""
        tail = self.ring.stages[-1]
        return tail.fail(f"{tail.name} has sent {what}.")


def _event(live: _Sequence, token: TokenSample) -> TokenEvent:
    logprobs: tuple[TokenLogprob, ...] = ()
    if token.logprob is not None:
        logprobs = (TokenLogprob(token.token_id, token.logprob, token.top),)
    reason = _FINISH_REASONS[token.finish]
    return TokenEvent((token.token_id,), _text(live, token), logprobs, reason)


def _text(live: _Sequence, token: TokenSample) -> str:
    """Text that became final; a stop token's own text is never shown."""
    if live.text is None:
        return ""
    is_stop_token = token.token_id in live.sampling.stop_token_ids
    text = "" if is_stop_token else live.text.push((token.token_id,))
    return text + live.text.finish() if token.finish is not FinishReason.NONE else text
