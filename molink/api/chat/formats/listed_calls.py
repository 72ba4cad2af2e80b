"""Calls behind a mark, as a JSON array of objects: Mistral, Granite 3, Phi-4-mini and others.

`[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`. Newer tokenizers of Mistral write
`[TOOL_CALLS]f[ARGS]{...}` for each call, with a `[CALL_ID]` or without.
"""

import re

from molink.api.chat.formats.json_calls import JsonCallsReader
from molink.api.chat.formats.reader import CallWriter
from molink.api.chat.formats.shapes import NAME, JsonShape

_NAMED = re.compile(
    r"\s*(?P<name>[^\s\[\]{}]+)(?P<id>)(?:\[CALL_ID\][^\s\[\]{}]*)?\s*(?:\[ARGS\])?\s*(?=\{)"
)

BETWEEN_CALLS = " \t\r\n,"


def _array(mark: str, end_mark: str = "") -> JsonShape:
    """The layout of an array of calls between two marks."""
    return JsonShape(
        begin=f"{mark}[",
        open=f'{{"name": "{NAME}", "arguments": ',
        close="}",
        between=", ",
        end=f"]{end_mark}",
    )


class ListedCallsReader(JsonCallsReader):
    """Base of the readers of arrays; a subclass has the mark before them."""

    mark: str
    has_names = False
    """Whether a name may follow the mark instead of an array."""

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._is_array = False

    def _text(self) -> bool:
        return self._open(self.mark, self._kind)

    def _kind(self) -> bool:
        """Find out which of the ways of writing calls this is."""
        rest = self._held.lstrip()
        if not rest:
            return False
        self._is_array = rest.startswith("[")
        if self._is_array:
            self._opening += self._take(len(self._held) - len(rest) + 1)
            self._step = self._item
        elif rest.startswith("{"):
            self._begin_object(self._opening)
        elif self.has_names:
            self._step = self._name
        else:
            return self._break()
        return True

    def _name(self) -> bool:
        return self._begin_named(_NAMED, self._text)

    def _item(self) -> bool:
        """Read on before an object of an array, or at its end."""
        rest = self._held.lstrip(BETWEEN_CALLS)
        if not rest:
            return False
        if rest.startswith("{"):
            between = self._take(len(self._held) - len(rest))
            return self._begin_object(self._opening + between)
        if rest.startswith("]"):
            self._held = rest[1:]
            self._step = self._read_end
            return True
        return self._break()

    def _read_end(self) -> bool:
        """Read on behind an array, where the mark that ends it may be missing."""
        rest = self._held.lstrip()
        if rest != self.last_mark and self.last_mark.startswith(rest):
            return False
        if self.last_mark and rest.startswith(self.last_mark):
            self._held = rest[len(self.last_mark) :]
        self._step = self._text
        return True

    def _close(self) -> bool:
        self._opening = ""
        self._step = self._item if self._is_array else self._text
        return True

    def _end(self) -> None:
        if self._step == self._read_end or (self._step == self._item and not self._opening):
            self._held = ""
        super()._end()


class MistralReader(ListedCallsReader):
    """Reader of Mistral's calls, of both kinds."""

    mark, has_names = "[TOOL_CALLS]", True
    marks = (mark, "[ARGS]", "[CALL_ID]")
    shape = _array(mark)
    named_shape = JsonShape(open=f"{mark}{NAME}[ARGS]")
    """How tokenizers with the mark `[ARGS]` write calls."""


class GraniteReader(ListedCallsReader):
    """Reader of the calls of IBM's Granite 3; Granite 4 writes them as Hermes."""

    mark = "<|tool_call|>"
    marks = (mark,)
    shape = _array(mark)


class Phi4Reader(ListedCallsReader):
    """Reader of Phi-4-mini's calls."""

    mark = "functools"
    marks = (mark,)
    shape = _array(mark)

    @classmethod
    def spans(cls) -> list[tuple[str, str, bool]]:
        """Mark with its bracket: the word alone stands in programs."""
        return [(f"{cls.mark}[", "", False)]


class JambaReader(ListedCallsReader):
    """Reader of the calls of Jamba, which Apriel writes as well."""

    mark, last_mark = "<tool_calls>", "</tool_calls>"
    marks = (mark, last_mark)
    shape = _array(mark, last_mark)


class NemotronReader(ListedCallsReader):
    """Reader of the calls of Nemotron Nano 2; Nemotron 3 writes them as Qwen3-Coder."""

    mark, last_mark = "<TOOLCALL>", "</TOOLCALL>"
    marks = (mark, last_mark)
    shape = _array(mark, last_mark)
