"""A ring's client over links whose tail says what a test says."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from types import SimpleNamespace

from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.links import (
    LinkEvent,
)
from molink.errors import RingError, StageError
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.stage_protocol.health import StageHealth
from molink.stage_protocol.messages import StageLoaded
from molink.wire.frames import (
    Cancel,
    FinishReason,
    Sampled,
    SetCodec,
    Submit,
    TokenSample,
)
from molink_scheduler.batch import BatchClass
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.capacity import Offer
from molink_scheduler.recovery.instructions import ResumeRequests
from molink_scheduler.request import SamplingParams

CARD = ModelCard("m", 0, 100, 64, (), None)
LENGTH = FinishReason.LENGTH
LOADED = StageLoaded(5000, 5001, "cpu", "float32", 64, 1, kv_token_bytes=1000)
TERMS = SimpleNamespace(ring=RingTerms(64))


async def until(condition) -> None:
    """Let the loop run until a condition holds."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - it happens by itself
            await asyncio.sleep(0)


@dataclass
class FakeLinks:
    """Links whose tail says what a test says."""

    events: "asyncio.Queue[LinkEvent]" = field(default_factory=asyncio.Queue)
    sent: list = field(default_factory=list)
    is_full: bool = False

    async def next_event(self) -> LinkEvent:
        return await self.events.get()

    def send(self, message: Submit | Cancel | SetCodec) -> None:
        if self.is_full:
            raise RingError("The link to the head is lost.")
        self.sent.append(message)

    def tell(self, *tokens: TokenSample) -> None:
        self.events.put_nowait(Sampled(BatchClass.DECODE, 0, (), tokens))


@dataclass
class FakeStage:
    """As much of a stage as a client asks for."""

    name: str
    failed: bool = False
    offer: Offer = Offer(0, 4)  # noqa: RUF009 - a tuple
    health: StageHealth | None = None
    loaded: StageLoaded = LOADED

    def fail(self, reason: str) -> StageError:
        self.failed = True
        return StageError(reason)


@dataclass
class Serving:
    """A client that runs, and the stages of its ring."""

    links: FakeLinks = field(default_factory=FakeLinks)

    async def __aenter__(self) -> "Serving":
        self.stages = [FakeStage("anna"), FakeStage("ben")]
        ring = SimpleNamespace(stages=self.stages, terms=TERMS, epoch=1)
        self.client = RingClient(CARD, ring, self.links, head_silent=lambda: None)
        self.run = asyncio.create_task(self.client.run())
        return self

    async def __aexit__(self, *failure: object) -> None:
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)

    def ask(
        self,
        max_tokens: int = 2,
        output: tuple[int, ...] = (),
        stall_factor: float = 1.0,
        **sampling: object,
    ) -> "asyncio.Task[list[int]]":
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        return asyncio.create_task(self._answer(params, output, stall_factor))

    async def _answer(
        self, sampling: SamplingParams, output: tuple[int, ...], stall_factor: float
    ) -> list[int]:
        return await self.drain(GenerationRequest((1, 2), sampling), output, stall_factor)

    async def drain(
        self, request: GenerationRequest, output: tuple[int, ...] = (), stall_factor: float = 1.0
    ) -> list[int]:
        events = self.client.generate(request, output, stall_factor)
        return [one async for event in events for one in event.token_ids]

    async def submitted(self, count: int = 1) -> int:
        """The id of the latest request, once there are so many."""
        while len(self.links.sent) < count:  # noqa: ASYNC110 - it happens by itself
            await asyncio.sleep(0)
        return self.links.sent[-1].request.request_id


def next_ring(s: Serving) -> SimpleNamespace:
    return SimpleNamespace(stages=s.stages, terms=TERMS, epoch=2)


def going_on(listed: Collection[int] = (), missing: Collection[int] = ()) -> ResumeRequests:
    """Requests that flow again, of which some stages keep KV; of cached blocks none were asked."""
    return ResumeRequests(frozenset(listed), frozenset(missing), 0, None)


async def asked(s: Serving, **options: object) -> "tuple[asyncio.Task[list[int]], int]":
    answer = s.ask(**options)
    return answer, await s.submitted(len(s.links.sent) + 1)
