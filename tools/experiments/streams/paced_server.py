"""The API in front of stages that do no arithmetic: each answer gets its tokens at a fixed pace.

    python -m tools.experiments.streams.paced_server

prints its URL. A prompt has two token ids: tokens per second, and KiB of blanks behind each. The
text of a token is when it was made, on the clock of `time.monotonic`, which all processes of a
machine share: who reads it knows how long it was under way.
"""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from molink.api import create_app, start_api
from molink.errors import OverloadedError
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.request_log import RequestLog
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent

__all__ = ["MODULE"]

MODULE = "tools.experiments.streams.paced_server"

CARD = ModelCard("paced", 0, 256, 1_000_000, (), None)


@dataclass
class PacedService:
    """Service whose answers come at the pace that each asks for."""

    card: ModelCard = CARD
    unready_reason: str | None = None
    overload: OverloadedError | None = None
    request_log: RequestLog = field(default_factory=RequestLog)
    events: EventLedger = field(default_factory=EventLedger)
    watch: ClusterWatch = field(default_factory=ClusterWatch)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        """Tokens at their pace, as many as were asked for."""
        timeline, count = request.timeline, request.sampling.max_tokens
        assert timeline is not None, "the API makes one"
        tokens_per_s, blanks_kib = request.prompt_token_ids
        with self.request_log.following(timeline):
            began_s, blanks = time.monotonic(), " " * (1024 * blanks_kib)
            timeline.submitted(0, (), began_s)
            for number in range(count):
                due_s = began_s + (number + 1) / tokens_per_s
                await asyncio.sleep(due_s - time.monotonic())
                now = time.monotonic()
                timeline.tokens_came(1, now)
                reason = "length" if number + 1 == count else None
                if reason:
                    timeline.finished(reason, now)
                yield TokenEvent((1,), f"{now!r} {blanks}", finish_reason=reason)

    async def until_taken(self) -> None:
        """Return at once: no ring's link has to take anything."""

    def cluster(self) -> ClusterReport:
        """A cluster without stages."""
        return from_plain(ClusterReport, {"model": self.card.name})


async def _main() -> None:
    runner = await start_api(create_app(PacedService()), "127.0.0.1", 0)
    host, port = runner.addresses[0][:2]
    print(f"http://{host}:{port}", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_main())
