"""`POST /v1/chat/completions`: OpenAI's conversation, in the model's own chat template."""

from collections.abc import Sequence
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
    token_budget,
    tokens_of_conversation,
)
from molink.api.schemas import ChatBody
from molink.serving.service import (
    GenerationRequest,
    GenerationService,
    ModelCard,
    TokenEvent,
    TokenLogprob,
)

__all__ = ["ChatDialect", "post_chat_completions"]

BROKEN_CHARACTER = "\ufffd"
"""What a tokenizer shows for a token that holds only part of a character's bytes."""


async def post_chat_completions(
    service: GenerationService, texts: TokenTexts, request: web.Request
) -> web.StreamResponse:
    """Answer one request. Without a limit the answer may fill what is left of the model's
    length."""
    card = service.card
    async with checked_body(request, ChatBody) as body:
        check_model(body.model, card)
        prompt = await tokens_of_conversation(body.messages, card)
        grammar = await grammar_of(request, body, card)
        job = Job.of(body, _requests(prompt, body, card, grammar), len(prompt))
        dialect = ChatDialect(texts, bool(body.logprobs))
    return await answer_openai(request, service, job, dialect)


def _requests(
    prompt: tuple[int, ...], body: ChatBody, card: ModelCard, grammar: str
) -> Sequence[GenerationRequest]:
    new_name = body.max_completion_tokens is not None
    max_tokens = token_budget(
        body.max_completion_tokens if new_name else body.max_tokens,
        len(prompt),
        card,
        default=None,
        param="max_completion_tokens" if new_name else "max_tokens",
    )
    return generation_requests(
        prompt,
        body,
        card,
        max_tokens=max_tokens,
        logprobs=_logprobs_wanted(body),
        grammar=grammar,
        choices=body.n or 1,
    )


def _logprobs_wanted(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs is not None:
        raise ApiError(
            "'top_logprobs' needs 'logprobs': true: add it or leave 'top_logprobs' out.",
            param="top_logprobs",
        )
    return None


class ChatDialect:
    """Writer of choices with a `message`, streamed as a `delta` whose first one names the role."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, texts: TokenTexts, with_logprobs: bool) -> None:
        self._texts = texts
        self._with_logprobs = with_logprobs
        self._opened: set[int] = set()

    def choice(self, index: int, answer: Answer) -> dict[str, Any]:
        """A choice of a whole answer."""
        return {
            "index": index,
            "message": {"role": "assistant", "content": answer.text, "refusal": None},
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": answer.finish_reason,
        }

    def delta(self, index: int, event: TokenEvent) -> dict[str, Any]:
        """A choice of a streamed chunk."""
        delta = {"content": event.text}
        if index not in self._opened:
            self._opened.add(index)
            delta = {"role": "assistant", "content": event.text}
        return {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(event.logprobs),
            "finish_reason": event.finish_reason,
        }

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        return {"content": [self._position(one) for one in logprobs], "refusal": None}

    def _position(self, one: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token_id, logprob) for token_id, logprob in one.top]
        return self._token(one.token_id, one.logprob) | {"top_logprobs": top}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._texts.text(token_id)
        whole = BROKEN_CHARACTER not in text
        return {
            "token": text,
            "logprob": finite(logprob),
            "bytes": list(text.encode()) if whole else None,
        }
