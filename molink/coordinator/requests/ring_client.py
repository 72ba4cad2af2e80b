"""Client of one ring: hands requests to its head, and turns its tail's tokens into text.

It is not on the path of a round: the tail sends each token to the head, which starts the next
round, and a copy here for the user.

The coordinator's two links to one ring: requests go to the head, tokens come from the tail.

The same `ProcessLinks` as in a stage; what happens in its thread is queued for the event loop.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any, assert_never

from molink.coordinator.members.ring import Ring
from molink.coordinator.requests.cluster_report import ring_report
from molink.coordinator.requests.codec_check import CodecProbe, await_trial
from molink.errors import InvalidRequestError, MolinkError, RingError
from molink.serving.service import GenerationRequest, ModelCard, TokenEvent, TokenLogprob
from molink.serving.text_stream import TextStream
from molink.transport.link.connections import MoveOutcome
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import MessageFrames, ProcessLinks
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import Cancel, FinishReason, Sampled, SetCodec, Submit, TokenSample
from molink_scheduler.codec_choice import CodecDecision, LosslessTrial, choose_codec
from molink_scheduler.link.facts import LinkMemory, LinkReport
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.silence import GiveUp, Reconnect, SilenceStep
from molink_scheduler.link.transmission import make_transmission
from molink_scheduler.request import Request, SamplingParams

__all__ = [
    "HeadLost",
    "HeadSilent",
    "LinkEvent",
    "RequestStalledError",
    "RingClient",
    "RingClientLinks",
    "Served",
]


@dataclass(frozen=True, slots=True)
class HeadSilent:
    """Event: the head acknowledges nothing, and another path to it is wanted."""


@dataclass(frozen=True, slots=True)
class HeadLost:
    """Event: the link to the head is given up; the reason is a sentence."""

    reason: str
    is_ours: bool = False
    """Whether the coordinator's own links have failed."""


LinkEvent = Sampled | HeadSilent | HeadLost


@dataclass(slots=True)
class RingClientLinks:
    """Both links, while their thread runs. Made by `bind`."""

    _loop: asyncio.AbstractEventLoop
    events: "asyncio.Queue[LinkEvent]" = field(default_factory=asyncio.Queue)
    """Every batch of tokens that the tail has finished, and what becomes of the head."""
    head: PacedLink | None = None
    _links: ProcessLinks = field(init=False)

    @classmethod
    def bind(cls, host: str, epoch: int, keys: CurveKeys | None = None) -> "RingClientLinks":
        """Listen for the tail; with `keys`, encrypted. Needs a running event loop."""
        links = cls(asyncio.get_running_loop())
        links._links = ProcessLinks.bind(
            "coordinator", host, 1, links._deliver, links._on_failure, keys, epoch
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

    def send(self, message: Submit | Cancel | SetCodec) -> None:
        """Send to the head."""
        assert self.head is not None, "connect comes first"
        self._links.send(self.head, message)

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

    def _deliver(self, frames: MessageFrames) -> None:
        """In the link thread."""
        message = self._links.decode(frames)
        if isinstance(message, Sampled):
            self._queue(message)

    def _queue(self, event: LinkEvent) -> None:
        self._loop.call_soon_threadsafe(self.events.put_nowait, event)


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


TOKEN_WITHIN_S, FIRST_TOKEN_WITHIN_S = 300.0, 900.0
"""Between two tokens of a sequence, and until the first: who was preempted waits for room, and who
came last for all before, so this is only for what a head has lost or holds back."""

ROUND_WEIGHT, ROUND_MAX_S = 0.1, 10.0
"""Of the newest time between two tokens; longer ones are pauses of a preempted sequence."""


class RequestStalledError(RingError):
    """Raised when a ring that goes on has left one request lying."""


@dataclass(frozen=True, slots=True)
class Served:
    """What a ring has brought its users, by the coordinator's own count."""

    tokens: int
    """Since the start."""
    decoding: int
    """Sequences that have had a token and wait for more."""
    prompt_tokens: int
    """Of the longest prompt whose first token is waited for; 0: none is."""
    round_s: float
    """Smoothed time between two tokens of a sequence; 0: not known yet."""


@dataclass(slots=True)
class _Sequence:
    """Sequence whose tokens a user waits for."""

    sampling: SamplingParams
    text: TextStream | None
    tokens: int
    """Of prompt and answer together, at most."""
    known_tokens: int
    """That the ring computes before the first that it generates."""
    moved_at: float
    """When it was submitted, or its latest token came."""
    has_token: bool = False
    """Whether this ring has generated one."""
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
    _round_s: float = 0.0
    """Smoothed time between two tokens of a sequence; 0: not known yet."""
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
                match await self.links.events.get():
                    case Sampled() as message:
                        self._take_sampled(message)
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

    def served(self) -> Served:
        """What the ring has brought its users."""
        waiting = [live.known_tokens for live in self._live.values() if not live.has_token]
        return Served(
            self.tokens_sent,
            len(self._live) - len(waiting),
            max(waiting, default=0),
            self._round_s,
        )

    def give_up_stalled(self, now: float) -> None:
        """Fail the sequences for which nothing has come for so long that another ring, or another
        try, is better."""
        for live in self._live.values():
            longest_s = TOKEN_WITHIN_S if live.has_token else FIRST_TOKEN_WITHIN_S
            if now - live.moved_at > longest_s:
                live.moved_at = now
                live.events.put_nowait(RequestStalledError("The ring has left the request lying."))

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
        self._idle.clear()
        known_tokens = len(request.prompt_token_ids) + len(output)
        live = _Sequence(sampling, text, tokens, known_tokens, time.monotonic())
        self._live[request_id] = live
        self.links.send(Submit(Request(request_id, request.prompt_token_ids, sampling, output)))
        return request_id, live

    def _forget(self, request_id: int) -> bool:
        """False for a sequence that has ended before."""
        was_live = self._live.pop(request_id, None) is not None
        if not self._live:
            self._idle.set()
        return was_live

    def _take_sampled(self, message: Sampled) -> None:
        now = time.monotonic()
        for token in message.tokens:
            live = self._live.get(token.request_id)
            if live is not None:
                self.tokens_sent += 1
                self._note_token(live, now)
                live.events.put_nowait(_event(live, token))

    def _note_token(self, live: _Sequence, now: float) -> None:
        elapsed_s = min(ROUND_MAX_S, now - live.moved_at)
        if live.has_token:
            weight = ROUND_WEIGHT if self._round_s else 1.0
            self._round_s += weight * (elapsed_s - self._round_s)
        live.has_token, live.moved_at = True, now


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
