"""Common part of the answers of completions and chat completions.

Both answer with choices inside an envelope (id, model, time, usage), whole or in chunks; they
differ in how one choice looks. So a dialect writes a choice and a piece of it, and this file does
the rest.
"""

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, Protocol, TypedDict

from aiohttp import web

from molink.api.answers import (
    LOGPROB_MIN,
    Answer,
    EventStream,
    finite,
    generate_all,
    json_text,
    usage,
)
from molink.api.headers.request_id import request_id_of
from molink.api.headers.serving import served_by
from molink.api.openai.chat_schemas import ChatBody
from molink.api.openapi.answers import PromptLogprobs, Usage
from molink.api.requests import in_worker
from molink.api.schemas import CompletionBody
from molink.serving.service import GenerationRequest, GenerationService
from molink.serving.token_events import TokenEvent


class Envelope(TypedDict):
    """What an answer's chunks have in common."""

    id: str
    object: str
    created: int
    """Seconds since 1970."""
    model: str


class Choice(TypedDict):
    """One choice, or a piece of it, with what every dialect writes of one."""

    index: int
    finish_reason: str | None
    stop_reason: NotRequired[str | int | None]


class ShownOnce(TypedDict, total=False):
    """What an answer shows of its prompt, beside its choices."""

    prompt_logprobs: PromptLogprobs


