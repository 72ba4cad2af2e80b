"""Schemas of the JSON of a request to `/v1/responses`.

A conversation is a list of items here: messages, calls of tools and their results, and what the
model reasoned. Tools that OpenAI runs, and items of these, are left out and named: agents send them
with all that they send.
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
from molink.api.openai.refused_fields import OF_ALL_ENDPOINTS
from molink.api.schemas import (
    MESSAGES_MAX,
    TOOLS_MAX,
    LeftOut,
    Part,
    SamplingBody,
    StreamOptions,
    belongs_here,
    list_only,
)
from molink.json_object import JsonObject
from molink_scheduler.request import LOGPROBS_MAX

LINGER_S_MAX = 86_400.0
"""Seconds of a day: no answer takes longer."""


def _as_items(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return [{"role": "user", "content": value}]
    return list_only([value] if isinstance(value, dict) else value)


class ReasoningPart(Part):
    """Text that the model reasoned, or a summary of it."""

    type: str | None = None
    text: OrEmpty = ""


class ResponsesMessage(Part):
    """Message of a conversation; its type may be left out."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer", "tool"]
    tool_call_id: OrEmpty = ""
    """Call that a tool's result belongs to, as chats write it."""
    content: Content = NO_CONTENT


class CallItem(Part):
    """Call of a tool that an earlier answer asked for."""

    type: Literal["function_call", "custom_tool_call"]
    call_id: OrEmpty = ""
    name: str
    namespace: str | None = None
    arguments: Arguments = ""
    """JSON, as it was answered."""
    input: Arguments = ""
    """The text, of a tool that takes one."""


class CallOutput(Part):
    """Result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: OrEmpty = ""
    output: Content = NO_CONTENT


class ReasoningItem(Part):
    """Reasoning of the model before an earlier answer."""

    type: Literal["reasoning"]
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None


_Item = (
    Annotated[ResponsesMessage, Tag("<message>")]
    | Annotated[CallItem, Tag("<function_call>")]
    | Annotated[CallOutput, Tag("<function_call_output>")]
    | Annotated[CallItem, Tag("<custom_tool_call>")]
    | Annotated[CallOutput, Tag("<custom_tool_call_output>")]
    | Annotated[ReasoningItem, Tag("<reasoning>")]
    | Annotated[LeftOut, Tag(OTHER)]
)
Item = Annotated[_Item, Discriminator(tag_among(_Item, otherwise="message"))]


class ResponsesFunctionTool(Part):
    """Function that the model may ask to be called."""

    type: Literal["function"] = "function"
    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    strict: bool | None = None


class ResponsesCustomTool(Part):
    """Tool that takes one text."""

    type: Literal["custom"]
    name: str
    description: str | None = None
    format: JsonObject | None = None


class Namespace(Part):
    """Tools of one origin, such as an MCP server's."""

    type: Literal["namespace"]
    name: str
    tools: list["Tool"] | None = Field(default=None, max_length=TOOLS_MAX)


_Tool = (
    Annotated[ResponsesFunctionTool, BeforeValidator(flat_tool), Tag("<function>")]
    | Annotated[ResponsesCustomTool, Tag("<custom>")]
    | Annotated[Namespace, Tag("<namespace>")]
    | Annotated[LeftOut, Tag(OTHER)]
)
Tool = Annotated[_Tool, Discriminator(tag_among(_Tool, otherwise="function"))]


class TextFormat(Part):
    """Form of the answer's text: any, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: JsonObject | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _has_its_schema(self) -> "TextFormat":
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("needs a 'schema': add it to the request")
        return self


class TextConfig(Part):
    """How the text of the answer is to look."""

    format: TextFormat | None = None


class Reasoning(Part):
    """How much the model is to reason. A summary is never made: the reasoning itself is given."""

    effort: str | None = None
    summary: str | None = None


class ResponsesBody(SamplingBody):
    """Body of `POST /v1/responses`."""

    unsupported: ClassVar = {
        **OF_ALL_ENDPOINTS,
        "conversation": (),
        "prompt": (),
        "truncation": ("disabled", "auto"),
    }
    input: Annotated[
        list[Item],
        FailFast(),
        Field(min_length=1, max_length=MESSAGES_MAX),
        BeforeValidator(_as_items),
    ]
    instructions: OrEmpty = ""
    """A system message before all others."""
    previous_response_id: str | None = None
    """An answer that is kept, with which this conversation begins."""
    store: bool | None = None
    """Whether the answer can be read again by its id; default: it can."""
    background: bool | None = None
    """Whether the answer goes on when its client has gone; it must be stored."""
    linger_s: float | None = Field(default=None, ge=0, le=LINGER_S_MAX)
    """Seconds for which an answer in the background goes on when nobody reads its stream; default:
    to its end."""
    continue_final_message: bool | None = None
    """Whether the answer goes on with the last item's text, as in a chat completion."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Default: what is left of the model's length."""
    text: TextConfig | None = None
    tools: list[Tool] | None = Field(default=None, max_length=TOOLS_MAX)
    tool_choice: str | JsonObject | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    chat_template_kwargs: JsonObject | None = None
    """Variables for the chat template, as vLLM's server takes them."""
    metadata: JsonObject | None = None
    """Given back with the answer."""
    stream_options: StreamOptions | None = None

    _place = belongs_here("input", "messages", "the chat API: send it to /v1/chat/completions")
