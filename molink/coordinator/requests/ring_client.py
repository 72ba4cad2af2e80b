"""Serves one model over one ring: hands requests to the head, and turns the tail's tokens into
text.

It is not on the path of a round: the tail sends each token to the head, which starts the next
round, and a copy here for the user.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from molink.coordinator.requests.codec_check import CodecProbe
from molink.coordinator.requests.lossless_trial import await_trial
from molink.coordinator.requests.ring import Ring
from molink.coordinator.requests.ring_client_links import RingClientLinks
from molink.coordinator.requests.ring_report import ring_report
from molink.errors import InvalidRequestError, MolinkError, RingError
from molink.serving.service import GenerationRequest, ModelCard, TokenEvent, TokenLogprob
from molink.serving.text_stream import TextStream
from molink.wire.messages import Cancel, FinishReason, Sampled, SetCodec, Submit, TokenSample
from molink_scheduler.codec_choice import CodecDecision, LosslessTrial, choose_codec
from molink_scheduler.request import Request, SamplingParams

__all__ = ["RingClient"]

REQUESTS_MAX = 4096
"""Sequences accepted at a time, running and waiting; beyond it users get 503 instead of a long
wait."""

_FINISH_REASONS = {
    FinishReason.NONE: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}


@dataclass(slots=True)
class _Live:
    """A sequence that somebody is waiting for."""

    sampling: SamplingParams
    text: TextStream | None
    tokens: int
    """Of prompt and answer together, at most."""
    events: asyncio.Queue[TokenEvent | MolinkError] = field(default_factory=asyncio.Queue)


@dataclass(slots=True)
class RingClient:
    """A `GenerationService` over one ring."""

    card: ModelCard
    ring: Ring
    links: RingClientLinks
    lost: asyncio.Future[MolinkError]
    """Done when a stage is gone and the ring with it."""
    remedy: str = "Start the server again."
    """What an operator can do then."""
    unready_reason: str | None = None
    codec: CodecDecision = field(default_factory=lambda: choose_codec("raw", None))
    """How activations are packed, and why."""
    report: Callable[[], dict[str, Any]] = field(default=dict)
    """What GET /cluster says beside the ring."""
    tokens_told: int = 0
    """Handed to users since the start."""
    _live: dict[int, _Live] = field(default_factory=dict)
    _next_request_id: int = 1
    _idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while nobody waits for anything."""

    def __post_init__(self) -> None:
        self.links.sampled = self._take_sampled
        self.links.head_lost = lambda reason: self._lose(RingError(reason))
        self._idle.set()

    async def watch(self) -> None:
        """Follow the ring until it is lost; then fail what runs, refuse what comes, set `lost`."""
        try:
            await self.ring.watch()
        except MolinkError as error:
            self._lose(error)

    def end(self, reason: str) -> None:
        """Fail what runs and refuse what comes."""
        self.unready_reason = reason
        for live in self._live.values():
            live.events.put_nowait(RingError(reason))

    @property
    def running_count(self) -> int:
        """Sequences that somebody is waiting for."""
        return len(self._live)

    async def until_idle(self) -> None:
        """Until nobody waits for anything."""
        await self._idle.wait()

    @property
    def outstanding_tokens(self) -> int:
        """Of those, prompt and all that they may generate."""
        return sum(live.tokens for live in self._live.values())

    async def generate(
        self, request: GenerationRequest, output: tuple[int, ...] = ()
    ) -> AsyncGenerator[TokenEvent, None]:
        """Stream one sequence; closing the generator cancels it on the ring.

        `output` is what another ring has generated of it: those tokens are computed again and not
        told again."""
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
        return await await_trial(self.ring.stages, self.ring.facts.upload_mbps)

    def cluster(self) -> dict[str, Any]:
        """The body of GET /cluster."""
        report = ring_report(self.card.name, self.ring, self.links, len(self._live))
        return report | {"wire": asdict(self.codec)} | self.report()

    def _lose(self, error: MolinkError) -> None:
        """A stage is gone, or the way to the head."""
        if not self.lost.done():
            self.end(f"{error} {self.remedy}".rstrip())
            self.lost.set_result(error)

    def _submit(self, request: GenerationRequest, output: tuple[int, ...]) -> tuple[int, _Live]:
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
            for token_id in output:  # One by one, as they were told: what is held back agrees.
                text.push((token_id,))
        self._idle.clear()
        live = self._live[request_id] = _Live(sampling, text, tokens)
        self.links.send(Submit(Request(request_id, request.prompt_token_ids, sampling, output)))
        return request_id, live

    def _forget(self, request_id: int) -> bool:
        """False for a sequence that has ended before."""
        was_live = self._live.pop(request_id, None) is not None
        if not self._live:
            self._idle.set()
        return was_live

    def _take_sampled(self, message: Sampled) -> None:
        for token in message.tokens:
            live = self._live.get(token.request_id)
            if live is not None:
                self.tokens_told += 1
                live.events.put_nowait(_event(live, token))


def _event(live: _Live, token: TokenSample) -> TokenEvent:
    logprobs: tuple[TokenLogprob, ...] = ()
    if token.logprob is not None:
        logprobs = (TokenLogprob(token.token_id, token.logprob, token.top),)
    reason = _FINISH_REASONS[token.finish]
    return TokenEvent((token.token_id,), _text(live, token), logprobs, reason)


def _text(live: _Live, token: TokenSample) -> str:
    """Text that became final; a stop token's own text is never shown."""
    if live.text is None:
        return ""
    is_stop_token = token.token_id in live.sampling.stop_token_ids
    text = "" if is_stop_token else live.text.push((token.token_id,))
    return text + live.text.finish() if token.finish is not FinishReason.NONE else text
