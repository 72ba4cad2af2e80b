"""Schemas of the JSON of a request to `/v1/chat/completions`.

Clients send back what other servers gave them, and what their own former versions wrote: calls of
any shape, messages of nothing, functions without a box. All of it can be shown to a model.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag, model_validator

from molink.api.chat.content import (
    NO_CONTENT,
    OTHER,
    Arguments,
    Content,
    OrEmpty,
    flat_tool,
    tag_among,
)
from molink.api.openai.refused_fields import OF_CHAT
from molink.api.schemas import (
    CHOICES_MAX,
    MESSAGES_MAX,
    TOOLS_MAX,
    LeftOut,
    Part,
    SamplingBody,
    StreamOptions,
    belongs_here,
)
from molink.json_object import JsonObject
from molink_scheduler.request import LOGPROBS_MAX

PREDICTION_CHARS_MAX = 2**18
"""Characters of a prediction: a source file of some 7,000 lines, which usual tokenizers make
PREDICTION_TOKENS_MAX tokens of."""

TOOL_CALLS_MAX = 1024
"""Calls of one message: more than any model makes in an answer."""


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")]
ReasoningEffort = Literal["default", "none", "minimal", "low", "medium", "high", "xhigh", "max"]


def _is_flat(value: Any) -> bool:
    """Whether a function stands in a tool as the Responses API writes it, without a box."""
    return isinstance(value, dict) and "name" in value and "function" not in value


def _boxed(value: Any) -> Any:
    if not _is_flat(value):
        return value
    outside = {"id": value["id"]} if "id" in value else {}
    inside = {name: given for name, given in value.items() if name not in ("id", "type")}
    return outside | {"function": inside}


def _tool(value: Any) -> Any:
    return _boxed(flat_tool(value))


class FunctionCall(Part):
    """Name and arguments of a call, as the model wrote them."""

    name: OrEmpty
    arguments: Arguments = ""


class ToolCallBody(Part):
    """Call that the assistant has made before."""

    id: OrEmpty = ""
    """Id of the call, which may be absent where results stand in the order of the calls."""
    type: str | None = None
    function: FunctionCall
    index: Any = None
    """Place in a streamed answer, which some clients leave in. It does nothing."""

    @model_validator(mode="before")
    @classmethod
    def _boxed_text(cls, value: Any) -> Any:
        """A call of a tool that takes a text is a function's with this text; others may be flat."""
        custom = value.get("custom") if isinstance(value, dict) else None
        if not isinstance(custom, dict):
            return _boxed(value)
        called = {"name": custom.get("name"), "arguments": {"input": custom.get("input")}}
        return {"id": value.get("id"), "function": called}


class Message(Part):
    """One message of a conversation. `developer` is shown to the chat template as `system`,
    `function` as `tool`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    tool_calls: list[ToolCallBody] | None = Field(default=None, max_length=TOOL_CALLS_MAX)
    function_call: Annotated[FunctionCall | None, BeforeValidator(lambda one: one or None)] = None
    """The one call, as OpenAI's former API wrote it."""
    tool_call_id: OrEmpty = ""
    """Call that a tool's result belongs to."""
    content: Content = NO_CONTENT
    """Default: none."""
    refusal: str | None = None
    """Refusal that the assistant gave instead of content."""
    reasoning: OrEmpty = ""
    """Thoughts of the assistant."""
    reasoning_content: OrEmpty = ""
    """The same, under the name that many clients use."""
    name: str | None = None


class FunctionBody(Part):
    """Function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: JsonObject | None = None
    """JSON schema of an object. Default: no arguments."""
    strict: bool | None = None
    """Default false. True: arguments match the schema also where the call is not forced, if the
    model writes calls in JSON behind a mark. Those of a forced call always do."""


class FunctionTool(Part):
    """Tool that the model may call."""

    type: Literal["function"] = "function"
    function: FunctionBody


_Tool = (
    Annotated[FunctionTool, BeforeValidator(_tool), Tag("<function>")]
    | Annotated[LeftOut, Tag(OTHER)]
)
ToolBody = Annotated[_Tool, Discriminator(tag_among(_Tool, otherwise="function"))]


class PredictedText(Part):
    """Piece of a predicted text."""

    type: Literal["text"] = "text"
    text: str


def _as_texts(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class Prediction(Part):
    """Text that the answer is expected to repeat in large part, as an edited file does."""

    type: Literal["content"]
    content: Annotated[
        list[PredictedText],
        FailFast(),
        Field(max_length=MESSAGES_MAX),
        BeforeValidator(_as_texts, str | list[PredictedText]),
    ]

    @property
    def text(self) -> str:
        """Whole predicted text, its pieces joined."""
        return "".join(piece.text for piece in self.content)

    @model_validator(mode="after")
    def _is_short(self) -> "Prediction":
        if sum(len(piece.text) for piece in self.content) > PREDICTION_CHARS_MAX:
            raise ValueError(
                f"is too long: send at most {PREDICTION_CHARS_MAX} characters of what you expect"
            )
        return self


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
    """Options of a stream: `{"include_usage": true}` adds an event with the counted tokens."""
    prediction: Prediction | None = None
    """Text that the answer is expected to repeat in large part: where the ring has the copy
    drafter, it then comes sooner. It changes no answer."""
    tools: list[ToolBody] | None = Field(default=None, max_length=TOOLS_MAX)
    """Functions that the model may call."""
    tool_choice: Any = None
    """Default "auto" with tools. "none", "auto", "required", one tool by name, or some of them."""
    functions: list[FunctionBody] | None = Field(default=None, max_length=TOOLS_MAX)
    """Tools in OpenAI's former words; calls are then answered in these, too."""
    function_call: Any = None
    """Former name of tool_choice: "none", "auto", or an object with a function's name."""
    parallel_tool_calls: bool | None = None
    """Default true. False: calls after the first are left out of the answer."""
    reasoning_effort: ReasoningEffort | None = None
    """Effort that the chat template is given; default: as the template says."""
    include_reasoning: bool | None = None
    """Default true. False: the answer is without its reasoning."""
    chat_template_kwargs: JsonObject | None = None
    """Variables for the chat template, such as "enable_thinking"."""
    add_generation_prompt: bool | None = None
    """Default true, without `continue_final_message`: the prompt ends where the assistant's turn
    begins. False: it ends behind the last message."""
    continue_final_message: bool | None = None
    """Default false. True: the answer goes on with the last message, which is usually the
    assistant's; it holds only what is new."""

    _place = belongs_here("messages", "input", "the Responses API: send it to /v1/responses")

    @property
    def is_former(self) -> bool:
        """Whether calls are asked for in OpenAI's former words."""
        return bool(self.functions) and not self.tools
