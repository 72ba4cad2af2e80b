"""`POST /v1/chat/completions`: OpenAI's conversation, in the model's own chat template."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NotRequired, TypedDict, TypeVar

from aiohttp import web

from molink.api.answers import Answer
from molink.api.backend import Backend
from molink.api.body import checked_body
from molink.api.chat import (
    ChatPrompt,
    Finished,
    Part,
    PartReader,
    ReasoningDelta,
    Reply,
    TextDelta,
    ToolCallDelta,
    chat_prompt,
)
from molink.api.chat.answer_grammar import chat_requests
from molink.api.errors import ApiError
from molink.api.openai.answer import Choice, Job, ShownOnce, answer_openai
from molink.api.openai.chat_schemas import ChatBody
from molink.api.openai.conversation import conversation_of
from molink.api.openai.logprobs import TokenTexts, check_scores, positions, prompt_entries
from molink.api.openapi.answers import ChatMessage, TokenPosition
from molink.api.requests import encoded, token_budget, tokenizer_of
from molink.serving.model_card import ModelCard
from molink.serving.token_events import TokenEvent, TokenLogprob
from molink_scheduler.request import PREDICTION_TOKENS_MAX


class FunctionDelta(TypedDict, total=False):
    """New text of a call: its name comes once, its arguments in pieces."""

    name: str
    arguments: str


class CallDelta(TypedDict):
    """What is new of one call; its first piece names it."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class MessageDelta(TypedDict, total=False):
    """New fields of a streamed message."""

    role: Literal["assistant"]
    content: str
    reasoning: str
    reasoning_content: str
    """The same under its former name, which many clients know."""
    tool_calls: list[CallDelta]
    function_call: FunctionDelta
    """The one call, in OpenAI's former words."""


class Logprobs(TypedDict):
    """Log-probabilities of an answer's tokens, or of those that are new."""

    content: list[TokenPosition]
    refusal: None


class _ChatChoice(Choice):
    logprobs: Logprobs | None


class MessageChoice(_ChatChoice):
    """One answer to a conversation."""

    message: ChatMessage


class DeltaChoice(_ChatChoice):
    """What is new of an answer to a conversation."""

    delta: MessageDelta


Worded = TypeVar("Worded", ChatMessage, MessageDelta)


async def post_chat_completions(backend: Backend, request: web.Request) -> web.StreamResponse:
    """Answer one request. Without a limit the answer may fill what is left of the model's
    length."""
    card = backend.card
    async with checked_body(request, ChatBody, card) as body:
        prompt = await chat_prompt(conversation_of(body), card, backend.format)
        size = len(prompt.token_ids)
        new_name, former = body.max_completion_tokens, body.max_tokens
        asked_tokens = former if new_name is None else new_name
        max_tokens = token_budget(asked_tokens, size, card, param="messages")
        check_scores(body.prompt_logprobs, size, stream=body.stream)
        logprobs, choices = _logprobs_wanted(body), body.n or 1
        first, *others = await chat_requests(
            request, body, card, prompt, max_tokens, logprobs=logprobs, choices=choices
        )
        scored = replace(first.sampling, prompt_logprobs=body.prompt_logprobs)
        prediction = await _prediction_ids(body, card)
        requests = [
            replace(one, prediction=prediction)
            for one in (replace(first, sampling=scored), *others)
        ]
        job = Job.of(
            body,
            requests,
            size,
            is_scored=body.prompt_logprobs is not None,
            is_predicted=body.prediction is not None,
        )
        shown = bool(body.logprobs), body.prompt_logprobs
        dialect = ChatDialect(prompt, backend.texts, *shown, body.is_former)
    return await answer_openai(request, backend.service, job, dialect)


def _logprobs_wanted(body: ChatBody) -> int | None:
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise ApiError(
            "'top_logprobs' needs 'logprobs': true: add it or leave 'top_logprobs' out.",
            param="top_logprobs",
        )
    return None


async def _prediction_ids(body: ChatBody, card: ModelCard) -> tuple[int, ...]:
    """Tokens of the predicted text. Raises ApiError where there are too many."""
    if body.prediction is None:
        return ()
    tokenizer = tokenizer_of(card, "prediction")
    token_ids = await encoded(tokenizer, body.prediction.text, add_special_tokens=False)
    if len(token_ids) > PREDICTION_TOKENS_MAX:
        raise ApiError(
            f"'prediction' is {len(token_ids)} tokens long: send at most {PREDICTION_TOKENS_MAX}.",
            param="prediction",
        )
    card.check_token_ids(token_ids)
    return token_ids


