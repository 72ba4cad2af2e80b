"""What the JSON of a request to `/v1/messages` may hold.

A message is a list of blocks here. A block or a tool of another type (images, documents,
Anthropic's own tools) would change the answer and is refused by its name.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag

from molink.api.openai.refused_fields import OF_ALL_ENDPOINTS
from molink.api.schemas import (
    MESSAGES_MAX,
    TOOLS_MAX,
    Part,
    SamplingBody,
    StopTexts,
    list_only,
    only_type,
    type_tag,
)

__all__ = [
    "CountTokensBody",
    "InputMessage",
    "MessagesBody",
    "TextBlock",
    "ThinkingBlock",
    "ToolResultBlock",
    "ToolUseBlock",
]


def _as_blocks(value: Any) -> Any:
    return [{"type": "text", "text": value}] if isinstance(value, str) else list_only(value)


class TextBlock(Part):
    """Text, whoever wrote it."""

    type: Literal["text"]
    text: str


class ThinkingBlock(Part):
    """What the model reasoned before an earlier answer."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Part):
    """What another server's model reasoned, in a form that only that server reads: left out."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(Part):
    """Call of a tool that an earlier answer asked for."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


Texts = Annotated[list[Annotated[TextBlock, only_type("text")]], BeforeValidator(_as_blocks)]


class ToolResultBlock(Part):
    """Result of a call."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: Texts | None = None
    is_error: bool | None = None
    """Whether the call failed; what the model reads of it is the content."""


Block = Annotated[
    Annotated[TextBlock, Tag("text")]
    | Annotated[ThinkingBlock, Tag("thinking")]
    | Annotated[RedactedThinkingBlock, Tag("redacted_thinking")]
    | Annotated[ToolUseBlock, Tag("tool_use")]
    | Annotated[ToolResultBlock, Tag("tool_result")],
    Discriminator(type_tag("no type")),
]


class InputMessage(Part):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Annotated[list[Block], FailFast(), BeforeValidator(_as_blocks)]


class CustomTool(Part):
    """Function that the model may ask to be called; its type may be left out."""

    type: Literal["custom"] | None = None
    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


Tool = Annotated[CustomTool, only_type("custom")]


class ToolChoice(Part):
    """Whether tools may, must or must not be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Of the one tool that must be called, with "tool"."""
    disable_parallel_tool_use: bool | None = None


class Thinking(Part):
    """Whether the model is to reason before it answers.

    Clients cannot switch reasoning on without a `budget_tokens`, so that is not refused; it is not
    followed either, and stays among the fields that are named as ignored. `max_tokens` bounds
    reasoning and answer together.
    """

    type: Literal["adaptive", "between_tools", "disabled", "enabled"]


class OutputFormat(Part):
    """Form of the answer's text: JSON of a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Part):
    """How much effort the model is to make, and how its answer is to look."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensBody(SamplingBody):
    """Body of `POST /v1/messages/count_tokens`."""

    unsupported: ClassVar = {
        **{name: usual for name, usual in OF_ALL_ENDPOINTS.items() if name != "stop_sequences"},
        "container": (),
        "mcp_servers": ([],),
        "context_management": (),
    }
    messages: Annotated[
        list[InputMessage], FailFast(), Field(min_length=1, max_length=MESSAGES_MAX)
    ]
    system: Texts | None = None
    tools: list[Tool] | None = Field(default=None, max_length=TOOLS_MAX)
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the chat template, as vLLM's server takes them."""


class MessagesBody(CountTokensBody):
    """Body of `POST /v1/messages`."""

    max_tokens: int = Field(ge=1)
    """Cut to what is left of the model's length, as Anthropic's newer models do."""
    stop_sequences: StopTexts | None = None
