"""Calls whose name stands before their JSON arguments, between marks: DeepSeek and Kimi.

All calls of an answer stand in one section:
`<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{...}<｜tool▁call▁end｜><｜tool▁calls▁end｜>`.
"""

import re

from molink.api.chat.formats.json_calls import JsonCallsReader
from molink.api.chat.formats.shapes import NAME, JsonShape
from molink.serving.text_stream import first_of


class NamedCallsReader(JsonCallsReader):
    """Base of the readers of such sections; a subclass has the marks."""

    section, last_mark = "", ""
    call, call_end = "", ""
    header: re.Pattern[str]
    """Pattern of the text from a call's mark to its arguments: its id, if it has one, and name."""

    def _text(self) -> bool:
        return self._open(self.section, self._item)

    def _item(self) -> bool:
        """Read on before a call, or at the section's end."""
        rest = self._held.lstrip()
        if rest.startswith(self.call):
            return self._begin_named(self.header, self._close)
        if self.call.startswith(rest) or (rest != self.last_mark and self._may_end(rest)):
            return False
        if not self._opening:
            self._held = rest.removeprefix(self.last_mark)
        return self._break()

    def _may_end(self, rest: str) -> bool:
        return not self._opening and self.last_mark.startswith(rest)

    def _close(self) -> bool:
        """Pass over what follows the arguments, up to the mark of the call's end."""
        at, mark = first_of(self._held, (self.call_end, self.last_mark))
        self._take(at)
        if not mark:
            return False
        self._held = self._held.removeprefix(self.call_end)
        self._step = self._item
        return True

    def _end(self) -> None:
        if self._step == self._item and not self._opening:
            self._held = ""
        super()._end()


class _DeepseekReader(NamedCallsReader):
    """Base of DeepSeek's readers: each takes both layouts."""

    section, last_mark = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    call, call_end = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
    separator = "<｜tool▁sep｜>"
    marks = (section, last_mark, call, call_end, separator)
    header = re.compile(
        rf"\s*{call}(?P<id>)(?:function{separator})?\s*(?P<name>[^\s<{{]+)\s*"
        rf"(?:{separator}|```(?:json)?)?\s*(?=\{{)"
    )


class DeepseekV3Reader(_DeepseekReader):
    """Reader of the calls of DeepSeek V3 and R1."""

    shape = JsonShape(
        begin=_DeepseekReader.section,
        open=f"{_DeepseekReader.call}function{_DeepseekReader.separator}{NAME}\n```json\n",
        close=f"\n```{_DeepseekReader.call_end}",
        between="\n",
        end=_DeepseekReader.last_mark,
    )


class DeepseekV31Reader(_DeepseekReader):
    """Reader of the calls of DeepSeek V3.1."""

    shape = JsonShape(
        begin=_DeepseekReader.section,
        open=f"{_DeepseekReader.call}{NAME}{_DeepseekReader.separator}",
        close=_DeepseekReader.call_end,
        end=_DeepseekReader.last_mark,
    )


class KimiReader(NamedCallsReader):
    """Reader of the calls of Kimi K2 and Kimi Linear, which give them ids of their own."""

    section, last_mark = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    call, call_end = "<|tool_call_begin|>", "<|tool_call_end|>"
    separator = "<|tool_call_argument_begin|>"
    marks = (section, last_mark, call, call_end, separator)
    header = re.compile(
        rf"\s*{re.escape(call)}\s*(?P<id>(?:functions\.)?(?P<name>[^\s<{{:]+):\d+)\s*"
        rf"{re.escape(separator)}\s*(?=\{{)"
    )
    shape = JsonShape(
        begin=section,
        open=f"{call}functions.{NAME}:0{separator}",
        close=call_end,
        end=last_mark,
        is_single=True,
    )
