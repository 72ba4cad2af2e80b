"""Content of messages, as a model that reads text is shown it.

Clients keep all that came up in a conversation and send it with each turn, pictures and blocks of
other servers' tools included. One that is refused in the history ends the conversation for good, so
there a picture becomes a line of text, and what only its maker can read is left out and named
among the ignored fields. In what the user says now a picture is refused: the answer would be wrong.

Types of parts are an open set that grows with each server, so they are one model, and no union.
"""

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, FailFast, Field

from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.schemas import LeftOut, list_only, type_tag

__all__ = [
    "NO_CONTENT",
    "OTHER",
    "Arguments",
    "Content",
    "ContentPart",
    "OrEmpty",
    "as_parts",
    "check_read",
    "joined",
    "tag_among",
]

OTHER = "<other>"
"""Tag of types that no model stands for. Tags stand in angles, by which they are told from fields
where a mistake is named."""

UNREAD = {
    "image": "picture",
    "audio": "audio",
    "video": "video",
    "document": "document",
    "file": "file",
}
"""By a word of its type: what a person has shown, of which the model must be told."""


def as_parts(value: Any) -> Any:
    """Content as a list of parts: it may be text, one part, or nothing."""
    value = [value] if isinstance(value, str | dict) else value
    parts = [] if value is None else list_only(value)
    return [{"type": "text", "text": one} if isinstance(one, str) else one for one in parts]


def _arguments(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


OrEmpty = Annotated[str, BeforeValidator(lambda value: "" if value is None else value, str | None)]
"""Text; null is none."""

Arguments = Annotated[str, BeforeValidator(_arguments, Any)]
"""Of a call: its JSON text, or the value that this is the text of."""


def tag_among(*known: str, otherwise: str) -> Callable[[Any], str]:
    """As `type_tag`, with all types that are not known under the tag `OTHER`."""
    tag = type_tag(otherwise)
    return lambda value: f"<{given}>" if (given := tag(value)) in known else OTHER


class ContentPart(LeftOut):
    """Part of a message's content: text, or what may hold some."""

    texts: ClassVar = frozenset(
        ["text", "input_text", "output_text", "refusal", "tool_reference", "search_result"]
    )
    type: str = "text"
    text: OrEmpty = ""
    refusal: OrEmpty = ""
    tool_name: OrEmpty = ""
    """Of a tool that a search among tools has found: all are shown to the model as it is."""
    title: OrEmpty = ""
    context: OrEmpty = ""
    source: Any = None
    """Of a document, or where a search has found the content."""
    content: Any = None

    @property
    def is_left_out(self) -> bool:
        """Whether there is no text in it."""
        return self.type not in self.texts and not self._document

    @property
    def shown(self) -> str:
        """What the model reads; empty: nothing."""
        if self.is_left_out:
            kinds = (kind for word, kind in UNREAD.items() if word in self.type)
            return next((f"[{kind} left out: this model reads text]" for kind in kinds), "")
        source = self.source if isinstance(self.source, str) else ""
        found = _text_within(self.content) or self._document
        found = f"The tool {self.tool_name} is available now." if self.tool_name else found
        texts = (self.title, source, self.context, self.text, self.refusal, found)
        return "\n".join(filter(None, texts))

    @property
    def _document(self) -> str:
        source = self.source if self.type == "document" else None
        if not isinstance(source, dict) or source.get("type") not in ("text", "content"):
            return ""
        return _text_within(source.get("data")) or _text_within(source.get("content"))


def _text_within(content: Any) -> str:
    """Text of content that is checked no further."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(_text_within(one.get("text")) for one in parts if isinstance(one, dict))


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
