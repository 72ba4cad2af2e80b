"""Content of messages, as a model that reads text is shown it.

Clients keep all that came up in a conversation and send it with each turn, pictures and blocks of
other servers' tools included. One that is refused in the history ends the conversation for good, so
there a picture becomes a line of text, and what only its maker can read is left out and named
among the ignored fields. In what the user says now a picture is refused: the answer would be wrong.

Types of parts are an open set that grows with each server, so they are one model, and no union.
"""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BeforeValidator, FailFast, Field, Tag

from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.schemas import LeftOut, list_only, type_tag

OTHER = "<other>"
"""Tag of types that no model stands for. Tags stand in angles, by which they are told from fields
where a mistake is named."""

CALLS = ("tool_use", "tool_result")
"""Types of Anthropic's parts for calls, which some clients send in all dialects."""

OF_PARTS = frozenset({"content", "image_url", "refusal", "text", "type"})
"""An object with none of these fields is no part but what a tool gave."""

UNREAD = {
    "image": "picture",
    "audio": "audio",
    "video": "video",
    "document": "document",
    "file": "file",
}
"""Name of the thing that a person has shown, by a word of its type: the model is told of it."""


def as_parts(value: Any) -> Any:
    """Content as a list of parts: it may be text, one part, any value of a tool's, or nothing."""
    value = [value] if isinstance(value, str | dict | int | float) else value
    return [_part(one) for one in list_only(value or []) if one is not None]


def _part(value: Any) -> Any:
    is_value = isinstance(value, int | float) or (
        isinstance(value, dict) and not OF_PARTS.intersection(value)
    )
    value = json.dumps(value, ensure_ascii=False) if is_value else value
    if isinstance(value, str):
        return {"type": "text", "text": value}
    return without_null_type(value)


def without_null_type(value: Any) -> Any:
    """A part of a request, of the usual type where its type is null."""
    is_null = isinstance(value, dict) and value.get("type", "") is None
    return {name: one for name, one in value.items() if name != "type"} if is_null else value


def _arguments(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def flat_tool(value: Any, schema: str = "parameters") -> Any:
    """A tool in the words of any dialect without the box around its function; `schema`: what the
    schema of its arguments is to be called."""
    if not isinstance(value, dict):
        return value
    box = value.get("function")
    flat = (
        {name: one for name, one in value.items() if one is not box} | box
        if isinstance(box, dict)
        else value
    )
    names = dict.fromkeys(("parameters", "input_schema"), schema)
    return without_null_type({names.get(name, name): one for name, one in flat.items()})


def _or_empty(value: Any) -> Any:
    value = text_within(value) if isinstance(value, list) else value
    return str(value) if type(value) is int else "" if value is None else value


OrEmpty = Annotated[str, BeforeValidator(_or_empty, str | None)]
"""Text, or parts of it; null is none, and ids may be numbers."""

Arguments = Annotated[str, BeforeValidator(_arguments, Any)]
"""Arguments of a call: their JSON text, or the value that this is the text of."""


def tag_among(union: Any, otherwise: str) -> Callable[[Any], str]:
    """Tag of a part by its type; `OTHER` for types that the union does not have."""
    metadata = [one for model in get_args(union) for one in model.__metadata__]
    known = {one.tag for one in metadata if isinstance(one, Tag)}
    tag = type_tag(otherwise)
    return lambda value: given if (given := f"<{tag(value)}>") in known else OTHER


class ContentPart(LeftOut):
    """Part of a message's content: text, or what may hold some."""

    texts: ClassVar = frozenset(
        {"text", "input_text", "output_text", "refusal", "tool_reference", "search_result", *CALLS}
    )
    type: str = "text"
    text: OrEmpty = ""
    refusal: OrEmpty = ""
    tool_name: OrEmpty = ""
    """Name of a tool that a search has found; the model is shown all tools anyway."""
    title: OrEmpty = ""
    context: OrEmpty = ""
    source: Any = None
    """Source of a document or of a search result."""
    content: Any = None

    @property
    def is_left_out(self) -> bool:
        """Whether there is no text in it."""
        return self.type not in self.texts and not self._document

    @property
    def shown(self) -> str:
        """Text that the model reads of this part; empty: none."""
        if self.is_left_out:
            kinds = (kind for word, kind in UNREAD.items() if word in self.type)
            return next((f"[{kind} left out: this model reads text]" for kind in kinds), "")
        source = self.source if isinstance(self.source, str) else ""
        found = text_within(self.content) or self._document
        found = f"The tool {self.tool_name} is available now." if self.tool_name else found
        texts = (self.title, source, self.context, self.text, self.refusal, found)
        return "\n".join(filter(None, texts))

    @property
    def _document(self) -> str:
        source = self.source if self.type == "document" else None
        if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
            return ""
        return text_within(source.get("data")) or text_within(source.get("content"))


def text_within(content: Any) -> str:
    """Text of content that is checked no further."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    within = [one.get("text") or one.get("content") if type(one) is dict else one for one in parts]
    return "\n".join(map(text_within, within))


Content = Annotated[
    list[ContentPart], FailFast(), BeforeValidator(as_parts, str | list[ContentPart] | None)
]
NO_CONTENT: Any = Field(default=None, validate_default=True)
"""Default of a field of content."""


def joined(parts: Iterable[ContentPart]) -> str:
    """The text of some parts, each on lines of its own."""
    return "\n".join(filter(None, (part.shown for part in parts)))


def check_read(parts: Iterable[Any], where: str) -> None:
    """Raise ApiError where a part would have to be read for a right answer."""
    for part in parts:
        if isinstance(part, ContentPart) and part.is_left_out and part.shown:
            raise ApiError(
                f"'{where}' holds '{part.type[:NAME_CHARS_SHOWN]}', which this model cannot read: "
                "send text.",
                param=where,
                code="unsupported_content",
            )
