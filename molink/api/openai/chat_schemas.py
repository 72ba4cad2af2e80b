"""What the JSON of a request to `/v1/chat/completions` may hold.

Parts of a message that hold no text (images, audio) would change the answer and are refused.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, FailFast, Field, ValidationInfo

from molink.api.openai.refused_fields import OF_CHAT
from molink.api.schemas import (
    CHOICES_MAX,
    MESSAGES_MAX,
    TOOLS_MAX,
    Part,
    SamplingBody,
    StreamOptions,
    list_only,
)
from molink_scheduler.request import LOGPROBS_MAX

__all__ = ["ChatBody", "Message", "NamedToolChoice", "ToolBody"]

TOOL_CALLS_MAX = 1024
"""Of one message: more than any model makes in an answer."""


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _as_parts(value: Any, info: ValidationInfo) -> Any:
    if value is None and info.data.get("tool_calls"):
        return []
    if value is None:
        raise ValueError("is missing: add it to the request")
    return [{"type": "text", "text": value}] if isinstance(value, str) else list_only(value)


class TextPart(Part):
    """One part of a message's content; only text is served."""

    type: Literal["text"]
    text: str


class FunctionCall(Part):
    """Name and arguments of a call, as the model wrote them."""

    name: str
    arguments: str


class ToolCallBody(Part):
    """Call that the assistant has made before."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall
    index: int | None = None
    """Of a streamed answer, which some clients leave in. It does nothing."""


class Message(Part):
    """One message of a conversation. `developer` is shown to the chat template as `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: list[ToolCallBody] | None = Field(default=None, max_length=TOOL_CALLS_MAX)
    tool_call_id: str | None = None
    """Of a tool's result: which call it belongs to."""
    content: Annotated[
        list[TextPart], FailFast(), BeforeValidator(_as_parts, str | list[TextPart] | None)
    ] = Field(default=None, validate_default=True)
    """May be absent where the assistant called tools."""
    reasoning: str | None = None
    """What the assistant thought."""
    reasoning_content: str | None = None
    """The same, under the name that many clients use."""
    name: str | None = None


class FunctionBody(Part):
    """Function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of an object. Default: no arguments."""
    strict: bool | None = None
    """Default false. True: arguments match the schema also where the call is not forced, if the
    model writes calls in JSON behind a mark. Those of a forced call always do."""


class ToolBody(Part):
    """Tool that the model may call."""

    type: Literal["function"]
    function: FunctionBody


class NamedFunction(Part):
    """Name of a function."""

    name: ToolName


class NamedToolChoice(Part):
    """The one tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class ChatBody(SamplingBody):
    """Body of `POST /v1/chat/completions`."""

    unsupported: ClassVar = OF_CHAT
    messages: Annotated[list[Message], FailFast(), Field(min_length=1, max_length=MESSAGES_MAX)]
    """The conversation so far."""
    max_completion_tokens: int | None = Field(default=None, ge=1)
    """OpenAI's present name of max_tokens; wins when both are given."""
    n: int | None = Field(default=None, ge=1, le=CHOICES_MAX)
    """Default 1: answers."""
    logprobs: bool | None = None
    """Default false. True: the log-probability of each token."""
    top_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    """Default 0. k: also of the k most likely ones at its place."""
    prompt_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    """Default: none; not streamed. k: of each token of the prompt and of the k most likely at its
    place."""
    stream_options: StreamOptions | None = None
    """Of a stream: `{"include_usage": true}` adds an event with the tokens that were counted."""
    tools: list[ToolBody] | None = Field(default=None, max_length=TOOLS_MAX)
    """Functions that the model may call."""
    tool_choice: Any = None
    """Default "auto" with tools. "none", "auto", "required", or one tool by name."""
    parallel_tool_calls: bool | None = None
    """Default true. False: calls after the first are left out of the answer."""
    reasoning_effort: ReasoningEffort | None = None
    """For the chat template; default: as the template says."""
    include_reasoning: bool | None = None
    """Default true. False: the answer is without its reasoning."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the chat template, such as "enable_thinking"."""
    add_generation_prompt: bool | None = None
    """Default true, without `continue_final_message`: the prompt ends where the assistant's turn
    begins. False: it ends behind the last message."""
    continue_final_message: bool | None = None
    """Default false. True: the answer goes on with the last message, which is usually the
    assistant's; it holds only what is new."""
