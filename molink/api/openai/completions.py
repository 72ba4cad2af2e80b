"""`POST /v1/completions`: OpenAI's plain continuation of one or several prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from aiohttp import web

from molink.api.answers import Answer, finite
from molink.api.body import checked_body
from molink.api.callers import caller_of
from molink.api.errors import ApiError
from molink.api.grammars.fields import grammar_of
from molink.api.openai.answer import Job, answer_openai
from molink.api.openai.echo import ShownPrompt, wanted_scores
from molink.api.openai.logprobs import TokenTexts
from molink.api.requests import (
    check_model,
    generation_requests,
    prompt_list,
    token_budget,
    tokenizer_of,
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
from molink_scheduler.request import CONTEXT_TOKENS_MAX

__all__ = ["DEFAULT_MAX_TOKENS", "CompletionDialect", "post_completions"]

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""

GAP_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""Of Qwen and CodeGemma, of StarCoder and Granite, of DeepSeek: before the prompt, before what
comes behind, and before the answer."""


async def post_completions(
    service: GenerationService, texts: TokenTexts, request: web.Request
) -> web.StreamResponse:
    """Answer one request. Choice `p * n + i` is answer i to prompt p."""
    card = service.card
    async with checked_body(request, CompletionBody) as body:
        check_model(body.model, card)
        given = prompt_list(body.prompt)
        prompts = [
            await tokens_of_prompt(_around_gap(prompt, body.suffix, card), card) for prompt in given
        ]
        shown = [ShownPrompt.of(*one, body, card) for one in zip(given, prompts, strict=True)]
        grammar = await grammar_of(request, body, card)
        usual = caller_of(request).priority
        requests = [
            one for prompt in prompts for one in _requests(prompt, body, card, grammar, usual)
        ]
        job = Job.of(body, requests, sum(len(prompt) for prompt in prompts))
        job = replace(
            job,
            best_of=_candidates(body),
            kept=body.n or 1,
            prompt_only=body.max_tokens == 0,
            is_scored=wanted_scores(body) is not None,
        )
        dialect = CompletionDialect(texts, shown, body.n or 1, body.logprobs)
    return await answer_openai(request, service, job, dialect)


def _around_gap(prompt: str | list[Any], suffix: str | None, card: ModelCard) -> str | list[Any]:
    """The prompt and what comes behind the answer, in the marks with which the model was trained to
    fill gaps. Raises ApiError where it was not."""
    if not suffix:
        return prompt
    tokenizer = tokenizer_of(card, "suffix")
    for marks in GAP_MARKS:
        are_tokens = all(len(tokenizer.encode(one, add_special_tokens=False)) == 1 for one in marks)
        if are_tokens and isinstance(prompt, str):
            begin, hole, end = marks
            return f"{begin}{prompt}{hole}{suffix}{end}"
    raise ApiError(
        "'suffix' needs a prompt of text and a model that was trained to fill gaps: leave it out.",
        param="suffix",
        code="unsupported_parameter",
    )


def _requests(
    prompt: tuple[int, ...], body: CompletionBody, card: ModelCard, grammar: str, usual: int
) -> Sequence[GenerationRequest]:
    asked = 1 if body.max_tokens == 0 else body.max_tokens
    max_tokens = token_budget(asked, len(prompt), card, default=DEFAULT_MAX_TOKENS, param="prompt")
    candidates = _candidates(body)
    is_ranked = body.logprobs is None and candidates is not None
    return generation_requests(
        prompt,
        body,
        card,
        max_tokens=max_tokens,
        logprobs=0 if is_ranked else body.logprobs,
        usual_priority=usual,
        grammar=grammar,
        choices=candidates or body.n or 1,
        prompt_logprobs=wanted_scores(body),
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

    def __init__(
        self, texts: TokenTexts, prompts: Sequence[ShownPrompt], choices: int, logprobs: int | None
    ) -> None:
        self._texts = texts
        self._prompts = prompts
        self._choices = choices
        """Of each prompt."""
        self._logprobs = logprobs
        self._offsets: dict[int, int] = {}
        """Of each choice that has begun."""
        self._before: dict[int, tuple[int, ...]] = {}
        """The last tokens of each, in the prompt where that is not echoed."""

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A choice of a whole answer."""
        prompt = self._prompts[index // self._choices]
        choice = self._choice(index, answer)
        if prompt.scores is not None:
            choice["prompt_logprobs"] = prompt.entries(answer.prompt_logprobs, self._texts)
        return choice

    def shown_once(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """Nothing: each choice shows its own prompt."""
        return {}

    def delta(self, index: int, event: TokenEvent) -> dict[str, Any]:
        """A choice of a streamed chunk: the same shape with what is new."""
        return self._choice(index, event)

    def _choice(self, index: int, part: Answer | TokenEvent) -> dict[str, Any]:
        """With the prompt, where it is echoed and this is the choice's first part."""
        prompt = self._prompts[index // self._choices]
        is_begin = prompt.is_echoed and index not in self._offsets
        self._offsets.setdefault(index, 0)
        unechoed = () if prompt.is_echoed else prompt.token_ids[-CONTEXT_TOKENS_MAX:]
        self._before.setdefault(index, unechoed)
        lists = None
        if self._logprobs is not None:
            unscored = prompt.token_ids[:1] if is_begin else ()
            scored = [*(part.prompt_logprobs if is_begin else ()), *part.logprobs]
            lists = self._lists(index, unscored, scored)
        return {
            "index": index,
            "text": prompt.text + part.text if is_begin else part.text,
            "logprobs": lists,
            "finish_reason": part.finish_reason,
        }

    def _lists(
        self, index: int, unscored: Sequence[int], logprobs: Sequence[TokenLogprob]
    ) -> dict[str, list[Any]]:
        """OpenAI's four lists; `text_offset` counts the characters of the tokens before this
        one."""
        token_ids = [*unscored, *(one.token_id for one in logprobs)]
        nothing = [None] * len(unscored)
        offset, offsets, before = self._offsets[index], [], self._before[index]
        for token_id in token_ids:
            offsets.append(offset)
            offset += self._texts.shown_chars(before, token_id)
            before = (*before, token_id)[-CONTEXT_TOKENS_MAX:]
        self._offsets[index], self._before[index] = offset, before
        return {
            "tokens": [self._texts.text(token_id) for token_id in token_ids],
            "token_logprobs": [*nothing, *(finite(one.logprob) for one in logprobs)],
            "top_logprobs": [*nothing, *(self._top(one) for one in logprobs)],
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the chosen one; of tokens with the same text the likelier
        counts."""
        top: dict[str, float] = {}
        for token_id, logprob in (*one.top[: self._logprobs], (one.token_id, one.logprob)):
            top.setdefault(self._texts.text(token_id), finite(logprob))
        return top
