"""`/generate`: MoLink's own endpoint, with token ids and timing.

OpenAI's shapes have no field for token ids or for when tokens came. This endpoint has both, so it
serves the load generator and models without a tokenizer. Streamed events have the shape of the
whole answer: `text`, `token_ids` and `logprobs` are what is new, `usage` and `timing` are so far.
"""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from molink.api.answers import (
    Answer,
    EventStream,
    events_of,
    finite,
    generate_all,
    json_text,
    kept_answer,
    logged,
    status_of,
    usage,
)
from molink.api.backend import Backend
from molink.api.body import checked_body
from molink.api.callers import caller_of
from molink.api.errors import ApiError
from molink.api.grammars.fields import grammar_of
from molink.api.headers.request_id import kept_id_of
from molink.api.headers.serving import served_by
from molink.api.openai.logprobs import TokenTexts, check_scores, prompt_entries
from molink.api.openapi.answers import Timing, TokenIdPosition
from molink.api.requests import (
    generation_requests,
    in_worker,
    token_budget,
    tokens_of_ids,
    tokens_of_prompt,
)
from molink.api.schemas import GenerateBody
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest, GenerationService
from molink.serving.token_events import TokenEvent, TokenLogprob

DEFAULT_MAX_TOKENS = 128
"""A paragraph; less when the model's length leaves less."""

DIGITS = 6
"""Microseconds; more digits would be noise in every event."""


@dataclass(slots=True)
class Stopwatch:
    """Arrival, first and last token of one sequence."""

    now_s: Callable[[], float]
    arrived_s: float
    tokens: int = 0
    first_s: float | None = None
    last_s: float = 0.0

    def tokens_came(self, count: int) -> None:
        """Take note of `count` tokens that came now."""
        self.tokens += count
        self.last_s = self.now_s()
        if self.first_s is None:
            self.first_s = self.last_s

    def timing(self) -> Timing:
        """`tpot_s` is the mean time between tokens after the first one, null for a single token."""
        if self.first_s is None:
            return {"ttft_s": None, "tpot_s": None, "total_s": None}
        between = (self.last_s - self.first_s) / (self.tokens - 1) if self.tokens > 1 else None
        return {
            "ttft_s": round(self.first_s - self.arrived_s, DIGITS),
            "tpot_s": None if between is None else round(between, DIGITS),
            "total_s": round(self.last_s - self.arrived_s, DIGITS),
        }


async def post_generate(backend: Backend, request: web.Request) -> web.StreamResponse:
    """Answer one request, whole or as a stream of events."""
    stopwatch = Stopwatch(time.perf_counter, time.perf_counter())
    async with checked_body(request, GenerateBody, backend.card) as body:
        job, is_streamed = await _job_of(request, body, backend.card), body.stream
    answer_id = f"gen-{kept_id_of(request)}"
    job = logged(request, job, answer_id)
    body_of = partial(_body, answer_id, job, stopwatch)

    async def whole(_: int, events: AsyncIterator[TokenEvent]) -> web.StreamResponse:
        answer = Answer()
        async for event in events:
            stopwatch.tokens_came(len(event.token_ids))
            answer.add(event)
        return await _whole_response(body_of(answer), answer, job, backend.texts)

    async def streamed(_: int, events: AsyncIterator[TokenEvent]) -> web.StreamResponse:
        async with EventStream(request) as stream:
            stream.taken()
            async for event in events:
                stopwatch.tokens_came(len(event.token_ids))
                is_last = event.finish_reason is not None
                served = {"molink": served_by()} if is_last else {}
                await stream.send(body_of(event) | served)
        return stream.response

    consume, size = streamed if is_streamed else whole, len(job.prompt_token_ids)
    (response,) = await generate_all(request, backend.service, [job], consume, size)
    return response


async def get_generated(service: GenerationService, request: web.Request) -> web.Response:
    """The answer of which `POST /generate` gave the id, as far as it is."""
    kept = await kept_answer(request)
    first, last = kept.came_unix_s or (None, 0.0)
    tokens = len(kept.token_ids)
    stopwatch = Stopwatch(time.time, kept.created_unix_s, tokens, first, last)
    answer = await Answer.of(events_of(kept, service.card))
    body = _body(kept.answer_id, kept.request, stopwatch, answer)
    error = kept.ending.error if kept.ending is not None else ""
    ending = {"status": status_of(kept), **({"error": {"message": error}} if error else {})}
    return web.json_response(body | ending, dumps=json_text)


async def _whole_response(
    body: dict[str, Any], answer: Answer, job: GenerationRequest, texts: TokenTexts
) -> web.Response:
    count = job.sampling.prompt_logprobs
    if count is None:
        return web.json_response(body, dumps=json_text)

    def written() -> str:
        return json_text(
            body | {"prompt_logprobs": prompt_entries(answer.prompt_logprobs, count, texts)}
        )

    return web.Response(text=await in_worker(written), content_type="application/json")


async def _job_of(request: web.Request, body: GenerateBody, card: ModelCard) -> GenerationRequest:
    if (body.prompt is None) == (body.prompt_token_ids is None):
        raise ApiError(
            "'prompt' and 'prompt_token_ids' exclude each other: send exactly one of them.",
            param="prompt",
        )
    if body.prompt is None:
        prompt = await tokens_of_ids(body.prompt_token_ids, card, "prompt_token_ids")
    else:
        prompt = await tokens_of_prompt(body.prompt, card)
    max_tokens = token_budget(
        body.max_tokens, len(prompt), card, default=DEFAULT_MAX_TOKENS, param="prompt"
    )
    grammar = await grammar_of(request, body, card)
    check_scores(body.prompt_logprobs, len(prompt), stream=body.stream)
    (job,) = generation_requests(
        prompt,
        body,
        card,
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        usual_priority=caller_of(request).priority,
        grammar=grammar,
        prompt_logprobs=body.prompt_logprobs,
    )
    return job


def _body(
    answer_id: str, job: GenerationRequest, stopwatch: Stopwatch, part: Answer | TokenEvent
) -> dict[str, Any]:
    """An answer, whole or in part, with usage and timing so far."""
    body: dict[str, Any] = {
        "id": answer_id,
        "text": part.text,
        "token_ids": part.token_ids,
        "finish_reason": part.finish_reason,
        "stop_reason": part.stop_reason,
        "usage": usage(len(job.prompt_token_ids), stopwatch.tokens),
        "timing": stopwatch.timing(),
    }
    if job.sampling.logprobs is not None:
        body["logprobs"] = [_logprob(one) for one in part.logprobs]
    return body


def _logprob(one: TokenLogprob) -> TokenIdPosition:
    return {
        "token_id": one.token_id,
        "logprob": finite(one.logprob),
        "top": [{"token_id": token_id, "logprob": finite(value)} for token_id, value in one.top],
    }