class Dialect(Protocol):
    """Writer of one endpoint's choices, made for one request: it may keep counts."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def choice(self, index: int, answer: Answer) -> Choice:
        """A choice of a whole answer."""

    def shown_once(self, answers: Sequence[Answer]) -> ShownOnce:
        """Fields of a whole answer beside its choices, all of which `answers` are."""

    def delta(self, index: int, event: TokenEvent) -> Choice | None:
        """A choice of a streamed chunk; None: there is nothing to tell yet."""


@dataclass(frozen=True, slots=True)
class Job:
    """Sequences that one HTTP request asks for, and how it wants to be answered."""

    requests: Sequence[GenerationRequest]
    """Requests, one for each choice, in the order of their index."""
    prompt_tokens: int
    """Tokens of the prompts, each prompt counted once, however many choices it has."""
    stream: bool
    include_usage: bool
    usage_in_each_chunk: bool = False
    best_of: int | None = None
    """Sequences of each prompt, of which only the best become choices; None: all do."""
    kept: int = 1
    """Sequences of each prompt that become choices."""
    prompt_only: bool = False
    """Whether the answer is left out, because only the prompt is to be shown."""
    is_scored: bool = False
    """Whether it holds log-probabilities of the prompt, which takes long to write."""
    is_predicted: bool = False
    """Whether a prediction came with it, of which the usage tells what became."""

    @classmethod
    def of(
        cls,
        body: ChatBody | CompletionBody,
        requests: Sequence[GenerationRequest],
        prompt_tokens: int,
        **more: Any,
    ) -> "Job":
        """The job of a checked body; `more`: other fields of its own."""
        stream, options = bool(body.stream), body.stream_options
        at_end = bool(options and options.include_usage)
        in_each = at_end and bool(options and options.continuous_usage_stats)
        return cls(requests, prompt_tokens, stream, at_end, in_each, **more)


@dataclass(slots=True)
class PredictedTokens:
    """Counter of the drafts of a request's answers that came true, and of those in vain.

    It counts by events: of the tokens of each the last was drawn, and those before it had been
    drafted. Which drafter has guessed them no event says; where there is a prediction, what repeats
    it is copied from it.
    """

    accepted: int = 0
    rejected: int = 0

    async def counted(self, events: AsyncIterator[TokenEvent]) -> AsyncIterator[TokenEvent]:
        """Events of an answer as they come, whose drafts are counted."""
        async for event in events:
            right = max(0, len(event.token_ids) - 1) if event.drafts else 0
            self.accepted += right
            self.rejected += event.drafts - right
            yield event

    def usage(self, job: Job, tokens: int) -> Usage:
        """What the request cost so far."""
        spent = usage(job.prompt_tokens, tokens)
        if job.is_predicted:
            spent["completion_tokens_details"] = {
                "accepted_prediction_tokens": self.accepted,
                "rejected_prediction_tokens": self.rejected,
            }
        return spent


async def answer_openai(
    request: web.Request, service: GenerationService, job: Job, dialect: Dialect
) -> web.StreamResponse:
    """Generate all choices and answer with them."""
    envelope: Envelope = {
        "id": f"{dialect.id_prefix}-{request_id_of(request)}",
        "object": dialect.chunk_object if job.stream else dialect.whole_object,
        "created": int(time.time()),
        "model": service.card.shown_name,
    }
    if job.stream:
        return await _streamed(request, service, job, dialect, envelope)

    predicted = PredictedTokens()

    async def whole(_: int, events: AsyncIterator[TokenEvent]) -> Answer:
        shown = _without_answer(events) if job.prompt_only else events
        return await Answer.of(predicted.counted(shown))

    answers = await generate_all(request, service, job.requests, whole, job.prompt_tokens)
    completion_tokens = sum(len(answer.token_ids) for answer in answers)

    def written() -> str:
        choices = [
            {**dialect.choice(index, answer), "stop_reason": answer.stop_reason}
            for index, answer in enumerate(_best(answers, job))
        ]
        total = predicted.usage(job, completion_tokens)
        whole = envelope | {"choices": choices, "usage": total}
        return json_text({**whole, **dialect.shown_once(answers)})

    text = await in_worker(written) if job.is_scored else written()
    return web.Response(text=text, content_type="application/json")


async def _without_answer(events: AsyncIterator[TokenEvent]) -> AsyncIterator[TokenEvent]:
    """The same events without tokens and text, as many as it takes to show the prompt."""
    async for event in events:
        yield TokenEvent((), "", (), "length", prompt_logprobs=event.prompt_logprobs)


def _best(answers: Sequence[Answer], job: Job) -> Sequence[Answer]:
    """The answers to each prompt with the highest log-probability per token."""
    if job.best_of is None:
        return answers
    prompts = [answers[at : at + job.best_of] for at in range(0, len(answers), job.best_of)]
    return [
        answer
        for group in prompts
        for answer in sorted(group, key=_mean_logprob, reverse=True)[: job.kept]
    ]


def _mean_logprob(answer: Answer) -> float:
    if not answer.logprobs:
        return LOGPROB_MIN
    return sum(finite(one.logprob) for one in answer.logprobs) / len(answer.logprobs)


async def _streamed(
    request: web.Request,
    service: GenerationService,
    job: Job,
    dialect: Dialect,
    envelope: Envelope,
) -> web.StreamResponse:
    no_usage: dict[str, Usage | None] = {"usage": None} if job.include_usage else {}
    unfinished, predicted = len(job.requests), PredictedTokens()

    def used(tokens: int) -> dict[str, Usage | None]:
        return {"usage": predicted.usage(job, tokens)} if job.usage_in_each_chunk else no_usage

    async def send(index: int, events: AsyncIterator[TokenEvent]) -> int:
        nonlocal unfinished
        stream.taken()
        tokens = 0
        shown = _without_answer(events) if job.prompt_only else events
        async for event in predicted.counted(shown):
            tokens += len(event.token_ids)
            unfinished -= event.finish_reason is not None
            is_last = unfinished == 0 and not job.include_usage
            choice = dialect.delta(index, event)
            if choice is not None:
                choices = [{**choice, "stop_reason": event.stop_reason}]
                served = {"molink": served_by()} if is_last else {}
                await stream.send({**envelope, "choices": choices, **used(tokens), **served})
        return tokens

    async with EventStream(request) as stream:
        spent = await generate_all(request, service, job.requests, send, job.prompt_tokens)
        if job.include_usage:
            total = predicted.usage(job, sum(spent))
            last = {"choices": [], "usage": total, "molink": served_by()}
            await stream.send(envelope | last)
    return stream.response
