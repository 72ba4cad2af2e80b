"""An answer in typed events, as OpenAI's responses and Anthropic's messages are.

Both are lists of items that open, grow and close, streamed as events that name what happens; they
differ in the words. So a dialect writes the events of each part, and this file does the rest. A
whole answer takes the same way, and only its end is sent: what a client puts together from events
is what another gets at once.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from molink.api.answers import Answer, EventStream, events_of, generate_all, json_text, status_of
from molink.api.chat.parts import Finished, Part, ReasoningDelta, Reply, TextDelta, ToolCallDelta
from molink.api.chat.prompt import ChatPrompt
from molink.api.errors import ApiError
from molink.api.headers.serving import served_by
from molink.serving.answers.kept_answer import KeptAnswer
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest, GenerationService
from molink.serving.token_events import TokenEvent, TokenLogprob

Event = Mapping[str, Any]
"""Event of a stream, with its `type`."""

TypedPart = ReasoningDelta | TextDelta | ToolCallDelta


@dataclass(slots=True)
class Spent:
    """Tokens of one answer."""

    prompt_tokens: int
    answer_tokens: int = 0
    reasoning_tokens: int = 0
    """Tokens of the answer's that the model thought."""
    _is_thinking: bool = False

    def count(self, event: TokenEvent, parts: Sequence[Part]) -> None:
        """Count the token of an event, from which `parts` came. A token without parts goes with
        those before it: it belongs to a mark, or to half a character."""
        for part in parts:
            if not isinstance(part, Finished):
                self._is_thinking = isinstance(part, ReasoningDelta)
        self.answer_tokens += len(event.token_ids)
        self.reasoning_tokens += len(event.token_ids) if self._is_thinking else 0


@dataclass(slots=True)
class TextLogprobs:
    """Collector of the log-probabilities of an answer's text.

    A token without parts may be half a character: then it goes with the text behind it. After
    thoughts and calls it belongs to a mark, and to no text.
    """

    _held: list[TokenLogprob] = field(default_factory=list)
    _is_text: bool = True

    def attached(self, event: TokenEvent, parts: Sequence[Part]) -> list[Part]:
        """The parts of an event, the first of its text with all that belong there."""
        self._held += event.logprobs
        found: list[Part] = []
        for part in parts:
            if isinstance(part, TextDelta):
                part, self._held = TextDelta(part.text, tuple(self._held)), []
            if not isinstance(part, Finished):
                self._is_text = isinstance(part, TextDelta)
            found.append(part)
        if not self._is_text:
            self._held = []
        return found


class TypedWriter(ABC):
    """Base of the writers of one answer in a dialect."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body
        """The whole as it is now."""
        self._events: list[Event] = []

    @abstractmethod
    def started(self) -> Sequence[Event]:
        """The events before all parts."""

    @abstractmethod
    def wrote(self, part: TypedPart) -> Sequence[Event]:
        """The events of the next part."""

    @abstractmethod
    def ended(
        self, finish_reason: str, stop_reason: str | int | None, spent: Spent
    ) -> Sequence[Event]:
        """The events after all parts."""

    @abstractmethod
    def failed(self, error: ApiError) -> Sequence[Event]:
        """The events of an answer that cannot go on."""

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


class KeptWriter(TypedWriter):
    """Base of the writers of answers that can be read before their end."""

    @abstractmethod
    def stopped(self, status: str) -> list[Event]:
        """Write the answer as it is, though it has no end; the events that close it."""


class NamedStream(EventStream):
    """Context manager that writes events under their names."""

    last = b""

    def encode(self, event: Event) -> bytes:
        """An event as it is sent, its name in front."""
        name = event.get("type", "error")
        return f"event: {name}\n".encode() + super().encode(event)


class _TypedStream(NamedStream):
    """Context manager that writes the events of a writer."""

    def __init__(self, request: web.Request, writer: TypedWriter) -> None:
        super().__init__(request)
        self._writer, self.first = writer, writer.started()

    def failed(self, error: ApiError) -> Sequence[Event]:
        """The events of a failure, in the dialect's words."""
        return self._writer.failed(error)


async def answer_typed(
    request: web.Request,
    service: GenerationService,
    job: GenerationRequest,
    prompt: ChatPrompt,
    writer: TypedWriter,
    *,
    stream: bool,
) -> web.StreamResponse:
    """Generate one sequence and answer with it, whole or event by event."""

    async def whole(_: int, events: AsyncIterator[TokenEvent]) -> web.StreamResponse:
        await _write_whole(prompt, events, writer)
        return web.json_response(writer.body, dumps=json_text)

    async def streamed(_: int, events: AsyncIterator[TokenEvent]) -> web.StreamResponse:
        async with _TypedStream(request, writer) as response:
            response.taken()
            async for batch in event_batches(prompt, events, writer):
                await response.send(*batch)
        return response.response

    consume = streamed if stream else whole
    (response,) = await generate_all(request, service, [job], consume, len(prompt.token_ids))
    return response


async def write_kept(
    prompt: ChatPrompt, answer: KeptAnswer, card: ModelCard, writer: KeptWriter
) -> None:
    """Write an answer again, as far as it is kept."""
    events, status = events_of(answer, card), status_of(answer)
    if answer.ending is not None and answer.ending.finish_reason is not None:
        await _write_whole(prompt, events, writer)
        return
    async for _ in event_batches(prompt, events, writer):
        pass
    if answer.ending is not None and answer.ending.error:
        writer.failed(ApiError(answer.ending.error))
    else:
        writer.stopped(status)


async def event_batches(
    prompt: ChatPrompt, events: AsyncIterator[TokenEvent], writer: TypedWriter
) -> AsyncIterator[list[Event]]:
    """The events that are to be sent together with each round's tokens, where there are any."""
    reader, spent, logprobs = prompt.reader(), Spent(len(prompt.token_ids)), TextLogprobs()
    async for event in events:
        batch = list[Event]()
        for one in event.by_token():
            parts = reader.push(one)
            spent.count(one, parts)
            for part in logprobs.attached(one, parts):
                if isinstance(part, Finished):
                    batch += writer.ended(part.reason, one.stop_reason, spent)
                    batch[-1] = {**batch[-1], "molink": served_by()}
                else:
                    batch += writer.wrote(part)
        if batch:
            yield batch


async def _write_whole(
    prompt: ChatPrompt, events: AsyncIterator[TokenEvent], writer: TypedWriter
) -> None:
    """All parts of an answer at once: in a whole answer a broken call is text."""
    reader, spent, answer = prompt.reader(), Spent(len(prompt.token_ids)), Answer()
    logprobs, texts = TextLogprobs(), list[TextDelta]()
    async for event in events:
        answer.add(event)
        for one in event.by_token():
            parts = reader.push(one)
            spent.count(one, parts)
            texts += [part for part in logprobs.attached(one, parts) if isinstance(part, TextDelta)]
    reply = prompt.reply(answer.text, answer.finish_reason)
    is_read_alike = reply.text == "".join(one.text for one in texts)
    of_text = [one for text in texts for one in text.logprobs]
    for part in _parts(reply, of_text if is_read_alike else answer.logprobs):
        writer.wrote(part)
    writer.ended(reply.finish_reason or "stop", answer.stop_reason, spent)


def _parts(reply: Reply, logprobs: Sequence[TokenLogprob]) -> Iterator[TypedPart]:
    if reply.reasoning:
        yield ReasoningDelta(reply.reasoning)
    if reply.text:
        yield TextDelta(reply.text, tuple(logprobs))
    for index, call in enumerate(reply.tool_calls):
        yield ToolCallDelta(index, call.id, call.name, call.arguments)
