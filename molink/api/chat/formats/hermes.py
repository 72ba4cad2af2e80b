"""Hermes and Qwen: each call between `<tool_call>` and `</tool_call>`.

Qwen2.5-Coder writes the same objects without these marks: bare, from the beginning of an answer, or
in a fence of JSON. Such an object is a call only if it names a tool of the request.
"""

import re

from molink.api.chat.formats.json_calls import OBJECTS, JsonCallsReader
from molink.api.chat.formats.reader import CallWriter
from molink.api.chat.formats.shapes import NAME, JsonShape
from molink.serving.text_stream import overlap

__all__ = ["HermesReader"]

OPEN, CLOSE, FENCE = "<tool_call>", "</tool_call>", "```"

_FENCED = re.compile(r"```(?:json)?\s*(?=\{)")
_MAYBE_FENCED = re.compile(r"```(?:j|js|jso|json)?\s*")
FENCED_CHARS_MAX = 64
"""Characters of a fence up to its object; longer is text."""


class HermesReader(JsonCallsReader):
    """Reader of tagged calls, anywhere in the text."""

    marks = (OPEN, CLOSE)
    close_mark = last_mark = CLOSE
    shape = JsonShape(
        open=f'{OPEN}\n{{"name": "{NAME}", "arguments": ', close=f"}}\n{CLOSE}", between="\n"
    )

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._step = self._text if calls.is_strict else self._start
        self._openings = (OPEN,) if calls.is_strict else (OPEN, FENCE)

    @classmethod
    def spans(cls) -> list[tuple[str, str, bool]]:
        """Marks before and behind calls."""
        fenced = [(f"{FENCE}json\n{begin}", FENCE, False) for begin in OBJECTS]
        return [*super().spans(), *fenced, *((begin, "", True) for begin in OBJECTS)]

    def _start(self) -> bool:
        """Where a call without marks may begin: at first, and after another one."""
        rest = self._held.lstrip()
        if rest.startswith("{"):
            opening = self._take(len(self._held) - len(rest))
            self.close_mark = ""
            return self._begin_object(opening, is_bare=True)
        self._step = self._text if rest else self._start
        return bool(rest)

    def _text(self) -> bool:
        found = [(at, one) for one in self._openings if (at := self._held.find(one)) >= 0]
        if not found:
            keep = max(overlap(self._held, one) for one in self._openings)
            self._say(self._take(len(self._held) - keep))
            return False
        at, self.close_mark = min(found)
        self._say(self._take(at))
        if self.close_mark == FENCE:
            return self._fence()
        self.close_mark = CLOSE
        return self._begin_object(self._take(len(OPEN)))

    def _fence(self) -> bool:
        fenced = _FENCED.match(self._held, 0, FENCED_CHARS_MAX)
        if fenced is not None:
            return self._begin_object(self._take(fenced.end()), is_bare=True)
        if len(self._held) < FENCED_CHARS_MAX and _MAYBE_FENCED.fullmatch(self._held):
            return False
        self._say(self._take(len(FENCE)))
        return True

    def _close(self) -> bool:
        """A call may end without its mark, and another one may follow in a fence."""
        rest, mark = self._held.lstrip(), self.close_mark
        if not rest or (rest != mark and mark.startswith(rest)):
            return False
        if mark == FENCE and rest.startswith("{"):
            return self._begin_object(self._take(len(self._held) - len(rest)), is_bare=True)
        if mark and rest.startswith(mark):
            self._held = rest[len(mark) :]
        self._step = self._text if mark == CLOSE else self._start
        return True
