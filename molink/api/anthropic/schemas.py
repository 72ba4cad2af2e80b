"""Schemas of the JSON of a request to `/v1/messages`.

A message is a list of blocks here. Those of tools that a server runs, and these tools themselves,
are left out and named: agents send them with all that they send. Tools of Anthropic's that a client
runs have a type with a date (`bash_20250124`) and no schema, which only Anthropic's models know by
heart: other models are shown `CLIENT_TOOLS`. Those that need pictures are not among them.
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, FailFast, Field, Tag

from molink.api.chat.content import (
    NO_CONTENT,
    OTHER,
    Arguments,
    ContentPart,
    OrEmpty,
    as_parts,
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
    StopTexts,
    type_tag,
)
from molink.json_object import JsonObject

_FILES = {
    "path": {"type": "string"},
    "file_text": {"type": "string", "description": "Whole text of a file to create."},
    "old_str": {"type": "string", "description": "Text to replace, which must be unique."},
    "new_str": {"type": "string"},
    "insert_line": {"type": "integer", "description": "Line behind which to insert."},
    "insert_text": {"type": "string"},
    "view_range": {"type": "array", "items": {"type": "integer"}},
}
_RENAMES = {"old_path": {"type": "string"}, "new_path": {"type": "string"}}


def _file_schema(*more: str, **properties: Any) -> Mapping[str, Any]:
    commands = ["view", "create", "str_replace", "insert", *more]
    command = {"command": {"type": "string", "enum": commands}}
    return {"type": "object", "properties": command | properties, "required": ["command"]}


CLIENT_TOOLS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bash": (
        "Run a command in a shell that stays open, or start the shell anew.",
        {
            "type": "object",
            "properties": {"command": {"type": "string"}, "restart": {"type": "boolean"}},
        },
    ),
    "text_editor": ("View, make and edit text files.", _file_schema("undo_edit", **_FILES)),
    "memory": (
        "Keep notes in files below /memories, which last beyond this conversation.",
        _file_schema("delete", "rename", **_FILES, **_RENAMES),
    ),
}
"""Description and argument schema of each tool type, the date of its name left off."""


def kind_of(type: str) -> str:
    """A tool's type without its date."""
    kind, _, date = type.rpartition("_")
    return kind if date.isdigit() else type


class CacheControl(Part):
    """Wish that all up to the block that it marks stays cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    """How long after each use; default: "5m"."""


class MarkedPart(ContentPart):
    """Part of content that may be marked."""

    cache_control: CacheControl | None = None


MarkedContent = Annotated[
    list[MarkedPart], FailFast(), BeforeValidator(as_parts, str | list[MarkedPart] | None)
]
"""Content of a tool's result."""


class ThinkingBlock(Part):
    """Thoughts of the model before an earlier answer."""

    type: Literal["thinking"]
    thinking: OrEmpty = ""


class ToolUseBlock(Part):
    """Call of a tool that an earlier answer asked for."""

    type: Literal["tool_use"]
    id: OrEmpty = ""
    name: str
    input: Arguments = ""
    cache_control: CacheControl | None = None


class ToolResultBlock(Part):
    """Result of a call."""

    type: Literal["tool_result"]
    tool_use_id: OrEmpty = ""
    content: MarkedContent = NO_CONTENT
    is_error: bool | None = None
    """Whether the call failed; what the model reads of it is the content."""
    cache_control: CacheControl | None = None


_Block = (
    Annotated[MarkedPart, Tag(OTHER)]
    | Annotated[ThinkingBlock, Tag("<thinking>")]
    | Annotated[ToolUseBlock, Tag("<tool_use>")]
    | Annotated[ToolResultBlock, Tag("<tool_result>")]
)
Block = Annotated[_Block, Discriminator(tag_among(_Block, otherwise="text"))]


class InputMessage(Part):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system", "developer", "tool"]
    """Author of the message; Anthropic knows no developer, and no tool, whose result it is."""
    tool_call_id: OrEmpty = ""
    content: Annotated[list[Block], FailFast(), BeforeValidator(as_parts)] = NO_CONTENT


class CustomTool(Part):
    """Function that the model may ask to be called; its type may be left out. Anthropic's own that
    a client runs are known by it (`client_tools`)."""

    type: str | None = None
    name: str
    description: str | None = None
    input_schema: JsonObject | None = None
    """JSON schema of its arguments; default: it takes none."""
    strict: bool | None = None
    cache_control: CacheControl | None = None


def _tool_tag(value: Any) -> str:
    kind = kind_of(type_tag("custom")(value))
    return "<custom>" if kind in ("custom", "function") or kind in CLIENT_TOOLS else OTHER


def _choice(value: Any) -> Any:
    value = {"type": value} if isinstance(value, str) else value or None
    is_required = isinstance(value, dict) and value.get("type") == "required"
    return {"type": "any"} if is_required else value


Tool = Annotated[
    Annotated[
        CustomTool, BeforeValidator(partial(flat_tool, schema="input_schema")), Tag("<custom>")
    ]
    | Annotated[LeftOut, Tag(OTHER)],
    Discriminator(_tool_tag),
]


class AnthropicToolChoice(Part):
    """Whether tools may, must or must not be called."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    """Name of the one tool that must be called, with "tool"."""
    disable_parallel_tool_use: bool | None = None


class Thinking(Part):
    """Whether the model is to reason before it answers.

    Clients cannot switch reasoning on without a `budget_tokens`, so that is not refused; it is not
    followed either, and stays among the fields that are named as ignored. `max_tokens` bounds
    reasoning and answer together.
    """

    type: Literal["adaptive", "auto", "between_tools", "disabled", "enabled"]


class OutputFormat(Part):
    """Form of the answer's text: JSON of a schema."""

    type: Literal["json_schema"]
    schema_: JsonObject = Field(alias="schema")


class OutputConfig(Part):
    """How much effort the model is to make, and how its answer is to look."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensBody(SamplingBody):
    """Body of `POST /v1/messages/count_tokens`."""

    unsupported: ClassVar = {
        name: usual for name, usual in OF_ALL_ENDPOINTS.items() if name != "stop_sequences"
    }
    messages: Annotated[
        list[InputMessage], FailFast(), Field(min_length=1, max_length=MESSAGES_MAX)
    ]
    system: Annotated[
        list[MarkedPart], FailFast(), BeforeValidator(as_parts, str | list[MarkedPart] | None)
    ] = NO_CONTENT
    tools: list[Tool] | None = Field(default=None, max_length=TOOLS_MAX)
    tool_choice: Annotated[AnthropicToolChoice | None, BeforeValidator(_choice)] = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    """Former name of `output_config.format`."""
    chat_template_kwargs: JsonObject | None = None
    """Variables for the chat template, as vLLM's server takes them."""
    cache_control: CacheControl | None = None
    """Default: none. A mark at the end of the conversation."""


class MessagesBody(CountTokensBody):
    """Body of `POST /v1/messages`."""

    stop_sequences: StopTexts | None = None
