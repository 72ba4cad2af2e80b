"""A server with a small scripted model, in a thread of its own so that commands can run beside
it."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from molink.api import create_app, start_api
from molink.errors import OverloadedError, RingError
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.request_log import RequestLog
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent


@dataclass
class WordTokenizer:
    """One token for each character."""

    chat_template: str | None = "any"

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [ord(char) % 100 for char in text]

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(one) for one in token_ids)

    def apply_chat_template(self, conversation: list[dict[str, Any]], **_: Any) -> str:
        return "".join(f"[{one['role']}]{one['content']}" for one in conversation)


CARD = ModelCard(
    name="tiny",
    created_unix_s=0,
    vocabulary_size=100,
    model_len_max=120,
    eos_token_ids=(3,),
    tokenizer=WordTokenizer(),
)


@dataclass
class CountingService:
    """Writes "0 1 2 ..." and fails the requests whose number is in `failing`, after one token."""

    card: ModelCard = CARD
    unready_reason: str | None = None
    handed_over: str = ""
    overload: OverloadedError | None = None
    failing: frozenset[int] = frozenset()
    holds: bool = False
    """Whether answers stop after their first token and wait for ever."""
    requests: list[GenerationRequest] = field(default_factory=list)
    running: int = 0
    running_most: int = 0
    request_log: RequestLog = field(default_factory=RequestLog)
    events: EventLedger = field(default_factory=EventLedger)
    watch: ClusterWatch = field(default_factory=ClusterWatch)

    async def until_taken(self) -> None:
        if self.unready_reason is not None:
            raise RingError(self.unready_reason)
        if self.overload is not None:
            raise self.overload

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        number = len(self.requests)
        self.requests.append(request)
        self.running += 1
        self.running_most = max(self.running_most, self.running)
        try:
            count = request.sampling.max_tokens
            for position in range(count):
                if position == 1 and number in self.failing:
                    raise RingError("Stage 2 was lost: try again.")
                if position == 1 and self.holds:
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
                last = "length" if position + 1 == count else None
                yield TokenEvent((position % 100,), f"{position} ", finish_reason=last)
        finally:
            self.running -= 1

    def cluster(self) -> ClusterReport:
        return from_plain(ClusterReport, {})


@pytest.fixture
def service() -> CountingService:
    return CountingService()


@pytest.fixture
def url(service: CountingService) -> Iterator[str]:
    """Address of a running server in front of `service`."""
    with running(create_app(service)) as address:
        yield address


@contextmanager
def running(app: web.Application, data_dir: Path | None = None) -> Iterator[str]:
    """Address of a server of this app, which runs in the block; with `data_dir` its owner's
    commands reach it there."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def on_loop(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    runner = on_loop(start_api(app, "127.0.0.1", 0, data_dir=data_dir))
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        on_loop(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
