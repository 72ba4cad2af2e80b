"""`POST /generate`: MoLink's own way in, with token ids and timing.

OpenAI's shapes have no place for token ids or for when tokens came. This endpoint has both, so it
serves the load generator and models without a tokenizer. Streamed events have the shape of the
whole answer: `text`, `token_ids` and `logprobs` are what is new, `usage` and `timing` are so far.
"""

import secrets
import time
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from molink.api.body import read_body
from molink.api.context import SERVICE
from molink.api.errors import ApiError
from molink.api.event_stream import EventStream, answer_with_events, json_text
from molink.api.fields import GENERATE_UNSUPPORTED
from molink.api.prompts import check_model, tokens_of_prompt
from molink.api.sampling import generation_requests, token_budget
from molink.api.schemas import GenerateBody
from molink.api.sequences import Answer, run_sequences
from molink.api.stopwatch import Stopwatch
from molink.api.token_texts import finite
from molink.api.usage import usage
from molink.serving.service import (
    GenerationRequest,
    GenerationService,
    ModelCard,
    TokenEvent,
    TokenLogprob,
)

__all__ = ["DEFAULT_MAX_TOKENS", "post_generate"]

DEFAULT_MAX_TOKENS = 128
"""A paragraph; less when the model's length leaves less."""


async def post_generate(request: web.Request) -> web.StreamResponse:
    """Handle one request."""
    stopwatch = Stopwatch(time.perf_counter, time.perf_counter())
    service = request.app[SERVICE]
    body = await read_body(request, GenerateBody, GENERATE_UNSUPPORTED)
    job = await _request_of(body, service.card)
    shape = _Shape(f"gen-{secrets.token_hex(12)}", job, stopwatch)
    if not body.stream:
        return web.json_response(await _whole(service, job, shape), dumps=json_text)

    async def write(stream: EventStream) -> None:
        async def receive(_: int, event: TokenEvent) -> None:
            await stream.send(shape.of_event(event))

        await run_sequences(service, [job], receive)

    return await answer_with_events(request, write)


async def _request_of(body: GenerateBody, card: ModelCard) -> GenerationRequest:
    check_model(body.model, card)
    if (body.prompt is None) == (body.prompt_token_ids is None):
        raise ApiError(
            "'prompt' and 'prompt_token_ids' exclude each other: send exactly one of them.",
            param="prompt",
        )
    if body.prompt is None:
        prompt = await tokens_of_prompt(_ids(body), card, "prompt_token_ids")
    else:
        prompt = await tokens_of_prompt(body.prompt, card)
    max_tokens = token_budget(
        body.max_tokens, len(prompt), card, default=DEFAULT_MAX_TOKENS, param="max_tokens"
    )
    (request,) = generation_requests(
        prompt, body, card, max_tokens=max_tokens, logprobs=body.logprobs
    )
    return request


def _ids(body: GenerateBody) -> list[Any]:
    if isinstance(body.prompt_token_ids, list):
        return body.prompt_token_ids
    raise ApiError(
        "'prompt_token_ids' must be a list of whole numbers: send token ids in brackets.",
        param="prompt_token_ids",
    )


async def _whole(
    service: GenerationService, job: GenerationRequest, shape: "_Shape"
) -> dict[str, Any]:
    answer = Answer()

    async def receive(_: int, event: TokenEvent) -> None:
        shape.take(event)
        answer.add(event)

    await run_sequences(service, [job], receive)
    return shape.body(answer.text, answer.token_ids, answer.logprobs, answer.finish_reason)


class _Shape:
    """The JSON of one answer or of its parts."""

    def __init__(self, answer_id: str, job: GenerationRequest, stopwatch: Stopwatch) -> None:
        self._id = answer_id
        self._prompt_tokens = len(job.prompt_token_ids)
        self._with_logprobs = job.sampling.logprobs is not None
        self._stopwatch = stopwatch

    def take(self, event: TokenEvent) -> None:
        """Note the time of an event."""
        self._stopwatch.tokens_came(len(event.token_ids))

    def of_event(self, event: TokenEvent) -> dict[str, Any]:
        """The body of a streamed event."""
        self.take(event)
        return self.body(event.text, event.token_ids, event.logprobs, event.finish_reason)

    def body(
        self,
        text: str,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprob],
        finish_reason: str | None,
    ) -> dict[str, Any]:
        """An answer, whole or in part, with usage and timing so far."""
        body: dict[str, Any] = {
            "id": self._id,
            "text": text,
            "token_ids": token_ids,
            "finish_reason": finish_reason,
            "usage": usage(self._prompt_tokens, self._stopwatch.tokens),
            "timing": self._stopwatch.timing(),
        }
        if self._with_logprobs:
            body["logprobs"] = [_logprob(one) for one in logprobs]
        return body


def _logprob(one: TokenLogprob) -> dict[str, Any]:
    return {
        "token_id": one.token_id,
        "logprob": finite(one.logprob),
        "top": [{"token_id": token_id, "logprob": finite(value)} for token_id, value in one.top],
    }
