"""Responses that go on without a connection, and the streams that read them.

With `background` an answer is generated in a task of its own, which keeps its events until it has
ended: whoever comes back, after a reload or over another network, reads on behind the last event
that he has seen (`starting_after`). Later, and from an answer that an earlier coordinator has
begun, the same events are written again from its kept tokens, so their numbers are the same.

A stored answer is bounded by its request like any other; `linger_s` ends one that nobody reads.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice

from aiohttp import web

from molink.api.answers import OPENS_AFTER_S, generate_all, kept_answer
from molink.api.callers import caller_of
from molink.api.chat.prompt import ChatPrompt
from molink.api.chat.typed_answer import Event, KeptWriter, NamedStream, event_batches
from molink.api.errors import RETRY_AFTER_S, ApiError, as_api_error
from molink.serving.answers.kept_answer import KeptAnswer
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest, GenerationService
from molink.serving.token_events import TokenEvent
from molink.tasks import Signal, cancel

ANSWERS_MAX = 256
"""Answers under way without a connection: a token's event takes some 400 bytes, so an answer of
4,000 tokens 1.6 MB."""

READ_EVERY_S = 0.25
"""Seconds between two looks at an answer that is read from its file."""


@dataclass(eq=False)
class BackgroundAnswer:
    """One answer under way, and the events of it so far, by their numbers from 0."""

    writer: KeptWriter
    linger_s: float | None
    """Seconds for which it goes on when nobody reads it; None: to its end."""
    events: list[Event] = field(default_factory=list)
    changed: Signal = field(default_factory=Signal)
    failure: ApiError | None = None
    """Why it has not begun."""
    task: asyncio.Task[None] | None = None
    is_unwanted: bool = False
    """Whether its client has ended it; one that the server ends goes on at its next start."""
    _readers: int = 0
    _lingering: asyncio.TimerHandle | None = None

    async def run(
        self,
        request: web.Request,
        service: GenerationService,
        job: GenerationRequest,
        prompt: ChatPrompt,
    ) -> None:
        """Generate it to its end, whatever that is."""

        async def consume(_: int, tokens: AsyncIterator[TokenEvent]) -> None:
            async for batch in event_batches(prompt, tokens, self.writer):
                self._add(self.writer.started() if not self.events else (), batch)

        try:
            await generate_all(request, service, [job], consume, len(prompt.token_ids))
        except asyncio.CancelledError:
            if self.is_unwanted:
                self._add(self.writer.started() if not self.events else ())
                self._add(self.writer.stopped("cancelled"))
            raise
        except Exception as error:
            failure = as_api_error(error)
            if self.events:
                self._add(self.writer.failed(failure))
            else:
                self.failure = failure
        finally:
            self.changed.send()

    async def end(self) -> None:
        """End it because its client wants that: its readers are told."""
        self.is_unwanted = True
        await cancel(self.task)

    def _add(self, *batches: Sequence[Event]) -> None:
        for batch in batches:
            self.events += batch
        self.changed.send()

    async def has_begun(self) -> None:
        """Wait a while for its first token, then give it an id. Raises ApiError when it was refused
        until then; a client that leaves until then knows no id, and ends it."""
        assert self.task is not None, "it was started"
        try:
            async with asyncio.timeout(OPENS_AFTER_S):
                while not (self.events or self.task.done()):
                    await self.changed.wait()
        except TimeoutError:
            if not self.events:
                self._add(self.writer.started())
        except asyncio.CancelledError:
            await self.end()
            raise
        if self.failure is not None:
            raise self.failure

    # -- readers ----------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read it; it lingers when the last reader has left."""
        self._readers += 1
        if self._lingering is not None:
            self._lingering.cancel()
        try:
            yield
        finally:
            self._readers -= 1
            if self._readers == 0 and self.linger_s is not None and self.task is not None:
                loop = asyncio.get_running_loop()
                self._lingering = loop.call_later(self.linger_s, self.task.cancel)


@dataclass(slots=True)
class BackgroundAnswers:
    """Answers under way without a connection, by their owner and id."""

    _known: dict[tuple[str, str], BackgroundAnswer] = field(default_factory=dict)

    def check_room(self) -> None:
        """Raise ApiError (429) when there are as many as there may be."""
        if len(self._known) >= ANSWERS_MAX:
            raise ApiError(
                f"{ANSWERS_MAX} answers are under way in the background: send yours again later.",
                status=429,
                code="too_many_sequences",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )

    def start(
        self,
        request: web.Request,
        service: GenerationService,
        job: GenerationRequest,
        prompt: ChatPrompt,
        answer: BackgroundAnswer,
    ) -> None:
        """Begin an answer; it is known until it has ended."""
        name = _owner(request), str(answer.writer.body["id"])
        answer.task = asyncio.create_task(answer.run(request, service, job, prompt))
        self._known[name] = answer
        answer.task.add_done_callback(lambda _: self._known.pop(name, None))

    def find(self, request: web.Request) -> BackgroundAnswer | None:
        """The answer of the caller's of which the path names the id; None: it is not under way."""
        return self._known.get((_owner(request), request.match_info["id"]))

    async def close(self) -> None:
        """End all answers that are under way."""
        await cancel(*(one.task for one in self._known.values()))


BACKGROUND = web.AppKey("background", BackgroundAnswers)


def _owner(request: web.Request) -> str:
    return caller_of(request).key_id or ""


async def read_on(
    request: web.Request, answer: BackgroundAnswer, first: int = 0
) -> web.StreamResponse:
    """Stream an answer under way from its event with the number `first` on."""
    assert answer.task is not None, "it was started"
    with answer.reading():
        async with NamedStream(request) as stream:
            stream.taken()
            while True:
                if batch := answer.events[first:]:
                    await stream.send(*batch)
                    first += len(batch)
                elif answer.failure is not None:
                    raise answer.failure
                elif answer.task.done():
                    break
                else:
                    await answer.changed.wait()
    return stream.response


async def read_kept(
    request: web.Request, card: ModelCard, prompt: ChatPrompt, writer: KeptWriter, first: int
) -> web.StreamResponse:
    """Stream an answer from what is kept of it, as it grows, from its event `first` on."""
    ends: list[KeptAnswer] = []

    async def behind(events: list[Event]) -> None:
        new = [event for event in events if event["sequence_number"] >= first]
        if new:
            await stream.send(*new)

    async with NamedStream(request) as stream:
        stream.taken()
        await behind(list(writer.started()))
        tokens = _kept_tokens(lambda: kept_answer(request), card, ends)
        async for batch in event_batches(prompt, tokens, writer):
            await behind(batch)
        ending = ends[-1].ending
        if ending is not None and ending.finish_reason is None:
            failed = writer.failed(ApiError(ending.error)) if ending.error else ()
            await behind(list(failed or writer.stopped("cancelled")))
    return stream.response


async def _kept_tokens(
    look: Callable[[], Awaitable[KeptAnswer]], card: ModelCard, ends: list[KeptAnswer]
) -> AsyncIterator[TokenEvent]:
    """The events of a kept answer until it ends, which is noted. The last token waits for what is
    behind it: with the end it may have more text."""
    sent = 0
    while True:
        kept = await look()
        has_ended = kept.ending is not None
        known = len(kept.token_ids) + has_ended - 1
        stop = None if has_ended else max(sent, known)
        for event in islice(kept.events(card), sent, stop):
            yield event
        if has_ended:
            ends.append(kept)
            return
        sent = max(sent, known)
        await asyncio.sleep(READ_EVERY_S)
