"""Answers of endpoints, as types of which `/openapi.json` is made.

Where an answer is written as one dict, its type is a `TypedDict`, which a type checker holds the
writer to; what the coordinator reports is in `molink.report`. Answers that are merged of parts are
models here and dicts there: a test holds one to the other. A field may always be joined by others.
"""

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

Count = Annotated[int, Field(ge=0)]
Length = Annotated[int, Field(ge=1)]
Logprob = Annotated[float, Field(le=0)]

ErrorKind = Literal["invalid_request_error", "requests", "server_error"]

FinishReason = Literal["stop", "length", "tool_calls", "function_call"]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow", use_attribute_docstrings=True)


class Error(TypedDict):
    """Mistake in a request, or failure of the server, with what to do about it."""

    message: str
    """One sentence that says what to do."""
    type: ErrorKind
    param: str | None
    """Path of the field that is wrong, such as `messages.0.role`."""
    code: str | None
    """Name of the mistake, for programs."""


class ErrorAnswer(TypedDict):
    """An error in OpenAI's shape."""

    error: Error


class AnthropicErrorDetail(TypedDict):
    """Failure in Anthropic's words."""

    type: str
    message: str


class AnthropicError(TypedDict):
    """An error in Anthropic's shape."""

    type: Literal["error"]
    error: AnthropicErrorDetail


class PromptTokens(TypedDict):
    """Prompt tokens that a request did not cost."""

    cached_tokens: Count


class CompletionTokens(TypedDict):
    """What became of drafts of an answer for which a prediction was given."""

    accepted_prediction_tokens: Count
    rejected_prediction_tokens: Count


class Usage(TypedDict):
    """Tokens that a request cost."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokens
    completion_tokens_details: NotRequired[CompletionTokens]


class ServedStage(TypedDict):
    """A node that served, and the layers that it held: [first, behind the last]."""

    node: str
    layers: list[int]


class RingPart(TypedDict):
    """Part of a sequence that one ring computed."""

    ring: int
    stages: list[ServedStage]
    tokens: int
    """Tokens that this ring generated."""
    moved_because: str
    """Why the sequence left it for another ring; empty: it did not."""


class ServedBy(TypedDict):
    """The rings that served a request, and what each part took; in a stream's last event."""

    request_id: str | None
    rings: list[int]
    """Numbers of rings, in the order in which they served."""
    nodes: list[str]
    queue_ms: float | None
    """Milliseconds from arrival until a ring began to compute."""
    prefill_ms: float | None
    """Milliseconds from the beginning of the computation to the first token."""
    decode_ms: float | None
    """Milliseconds from the first token to the last."""
    attempts: list[RingPart]
    """Parts that the rings computed: more than one where a ring was lost meanwhile. Empty where
    several sequences were asked for."""
    audited: NotRequired[str]
    """How the request's audit is; only of one that was chosen for an audit."""


class _Choice(_Answer):
    index: int = Field(ge=0)
    finish_reason: FinishReason | None
    stop_reason: str | int | None
    """The stop string or token that was asked for and came; "deadline" where `timeout_s` ended
    it."""


class CompletionLogprobs(TypedDict):
    """Log-probabilities as four lists of one entry for each token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    """The first token of a prompt that is echoed has none."""
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptAlternative(TypedDict):
    """How likely a token was at a place of the prompt."""

    logprob: Logprob
    rank: Length
    decoded_token: str


PromptLogprobs = list[dict[str, PromptAlternative] | None]
"""Log-probabilities of a prompt's tokens by token id: of each (null for the first), its own and the
likeliest ones."""


class CompletionChoice(_Choice):
    """One continuation of one prompt."""

    text: str
    logprobs: CompletionLogprobs | None
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, where they were asked for."""


class _OpenAiAnswer(_Answer):
    id: str
    created: int
    """Seconds since 1970."""
    model: str


class CompletionAnswer(_OpenAiAnswer):
    """Answer of `POST /v1/completions`; streamed events have the same shape with what is new."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: Usage


class TokenAlternative(TypedDict):
    """A token and how likely it was."""

    token: str
    logprob: Logprob
    bytes: list[int] | None
    """Bytes of the token's text in UTF-8; null where the token is part of a character."""


class TokenPosition(TokenAlternative):
    """A token of the answer, and the likeliest at its place."""

    top_logprobs: list[TokenAlternative]


