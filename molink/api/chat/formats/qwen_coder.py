"""Qwen3-Coder: calls in tags, `<tool_call><function=f><parameter=a>...</parameter></function>`.

Values are bare text, so the tool's schema tells a string from other JSON. Each parameter becomes a
piece of the call's arguments when it has ended.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from molink.api.chat.formats.reader import CallWriter, HoldingReader
from molink.serving.text_stream import overlap

__all__ = ["QwenCoderReader"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, END_FUNCTION = "<function=", "</function>"
PARAMETER, END_PARAMETER = "<parameter=", "</parameter>"

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")

NAME_CHARS_MAX = 256
"""Up to a function's closing bracket; longer is text."""


class QwenCoderReader(HoldingReader):
    """Reader of calls whose arguments stand in tags."""

    marks = (OPEN, CLOSE, FUNCTION, END_FUNCTION, PARAMETER, END_PARAMETER)

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._step = self._text
        self._properties: Mapping[str, Any] = {}
        """Schemas of the present call's parameters."""
        self._separator = ""

    def _text(self) -> bool:
        at = self._held.find(OPEN)
        if at < 0:
            self._say(self._take(len(self._held) - overlap(self._held, OPEN)))
            return False
        self._say(self._take(at))
        self._take(len(OPEN))
        self._step = self._function
        return True

    def _function(self) -> bool:
        found = _FUNCTION.match(self._held, 0, NAME_CHARS_MAX)
        if found is not None:
            self._begin(found)
            return True
        begin = self._held[:NAME_CHARS_MAX].lstrip()
        is_begun = FUNCTION.startswith(begin) or re.fullmatch(r"<function=[^<>\n]*", begin)
        if is_begun and len(self._held) < NAME_CHARS_MAX:
            return False
        self._say(OPEN)
        self._step = self._text
        return True

    def _begin(self, found: re.Match[str]) -> None:
        self._take(found.end())
        name = found[1].strip()
        properties = self._calls.tools.get(name, {}).get("properties")
        self._properties = properties if isinstance(properties, Mapping) else {}
        self._begin_call(name)
        self._add_arguments("{")
        self._separator = ""
        self._step = self._parameters

    def _parameters(self) -> bool:
        """Before a parameter, or at the function's end."""
        self._held = self._held.lstrip()
        if self._held.startswith(PARAMETER):
            return self._parameter()
        if self._held.startswith(END_FUNCTION):
            self._take(len(END_FUNCTION))
            self._add_arguments("}")
            self._step = self._close
            return True
        return self._pass_over()

    def _pass_over(self) -> bool:
        """Drop what belongs to no parameter, up to the next mark."""
        found = [self._held.find(mark) for mark in (PARAMETER, END_FUNCTION)]
        at = min((place for place in found if place >= 0), default=-1)
        if at < 0:
            kept = max(overlap(self._held, mark) for mark in (PARAMETER, END_FUNCTION))
            self._take(len(self._held) - kept)
            return False
        self._take(at)
        return True

    def _parameter(self) -> bool:
        ends = [self._held.find(mark) for mark in (END_PARAMETER, END_FUNCTION)]
        at = min((end for end in ends if end >= 0), default=-1)
        if at < 0:
            return False
        name, _, value = self._take(at).removeprefix(PARAMETER).partition(">")
        if self._held.startswith(END_PARAMETER):
            self._take(len(END_PARAMETER))
        value = value.removeprefix("\n").removesuffix("\n")
        parsed = _value(value, self._properties.get(name.strip()))
        written = json.dumps(parsed, ensure_ascii=False)
        self._add_arguments(f"{self._separator}{json.dumps(name.strip())}: {written}")
        self._separator = ", "
        return True

    def _close(self) -> bool:
        """A call may end without its mark."""
        rest = self._held.lstrip()
        if not rest.startswith(CLOSE) and CLOSE.startswith(rest):
            return False
        if rest.startswith(CLOSE):
            self._held = rest[len(CLOSE) :]
        self._step = self._text
        return True

    def _end(self) -> None:
        if self._step == self._function:
            self._say(OPEN)
        elif self._step != self._text:
            self._held = ""
        super()._end()


def _value(text: str, schema: Any) -> Any:
    """What a parameter's text means: a string unless its schema says something else."""
    kinds = schema.get("type") if isinstance(schema, Mapping) else None
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or ("string" in kinds and text != "null"):
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
