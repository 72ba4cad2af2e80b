"""What completions and chat completions have in common on the way out.

Both answer with choices inside an envelope (id, model, time, usage), whole or in chunks; they
differ in how one choice looks. So a dialect says how a choice and a piece of it look, and this file
does the rest, once.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aiohttp import web

from molink.api.context import SERVICE
from molink.api.errors import ApiError
from molink.api.event_stream import EventStream, answer_with_events, json_text
from molink.api.schemas import ChatBody, CompletionBody
from molink.api.sequences import Answer, collect, run_sequences
from molink.api.usage import usage
from molink.serving.service import GenerationRequest, TokenEvent

__all__ = ["Dialect", "Job", "answer_openai"]


class Dialect(Protocol):
    """How one of OpenAI's endpoints writes a choice. Made for one request: it may count along."""

    id_prefix: str
    whole_object: str
    chunk_object: str

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A whole choice."""

    def delta(self, index: int, event: TokenEvent) -> dict[str, Any]:
        """A choice of a streamed chunk."""


@dataclass(frozen=True, slots=True)
class Job:
    """What one HTTP request comes to."""

    requests: Sequence[GenerationRequest]
    """One for each choice, in the order of their index."""
    prompt_tokens: int
    """Each prompt counted once, however many choices it has."""
    stream: bool
    include_usage: bool

    @classmethod
    def of(
        cls,
        body: ChatBody | CompletionBody,
        requests: Sequence[GenerationRequest],
        prompt_tokens: int,
    ) -> "Job":
        """The job of a checked body."""
        stream, options = bool(body.stream), body.stream_options
        if options is not None and not stream:
            raise ApiError(
                "'stream_options' needs 'stream': true: add it or leave the options out.",
                param="stream_options",
            )
        return cls(requests, prompt_tokens, stream, bool(options and options.include_usage))


async def answer_openai(request: web.Request, job: Job, dialect: Dialect) -> web.StreamResponse:
    """Generate all choices and answer with them."""
    service = request.app[SERVICE]
    envelope = {
        "id": f"{dialect.id_prefix}-{secrets.token_hex(12)}",
        "object": dialect.chunk_object if job.stream else dialect.whole_object,
        "created": int(time.time()),
        "model": service.card.name,
    }
    if job.stream:
        return await _streamed(request, job, dialect, envelope)
    answers = await collect(service, job.requests)
    choices = [dialect.choice(index, answer) for index, answer in enumerate(answers)]
    completion_tokens = sum(len(answer.token_ids) for answer in answers)
    body = envelope | {"choices": choices, "usage": usage(job.prompt_tokens, completion_tokens)}
    return web.json_response(body, dumps=json_text)


async def _streamed(
    request: web.Request, job: Job, dialect: Dialect, envelope: dict[str, Any]
) -> web.StreamResponse:
    no_usage = {"usage": None} if job.include_usage else {}
    completion_tokens = 0

    async def write(stream: EventStream) -> None:
        async def receive(index: int, event: TokenEvent) -> None:
            nonlocal completion_tokens
            completion_tokens += len(event.token_ids)
            await stream.send({**envelope, "choices": [dialect.delta(index, event)], **no_usage})

        await run_sequences(request.app[SERVICE], job.requests, receive)
        if job.include_usage:
            total = usage(job.prompt_tokens, completion_tokens)
            await stream.send({**envelope, "choices": [], "usage": total})

    return await answer_with_events(request, write)