class ChatLogprobs(_Answer):
    """Log-probabilities of an answer's tokens."""

    content: list[TokenPosition] | None


class FunctionShape(TypedDict):
    """Function that the model calls."""

    name: str
    arguments: str
    """JSON of its arguments."""


class ToolCallShape(TypedDict):
    """Call of a tool."""

    id: str
    type: Literal["function"]
    function: FunctionShape


class ChatMessage(TypedDict):
    """Message with which the model answers: text, calls of tools, or both."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    """What the model thought before it answered."""
    reasoning_content: NotRequired[str]
    """The same, under its former name."""
    tool_calls: NotRequired[list[ToolCallShape]]
    function_call: NotRequired[FunctionShape]
    """The one call, in OpenAI's former words."""


class ChatChoice(_Choice):
    """One answer to a conversation."""

    message: ChatMessage
    logprobs: ChatLogprobs | None


class ChatAnswer(_OpenAiAnswer):
    """Answer of `POST /v1/chat/completions`; streamed events carry `delta` instead of `message`."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, those of the chat template too, where asked for."""


class Timing(TypedDict):
    """Seconds of one answer by the server's clock."""

    ttft_s: float | None
    """Seconds until the first token."""
    tpot_s: float | None
    """Mean time between tokens after it; null for a single token."""
    total_s: float | None


class TokenIdAlternative(TypedDict):
    """A token by its id, and how likely it was."""

    token_id: Count
    logprob: Logprob


class TokenIdPosition(TokenIdAlternative):
    """A token of the answer by its id, and the likeliest at its place."""

    top: list[TokenIdAlternative]


class GenerateAnswer(_Answer):
    """Answer of `POST /generate`; streamed events have the same shape with what is new, and usage
    and timing so far."""

    id: str
    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"] | None
    stop_reason: str | int | None
    usage: Usage
    timing: Timing
    logprobs: list[TokenIdPosition] | None = None
    prompt_logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, where they were asked for."""


class GeneratedAnswer(GenerateAnswer):
    """Answer of `GET /generate/{id}`."""

    status: Literal["completed", "incomplete", "failed", "in_progress", "cancelled"]
    error: dict[str, str] | None = None
    """Error of an answer that has failed: its `message` is a sentence."""


class ModelEntry(TypedDict):
    """One name of the served model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    """The model's own name."""
    parent: str | None
    max_model_len: Length
    """Most tokens of prompt and answer together."""
    context_length: Length
    """Most tokens of prompt and answer together."""
    vocabulary_size: Length
    default_sampling_params: dict[str, float]
    """How tokens are drawn where a request does not say."""


class ModelList(TypedDict):
    """The names of the served model."""

    object: Literal["list"]
    data: list[ModelEntry]


class Health(TypedDict):
    """Whether requests are accepted."""

    status: Literal["ok", "unready"]
    reason: NotRequired[str | None]
    """Why not."""


class PlanAnswer(_Answer):
    """A plan for the PCs that are here, or why there is none."""

    model: str
    plan: dict[str, Any] | None = None
    shortage: str | None = None


class CatalogueAnswer(_Answer):
    """The known models, the most useful on the PCs that are here first."""

    pcs: list[dict[str, Any]]
    """Name and `memory_bytes` of each PC that was planned with."""
    models: list[dict[str, Any]]
    """`state` is `fits`, `too_large` or `refused`; `fit` what it would be: format, rates in tokens
    per second, bytes and seconds of the download."""


class ResponsesAnswer(_Answer):
    """Answer of `/v1/responses`, as OpenAI's `Response`."""

    id: str
    object: Literal["response"]
    status: Literal["completed", "incomplete", "failed", "in_progress", "cancelled"]
    model: str
    output: list[dict[str, Any]]


class MessagesAnswer(_Answer):
    """Answer of `POST /v1/messages`, as Anthropic's `Message`."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: str | None
    stop_sequence: str | None
    usage: dict[str, Any]


class TokenCount(TypedDict):
    """Answer of `POST /v1/messages/count_tokens`."""

    input_tokens: Count


class TokenizeAnswer(TypedDict):
    """Answer of `POST /tokenize`."""

    count: Count
    max_model_len: Length
    tokens: list[int]
    token_strs: NotRequired[list[str] | None]


class DetokenizeAnswer(TypedDict):
    """Answer of `POST /detokenize`."""

    prompt: str