def _message(reply: Reply) -> ChatMessage:
    message: ChatMessage = {
        "role": "assistant",
        "content": reply.text or (None if reply.tool_calls else ""),
        "refusal": None,
    }
    if reply.reasoning:
        message["reasoning"] = message["reasoning_content"] = reply.reasoning
    if reply.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.tool_calls
        ]
    return message


def _delta(parts: Sequence[Part]) -> MessageDelta:
    """New fields of a streamed message."""
    delta: MessageDelta = {}
    for part in parts:
        match part:
            case TextDelta(text):
                delta["content"] = delta.get("content", "") + text
            case ReasoningDelta(text):
                thought = delta.get("reasoning", "") + text
                delta["reasoning"] = delta["reasoning_content"] = thought
            case ToolCallDelta():
                _add_call_delta(delta.setdefault("tool_calls", []), part)
    return delta


def _add_call_delta(deltas: list[CallDelta], part: ToolCallDelta) -> None:
    """Add a part of a call to the deltas, one for each call: some clients read only the first."""
    if part.name:
        function: FunctionDelta = {"name": part.name, "arguments": part.arguments}
        deltas.append(
            {"index": part.index, "id": part.id, "type": "function", "function": function}
        )
    elif deltas and deltas[-1]["index"] == part.index:
        deltas[-1]["function"]["arguments"] += part.arguments
    else:
        deltas.append({"index": part.index, "function": {"arguments": part.arguments}})


@dataclass(slots=True)
class ChatDialect:
    """Writer of choices with a `message`, streamed as a `delta` whose first one names the role."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    prompt: ChatPrompt
    texts: TokenTexts
    with_logprobs: bool
    prompt_logprobs: int | None = None
    is_former: bool = False
    """Whether calls are written in OpenAI's former words."""
    _readers: dict[int, PartReader] = field(default_factory=dict)

    def choice(self, index: int, answer: Answer) -> MessageChoice:
        """A choice of a whole answer."""
        reply = self.prompt.reply(answer.text, answer.finish_reason)
        return {
            "index": index,
            "message": self._worded(_message(reply)),
            "logprobs": self._logprobs(answer.logprobs),
            "finish_reason": self._reason(reply.finish_reason),
        }

    def shown_once(self, answers: Sequence[Answer]) -> ShownOnce:
        """The prompt's log-probabilities, of which all choices have the same."""
        if self.prompt_logprobs is None:
            return {}
        scores = answers[0].prompt_logprobs
        return {"prompt_logprobs": prompt_entries(scores, self.prompt_logprobs, self.texts)}

    def delta(self, index: int, event: TokenEvent) -> DeltaChoice | None:
        """A choice of a streamed chunk; None while a mark may be on its way."""
        is_first = index not in self._readers
        if is_first:
            self._readers[index] = self.prompt.reader()
        parts = self._readers[index].push(event)
        if not parts and not is_first and not event.logprobs:
            return None
        reasons = [part.reason for part in parts if isinstance(part, Finished)]
        delta: MessageDelta = {"role": "assistant", "content": ""} if is_first else {}
        return {
            "index": index,
            "delta": delta | self._worded(_delta(parts)),
            "logprobs": self._logprobs(event.logprobs),
            "finish_reason": self._reason(reasons[0]) if reasons else None,
        }

    def _worded(self, message: Worded) -> Worded:
        """A message or a piece of it, with its one call in the words that the client knows."""
        if self.is_former and (calls := message.pop("tool_calls", None)):
            message["function_call"] = calls[0]["function"]
        return message

    def _reason(self, reason: str | None) -> str | None:
        """Finish reason as OpenAI has it: "stop" for a call that the request itself demanded."""
        if self.is_former and reason == "tool_calls":
            return "function_call"
        is_named = self.prompt.conversation.tool_choice.mode == "named"
        return "stop" if reason == "tool_calls" and is_named else reason

    def _logprobs(self, logprobs: Sequence[TokenLogprob]) -> Logprobs | None:
        if not self.with_logprobs:
            return None
        return {"content": positions(logprobs, self.texts), "refusal": None}
