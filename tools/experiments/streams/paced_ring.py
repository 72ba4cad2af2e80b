"""The API in front of a ring's client, whose tail draws each answer's tokens at a fixed pace.

    python -m tools.experiments.streams.paced_ring

prints its URL. As `paced_server`, but what the coordinator keeps of each answer is real: its queue,
its text, its place on the ring. A prompt has the same two token ids. A token's id says when it was
drawn and whether blanks follow it.
"""

import asyncio
import heapq
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from molink.api import create_app, start_api
from molink.coordinator.reports.cluster_report import service_report
from molink.coordinator.requests.cluster_service import ClusterService
from molink.coordinator.requests.serving_ring import ServingRing
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.links import RingClientLinks
from molink.coordinator.ring.ring import Ring
from molink.serving.model_card import ModelCard
from molink.wire.frames import Cancel, FinishReason, Sampled, SetCodec, Submit, TokenSample
from molink_scheduler.batch import BatchClass
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.waiting_line import WaitingLine

__all__ = ["MODULE"]

MODULE = "tools.experiments.streams.paced_ring"

TICK_S = 0.005
"""A micro-batch brings the tokens that are due within one."""

UNITS_PER_S = 10_000
"""Of the time that a token's id says."""


class Words:
    """Tokenizer of token ids that are times, each with its blanks."""

    chat_template = None

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        """Text of token ids: the time of each in seconds, and blanks after it."""
        return "".join(
            f"{(one >> 8) / UNITS_PER_S} {' ' * (1024 * (one & 255))}" for one in token_ids
        )


CARD = ModelCard("paced", 0, 2**62, 1_000_000, (), cast(Any, Words()))


class EndlessLine(WaitingLine):
    """Line that is never full: what a crowd costs is asked here, not whether it is let in."""

    def is_full(self, within_s: float, now: float) -> bool:
        """Whether too much waits for the ring: never."""
        return False


@dataclass
class _Drawing:
    """Answer that is being drawn."""

    every_s: float
    kib: int
    left: int
    due_at: float


@dataclass
class PacedLinks:
    """Links to a ring that computes nothing."""

    _drawing: dict[int, _Drawing] = field(default_factory=dict)
    _due: list[tuple[float, int]] = field(default_factory=list)
    """When each answer's next token is, the first of them at the head; of ended ones too."""

    def send(self, message: Submit | Cancel | SetCodec) -> None:
        """Begin an answer, or end it."""
        match message:
            case Submit(request):
                pace, kib = request.prompt
                left = request.sampling.max_tokens - len(request.output)
                due_at = time.monotonic() + 1 / pace
                self._drawing[request.request_id] = _Drawing(1 / pace, kib, left, due_at)
                heapq.heappush(self._due, (due_at, request.request_id))
            case Cancel(request_id):
                self._drawing.pop(request_id, None)

    async def next_event(self) -> Sampled:
        """The tokens that have become due."""
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            if tokens := tuple(self._drawn_until(now)):
                return Sampled(BatchClass.DECODE, 0, (), tokens)

    def _drawn_until(self, now: float) -> Iterator[TokenSample]:
        while self._due and self._due[0][0] <= now:
            _, request_id = heapq.heappop(self._due)
            if (drawing := self._drawing.get(request_id)) is not None:
                yield self._drawn(request_id, drawing, now)
                heapq.heappush(self._due, (drawing.due_at, request_id))

    def _drawn(self, request_id: int, drawing: _Drawing, now: float) -> TokenSample:
        drawing.due_at += drawing.every_s
        drawing.left -= 1
        if not drawing.left:
            del self._drawing[request_id]
        end = FinishReason.NONE if drawing.left else FinishReason.LENGTH
        return TokenSample(request_id, (int(now * UNITS_PER_S) << 8) + drawing.kib, end)


async def _main() -> None:
    ring = SimpleNamespace(stages=(), terms=SimpleNamespace(ring=RingTerms(1_000_000)))
    links = cast(RingClientLinks, PacedLinks())
    client = RingClient(CARD, cast(Ring, ring), links, head_silent=lambda: None)
    client.forecaster.line = EndlessLine()
    service = ClusterService(CARD, service_report)
    service.add(ServingRing(0, client, 1.0))
    running = asyncio.create_task(client.run())
    runner = await start_api(create_app(service), "127.0.0.1", 0)
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    running.cancel()
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_main())
