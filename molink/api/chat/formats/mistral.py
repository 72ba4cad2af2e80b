"""Mistral: calls behind `[TOOL_CALLS]`, as an array of objects or as a name and its arguments.

Older tokenizers write `[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]`, newer ones
`[TOOL_CALLS]f[ARGS]{...}` for each call, with a `[CALL_ID]` or without.
"""

import re

from molink.api.chat.formats.json_calls import JsonCallsReader
from molink.api.chat.formats.reader import CallWriter
from molink.serving.text_stream import overlap

__all__ = ["MistralReader"]

MARK = "[TOOL_CALLS]"

_NAMED = re.compile(r"\s*([^\s\[\]{}]+)(?:\[CALL_ID\][^\s\[\]{}]*)?\s*(?:\[ARGS\])?\s*(?=\{)")

NAME_CHARS_MAX = 256
"""Up to the arguments; longer is text."""

BETWEEN_CALLS = " \t\r\n,"


class MistralReader(JsonCallsReader):
    """Reader of Mistral's calls, of both kinds."""

    marks = (MARK, "[ARGS]", "[CALL_ID]")

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._step = self._text
        self._is_array = False

    def _text(self) -> bool:
        at = self._held.find(MARK)
        if at < 0:
            self._say(self._take(len(self._held) - overlap(self._held, MARK)))
            return False
        self._say(self._take(at))
        self._opening = self._take(len(MARK))
        self._step = self._kind
        return True

    def _kind(self) -> bool:
        """Which way of writing calls this is."""
        rest = self._held.lstrip()
        if not rest:
            return False
        self._is_array = rest.startswith("[")
        if self._is_array:
            self._opening += self._take(len(self._held) - len(rest) + 1)
            self._step = self._item
        elif rest.startswith("{"):
            self._begin_object(self._opening)
        else:
            self._step = self._name
        return True

    def _name(self) -> bool:
        found = _NAMED.match(self._held, 0, NAME_CHARS_MAX)
        if found is not None:
            self._take(found.end())
            return self._begin_arguments(found[1], self._text)
        if "{" in self._held or len(self._held) >= NAME_CHARS_MAX:
            return self._break()
        return False

    def _item(self) -> bool:
        """Before an object of an array, or at its end."""
        rest = self._held.lstrip(BETWEEN_CALLS)
        if not rest:
            return False
        if rest.startswith("{"):
            between = self._take(len(self._held) - len(rest))
            return self._begin_object(self._opening + between)
        if rest.startswith("]"):
            self._held = rest[1:]
            self._step = self._text
            return True
        return self._break()

    def _close(self) -> bool:
        self._opening = ""
        self._step = self._item if self._is_array else self._text
        return True

    def _end(self) -> None:
        if self._step == self._item and not self._opening:
            self._held = ""
        super()._end()
