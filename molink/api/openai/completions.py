"""`POST /v1/completions`: OpenAI's plain continuation of one or several prompts.

An answer may show its prompt: `echo`, and the log-probabilities of the prompt's tokens. With
`max_tokens` 0, which only makes sense together with `echo`, one token is computed all the same and
left out: that is how texts are scored.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NotRequired

from aiohttp import web

from molink.api.answers import Answer, finite
from molink.api.backend import Backend
from molink.api.body import checked_body
from molink.api.callers import caller_of
from molink.api.errors import ApiError
from molink.api.grammars.fields import grammar_of
from molink.api.openai.answer import Choice, Job, ShownOnce, answer_openai
from molink.api.openai.logprobs import TokenTexts, check_scores, prompt_entries
from molink.api.openapi.answers import CompletionLogprobs, PromptLogprobs
from molink.api.requests import (
    generation_requests,
    prompt_list,
    token_budget,
    tokenizer_of,
    tokens_of_prompt,
)
from molink.api.schemas import CompletionBody
from molink.serving.model_card import ModelCard
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent, TokenLogprob
from molink_scheduler.request import CONTEXT_TOKENS_MAX

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default."""

GAP_MARKS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)
"""Marks before the prompt, before what comes behind, and before the answer: those of Qwen and
CodeGemma, of StarCoder and Granite, of DeepSeek."""


async def post_completions(backend: Backend, request: web.Request) -> web.StreamResponse:
    """Answer one request. Choice `p * n + i` is answer i to prompt p."""
    card = backend.card
    async with checked_body(request, CompletionBody, card) as body:
        given = prompt_list(body.prompt)
        prompts = [
            await tokens_of_prompt(_gap_prompt(prompt, body.suffix, card), card) for prompt in given
        ]
        shown = [ShownPrompt.of(*one, body, card) for one in zip(given, prompts, strict=True)]
        grammar = await grammar_of(request, body, card)
        usual = caller_of(request).priority
        requests = [
            one for prompt in prompts for one in _requests(prompt, body, card, grammar, usual)
        ]
        job = Job.of(
            body,
            requests,
            sum(len(prompt) for prompt in prompts),
            best_of=_candidates(body),
            kept=body.n or 1,
            prompt_only=body.max_tokens == 0,
            is_scored=_wanted_scores(body) is not None,
        )
        dialect = CompletionDialect(backend.texts, shown, body.n or 1, body.logprobs)
    return await answer_openai(request, backend.service, job, dialect)


def _gap_prompt(prompt: str | list[Any], suffix: str | None, card: ModelCard) -> str | list[Any]:
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
        prompt_logprobs=_wanted_scores(body),
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


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    """One prompt, and what its answers show of it."""

    token_ids: tuple[int, ...]
    text: str
    """Text of the prompt; empty unless it is echoed."""
    is_echoed: bool
    scores: int | None
    """Alternatives that `prompt_logprobs` asks for; None: it is not asked for."""

    @classmethod
    def of(
        cls,
        prompt: str | Sequence[int],
        token_ids: tuple[int, ...],
        body: CompletionBody,
        card: ModelCard,
    ) -> "ShownPrompt":
        """A prompt as it was sent and as token ids. Raises ApiError for fields that do not go
        together, or ask for too much."""
        _check_shown(body, len(token_ids))
        is_echoed = bool(body.echo)
        text = prompt if isinstance(prompt, str) else ""
        if is_echoed and not text and card.tokenizer is not None:
            text = card.tokenizer.decode(list(token_ids), skip_special_tokens=True)
        return cls(token_ids, text if is_echoed else "", is_echoed, body.prompt_logprobs)


def _wanted_scores(body: CompletionBody) -> int | None:
    """Alternatives for each of the prompt's tokens that the ring is asked for; None: no scores."""
    counts = [body.prompt_logprobs, body.logprobs if body.echo else None]
    return max((count for count in counts if count is not None), default=None)


def _check_shown(body: CompletionBody, prompt_tokens: int) -> None:
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(
            "'max_tokens' must be 1 or more without 'echo': send a larger number.",
            param="max_tokens",
        )
    choices = max(body.n or 1, body.best_of or 1)
    check_scores(_wanted_scores(body), prompt_tokens, shown=choices)
    check_scores(body.prompt_logprobs, prompt_tokens, stream=body.stream)


class TextChoice(Choice):
    """One continuation of a prompt, or what is new of it."""

    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: NotRequired[PromptLogprobs]


@dataclass(slots=True)
class CompletionDialect:
    """Writer of choices with `text`, and log-probabilities as parallel lists."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"

    texts: TokenTexts
    prompts: Sequence[ShownPrompt]
    choices: int
    """Answers to each prompt."""
    logprobs: int | None
    _offsets: dict[int, int] = field(default_factory=dict)
    """Characters so far, of each choice that has begun."""
    _chars: dict[int, Callable[[int], int]] = field(default_factory=dict)
    """Counter of the characters of each choice that has begun."""

    def choice(self, index: int, answer: Answer) -> TextChoice:
        """A choice of a whole answer."""
        prompt = self.prompts[index // self.choices]
        choice = self._choice(index, answer)
        if prompt.scores is not None:
            scores = prompt_entries(answer.prompt_logprobs, prompt.scores, self.texts)
            choice["prompt_logprobs"] = scores
        return choice

    def shown_once(self, answers: Sequence[Answer]) -> ShownOnce:
        """No fields: each choice shows its own prompt."""
        return {}

    def delta(self, index: int, event: TokenEvent) -> TextChoice:
        """A choice of a streamed chunk: the same shape with what is new."""
        return self._choice(index, event)

    def _choice(self, index: int, part: Answer | TokenEvent) -> TextChoice:
        """A choice, with the prompt where that is echoed and this is the choice's first part."""
        prompt = self.prompts[index // self.choices]
        is_begin = prompt.is_echoed and index not in self._offsets
        if index not in self._offsets:
            unechoed = () if prompt.is_echoed else prompt.token_ids[-CONTEXT_TOKENS_MAX:]
            self._offsets[index], self._chars[index] = 0, self.texts.chars_behind(unechoed)
        lists = None
        if self.logprobs is not None:
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
    ) -> CompletionLogprobs:
        """OpenAI's four lists; `text_offset` counts the characters of the tokens before this
        one."""
        token_ids = [*unscored, *(one.token_id for one in logprobs)]
        nothing = [None] * len(unscored)
        counts = map(self._chars[index], token_ids)
        *offsets, self._offsets[index] = accumulate(counts, initial=self._offsets[index])
        return {
            "tokens": [self.texts.text(token_id) for token_id in token_ids],
            "token_logprobs": [*nothing, *(finite(one.logprob) for one in logprobs)],
            "top_logprobs": [*nothing, *(self._top(one) for one in logprobs)],
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens and the chosen one; of tokens with the same text the likelier
        counts."""
        top: dict[str, float] = {}
        for token_id, logprob in (*one.top[: self.logprobs], (one.token_id, one.logprob)):
            top.setdefault(self.texts.text(token_id), finite(logprob))
        return top
