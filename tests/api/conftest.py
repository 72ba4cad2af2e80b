"""A service that answers from a script, and a real server in front of it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any

import aiohttp
import openai
import pytest
from jinja2 import Environment

from molink.api import create_app, start_api
from molink.errors import OverloadedError, RingError
from molink.findings.watch import ClusterWatch
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from molink.report.requests import StageLayers
from molink.serving.answers.deadline import until_deadline
from molink.serving.events import EventLedger
from molink.serving.model_card import ModelCard
from molink.serving.request_log import RequestLog
from molink.serving.service import GenerationRequest
from molink.serving.token_events import PromptLogprob, TokenEvent, TokenLogprob

VOCABULARY_SIZE = 300
EOS = 3
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'assistant' and loop.first %}{{ raise_exception('user first') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def _raise_exception(message: str) -> None:
    from jinja2 import TemplateError

    raise TemplateError(message)


@dataclass
class CharTokenizer:
    """One token for each Latin-1 character, id 1 before a text as its beginning."""

    chat_template: str | None = CHAT_TEMPLATE

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        ids = [ord(char) % VOCABULARY_SIZE for char in text]
        return [1, *ids] if add_special_tokens else ids

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool = False) -> str:
        return "".join(chr(one) for one in token_ids)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"<{one}>" for one in ids]

    def apply_chat_template(
        self,
        conversation: list[dict[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        assert not tokenize and not (add_generation_prompt and continue_final_message)
        environment = Environment()
        environment.globals["raise_exception"] = _raise_exception
        text = environment.from_string(self.chat_template).render(
            messages=conversation, add_generation_prompt=add_generation_prompt, **variables
        )
        last = conversation[-1]["content"]
        return text[: text.rindex(last) + len(last)] if continue_final_message else text


CARD = ModelCard(
    name="tiny/model",
    created_unix_s=1_700_000_000,
    vocabulary_size=VOCABULARY_SIZE,
    model_len_max=200,
    eos_token_ids=(EOS,),
    tokenizer=CharTokenizer(),
)


@dataclass
class FakeService:
    """Answers "abc..." up to max_tokens, a token an event; can hold or fail, tells when it ends."""

    card: ModelCard = CARD
    unready_reason: str | None = None
    overload: OverloadedError | None = None
    events_before_hold: int | None = None
    """Wait after this many events, until `goes_on` or the caller closes the generator."""
    failure: Exception | None = None
    events_before_failure: int = 0
    token_limit: int = 26
    """Finish with "stop" after this many tokens."""
    stages: tuple[StageLayers, ...] = ()
    """Of the ring that computes."""
    requests: list[GenerationRequest] = field(default_factory=list)
    goes_on: asyncio.Event = field(default_factory=asyncio.Event)
    """Set by a test that lets a generator that waits go on."""
    holding: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released once by each generator that begins to wait."""
    closed: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    """Released once by each generator that ends, however it ends."""

    async def until_taken(self) -> None:
        if self.unready_reason is not None:
            raise RingError(self.unready_reason)
        if self.overload is not None:
            raise self.overload

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        async with aclosing(self._generate(request)) as events:
            async for event in until_deadline(events, request.deadline_at):
                yield event

    async def _generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        self.requests.append(request)
        timeline = request.timeline
        assert timeline is not None, "the API makes one"
        try:
            with self.request_log.following(timeline):
                timeline.submitted(0, self.stages, time.monotonic())
                for position in range(min(request.sampling.max_tokens, self.token_limit)):
                    await self._before_event(position)
                    timeline.tokens_came(1, time.monotonic())
                    event = self._event(request, position)
                    if event.finish_reason is not None:
                        timeline.finished(event.finish_reason, time.monotonic())
                    yield event
        finally:
            self.closed.release()

    async def _before_event(self, position: int) -> None:
        if self.failure is not None and position == self.events_before_failure:
            raise self.failure
        if position == self.events_before_hold:
            self.holding.release()
            await self.goes_on.wait()

    def _event(self, request: GenerationRequest, position: int) -> TokenEvent:
        sampling = request.sampling
        token = ord("a") + position % 26
        reason = None
        if position + 1 == self.token_limit:
            reason = "stop"
        elif position + 1 == sampling.max_tokens:
            reason = "length"
        return TokenEvent(
            token_ids=(token,),
            text="" if self.card.tokenizer is None else chr(token),
            logprobs=() if sampling.logprobs is None else (_logprob(token, sampling.logprobs),),
            finish_reason=reason,
            prompt_logprobs=_prompt_logprobs(request) if position == 0 else (),
        )

    def cluster(self) -> ClusterReport:
        return from_plain(ClusterReport, {"model": self.card.name})

    request_log: RequestLog = field(default_factory=RequestLog)
    events: EventLedger = field(default_factory=EventLedger)
    watch: ClusterWatch = field(default_factory=ClusterWatch)


def _prompt_logprobs(request: GenerationRequest) -> tuple[PromptLogprob, ...]:
    """As if each token of a prompt were the likeliest, and the next one the second."""
    count = request.sampling.prompt_logprobs
    if count is None:
        return ()
    return tuple(
        PromptLogprob(token, -1.0, tuple((token + k, -1.0 - k / 2) for k in range(count)), rank=1)
        for token in request.prompt_token_ids[1:]
    )


def _logprob(token: int, count: int) -> TokenLogprob:
    others = [(token + k, -0.5 - k if k < 2 else float("-inf")) for k in range(count)]
    return TokenLogprob(token, -0.5, tuple(others))


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def bare_service() -> FakeService:
    """A model without a tokenizer."""
    return FakeService(card=replace(CARD, tokenizer=None))


@pytest.fixture
def templateless_service() -> FakeService:
    return FakeService(card=replace(CARD, tokenizer=CharTokenizer(chat_template=None)))


@pytest.fixture
async def serve() -> AsyncGenerator[Callable[..., Awaitable[str]], None]:
    """`await serve(service)` starts a server on a free port and gives its URL."""
    runners = []

    async def start(service: FakeService, **options: Any) -> str:
        runner = await start_api(create_app(service, **options), "127.0.0.1", 0)
        runners.append(runner)
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


@pytest.fixture
async def http() -> AsyncGenerator[aiohttp.ClientSession, None]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def client(
    service: FakeService, serve: Callable[..., Awaitable[str]]
) -> AsyncGenerator[openai.AsyncOpenAI, None]:
    """OpenAI's own client of a server of the test's `service`."""
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client
