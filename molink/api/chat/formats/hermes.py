"""Hermes and Qwen: each call between `<tool_call>` and `</tool_call>`.

Qwen2.5-Coder writes the same objects without these marks, in a fence of JSON or bare. Such an
object is a call only if it names a tool of the request, and a bare one only in an answer that is
nothing but calls: one beside prose is what the prose is about.
"""

import json
import re

from molink.api.chat.formats.json_calls import OBJECTS, JsonCallsReader, is_no_call, whole_call
from molink.api.chat.formats.reader import CallWriter
from molink.api.chat.formats.shapes import NAME, JsonShape

OPEN, CLOSE, FENCE = "<tool_call>", "</tool_call>", "```"

_FENCED = re.compile(r"```(?:json)?\s*(?=\{)")
_MAYBE_FENCED = re.compile(r"```(?:j|js|jso|json)?\s*")
FENCED_CHARS_MAX = 64
"""Characters of a fence up to its object; longer is text."""

_NAME = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\]*)"')
NAME_CHARS_MAX = 256
"""Characters of a bare object up to the end of its name; longer is looked at when it is whole."""

_DECODER = json.JSONDecoder(strict=False)


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
        """Step at the begin of an answer, which may be calls without marks."""
        rest = self._held.lstrip()
        if rest:
            self._step = self._bare if rest.startswith("{") else self._text
        return bool(rest)

    def _bare(self) -> bool:
        """Step in an answer that may be nothing but calls without marks: its end shows it."""
        name = _NAME.match(self._held, 0, NAME_CHARS_MAX)
        if is_no_call(self._held) or (name is not None and name[1] not in self._calls.tools):
            self._step = self._text
        return self._step == self._text

    def _text(self) -> bool:
        opening = self._said_up_to(*self._openings)
        if opening == FENCE:
            self.close_mark = FENCE
            return self._fence()
        self.close_mark = CLOSE
        return bool(opening) and self._begin_object(self._take(len(OPEN)))

    def _fence(self) -> bool:
        fenced = _FENCED.match(self._held, 0, FENCED_CHARS_MAX)
        if fenced is not None:
            return self._begin_object(self._take(fenced.end()), is_bare=True)
        if len(self._held) < FENCED_CHARS_MAX and _MAYBE_FENCED.fullmatch(self._held):
            return False
        self._say(self._take(len(FENCE)))
        return True

    def _close(self) -> bool:
        """Read on at a call's end, which may lack its mark; another call may follow in a fence."""
        rest, mark = self._held.lstrip(), self.close_mark
        if not rest or (rest != mark and mark.startswith(rest)):
            return False
        if mark == FENCE and rest.startswith("{"):
            return self._begin_object(self._take(len(self._held) - len(rest)), is_bare=True)
        self._held, self._step = rest.removeprefix(mark), self._text
        return True

    def _end(self) -> None:
        if self._step == self._bare:
            self._step = self._text
            for name, arguments in self._calls_alone():
                self._held = ""
                self._call(name, arguments)
            self._parts = self.push("")
        super()._end()

    def _calls_alone(self) -> list[tuple[str, str]]:
        """The calls, where what is held is objects of calls of known tools and nothing else."""
        rest, calls = self._held.strip(), list[tuple[str, str]]()
        while rest:
            try:
                found, end = _DECODER.raw_decode(rest)
            except (ValueError, RecursionError):
                return []
            call = whole_call(found, needs_arguments=True)
            if call is None or call[0] not in self._calls.tools:
                return []
            calls.append(call)
            rest = rest[end:].lstrip()
        return calls
