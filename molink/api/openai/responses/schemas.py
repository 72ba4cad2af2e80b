"""What the JSON of a request to `/v1/responses` may hold.

A conversation is a list of items here: messages, calls of tools and their results, and what the
model reasoned. An item, a tool or a part of a message of another type (images, files, OpenAI's own
tools) would change the answer and is refused by its name.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag, model_validator

from molink.api.openai.refused_fields import OF_ALL_ENDPOINTS
from molink.api.schemas import (
    MESSAGES_MAX,
    TOOLS_MAX,
    Part,
    SamplingBody,
    StreamOptions,
    list_only,
    only_type,
    type_tag,
)
from molink_scheduler.request import LOGPROBS_MAX

__all__ = [
    "FunctionCall",
    "FunctionCallOutput",
    "FunctionTool",
    "InputMessage",
    "ReasoningItem",
    "ResponsesBody",
]


def _as_parts(value: Any) -> Any:
    return [{"type": "input_text", "text": value}] if isinstance(value, str) else list_only(value)


def _as_items(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else list_only(value)


class TextPart(Part):
    """Text of a message, whoever wrote it."""

    type: Literal["input_text", "output_text", "text"]
    text: str


class RefusalPart(Part):
    """Refusal of an earlier answer."""

    type: Literal["refusal"]
    refusal: str


class ReasoningPart(Part):
    """Text that the model reasoned, or a summary of it."""

    type: Literal["reasoning_text", "summary_text"]
    text: str


_TEXT_TAGS = Annotated[
    Annotated[TextPart, Tag("input_text")]
    | Annotated[TextPart, Tag("output_text")]
    | Annotated[TextPart, Tag("text")]
    | Annotated[RefusalPart, Tag("refusal")],
    Discriminator(type_tag("input_text")),
]
Content = Annotated[list[_TEXT_TAGS], FailFast(), BeforeValidator(_as_parts)]


class InputMessage(Part):
    """Message of a conversation; its type may be left out."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionCall(Part):
    """Call of a tool that an earlier answer asked for."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    """JSON, as it was answered."""


class FunctionCallOutput(Part):
    """Result of a call."""

    type: Literal["function_call_output"]
    call_id: str
    output: Content


class ReasoningItem(Part):
    """What the model reasoned before an earlier answer."""

    type: Literal["reasoning"]
    summary: list[ReasoningPart] | None = None
    content: list[ReasoningPart] | None = None


Item = Annotated[
    Annotated[InputMessage, Tag("message")]
    | Annotated[FunctionCall, Tag("function_call")]
    | Annotated[FunctionCallOutput, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(type_tag("message")),
]


class FunctionTool(Part):
    """Function that the model may ask to be called."""

    type: Literal["function"]
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


Tool = Annotated[FunctionTool, only_type("function")]


class TextFormat(Part):
    """Form of the answer's text: any, a JSON object, or JSON of a schema."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")

    @model_validator(mode="after")
    def _has_its_schema(self) -> "TextFormat":
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("needs a 'schema': add it to the request")
        return self


class TextConfig(Part):
    """How the text of the answer is to look."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(Part):
    """How much the model is to reason. A summary is never made: the reasoning itself is given."""

    effort: str | None = None
    summary: str | None = None


class ResponsesBody(SamplingBody):
    """Body of `POST /v1/responses`."""

    unsupported: ClassVar = {
        **OF_ALL_ENDPOINTS,
        "background": (False,),
        "conversation": (),
        "context_management": ([],),
        "max_tokens": (),
        "moderation": (),
        "prompt": (),
        "truncation": ("disabled",),
    }
    input: Annotated[
        list[Item],
        FailFast(),
        Field(min_length=1, max_length=MESSAGES_MAX),
        BeforeValidator(_as_items),
    ]
    instructions: str | None = None
    """A system message before all others."""
    previous_response_id: str | None = None
    """Refused: an answer can be read again, and is no part of the next."""
    store: bool | None = None
    """Whether the answer can be read again by its id; default: it can."""
    max_output_tokens: int | None = Field(default=None, ge=1)
    """Default: what is left of the model's length."""
    text: TextConfig | None = None
    tools: list[Tool] | None = Field(default=None, max_length=TOOLS_MAX)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: list[str] | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the chat template, as vLLM's server takes them."""
    metadata: dict[str, str] | None = None
    """Given back with the answer."""
    stream_options: StreamOptions | None = None
