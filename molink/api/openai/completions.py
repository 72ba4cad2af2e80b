"""`POST /v1/completions`: OpenAI's plain continuation of one or several prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from molink.api.answers import Answer, finite
from molink.api.body import checked_body
from molink.api.errors import ApiError
from molink.api.grammars.fields import grammar_of
from molink.api.openai.answer import Job, TokenTexts, answer_openai
from molink.api.requests import (
    check_model,
    generation_requests,
    prompt_list,
    token_budget,
    tokens_of_prompt,
)
from molink.api.schemas import CompletionBody
from molink.serving.service import (
    GenerationRequest,
    GenerationService,
    ModelCard,
    TokenEvent,
    TokenLogprob,
)

__all__ = ["DEFAULT_MAX_TOKENS", "CompletionDialect", "post_completions"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""


async def post_completions(
    service: GenerationService, texts: TokenTexts, request: web.Request
) -> web.StreamResponse:
    """Answer one request. Choice `p * n + i` is answer i to prompt p."""
    card = service.card
    async with checked_body(request, CompletionBody) as body:
        check_model(body.model, card)
        prompts = [await tokens_of_prompt(prompt, card) for prompt in prompt_list(body.prompt)]
        grammar = await grammar_of(request, body, card)
        requests = [one for prompt in prompts for one in _requests(prompt, body, card, grammar)]
        job = Job.of(body, requests, sum(len(prompt) for prompt in prompts))
        job = replace(job, best_of=_candidates(body), kept=body.n or 1)
        dialect = CompletionDialect(texts, body.logprobs is not None)
    return await answer_openai(request, service, job, dialect)


def _requests(
    prompt: tuple[int, ...], body: CompletionBody, card: ModelCard, grammar: str
) -> Sequence[GenerationRequest]:
    max_tokens = token_budget(
        body.max_tokens, len(prompt), card, default=DEFAULT_MAX_TOKENS, param="max_tokens"
    )
    candidates = _candidates(body)
    is_ranked = body.logprobs is None and candidates is not None
    return generation_requests(
        prompt,
        body,
        card,
        max_tokens=max_tokens,
        logprobs=0 if is_ranked else body.logprobs,
        grammar=grammar,
        choices=candidates or body.n or 1,
    )


def _candidates(body: CompletionBody) -> int | None:
    """Answers to each prompt of which the best are kept; None: all are."""
    if body.best_of is None or body.best_of == (body.n or 1):
        return None
    if body.stream:
        raise ApiError(
            "'best_of' above 'n' cannot be streamed: leave one of them out.", param="best_of"
        )
    return body.best_of


class CompletionDialect:
    """Writer of choices with `text`, and log-probabilities as parallel lists."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    def __init__(self, texts: TokenTexts, with_logprobs: bool) -> None:
        self._texts = texts
        self._with_logprobs = with_logprobs
        self._offsets: dict[int, int] = {}

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A choice of a whole answer."""
        return self._choice(index, answer.text, answer.logprobs, answer.finish_reason)

    def delta(self, index: int, event: TokenEvent) -> dict[str, Any]:
        """A choice of a streamed chunk: the same shape with what is new."""
        return self._choice(index, event.text, event.logprobs, event.finish_reason)

    def _choice(
        self,
        index: int,
        text: str,
        logprobs: Sequence[TokenLogprob],
        finish_reason: str | None,
    ) -> dict[str, Any]:
        return {
            "index": index,
            "text": text,
            "logprobs": self._lists(index, logprobs) if self._with_logprobs else None,
            "finish_reason": finish_reason,
        }

    def _lists(self, index: int, logprobs: Sequence[TokenLogprob]) -> dict[str, list[Any]]:
        """OpenAI's four lists; `text_offset` counts the characters of the answer's tokens before
        this one."""
        tokens = [self._texts.text(one.token_id) for one in logprobs]
        offset, offsets = self._offsets.get(index, 0), []
        for one in logprobs:
            offsets.append(offset)
            offset += len(self._texts.shown(one.token_id))
        self._offsets[index] = offset
        return {
            "tokens": tokens,
            "token_logprobs": [finite(one.logprob) for one in logprobs],
            "top_logprobs": [self._top(one) for one in logprobs],
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the chosen one; of tokens with the same text the likelier
        counts."""
        top: dict[str, float] = {}
        for token_id, logprob in (*one.top, (one.token_id, one.logprob)):
            top.setdefault(self._texts.text(token_id), finite(logprob))
        return top
