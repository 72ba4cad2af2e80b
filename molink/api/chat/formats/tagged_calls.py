"""Calls whose arguments stand in tags: Qwen3-Coder, GLM, MiniMax, Seed-OSS, DeepSeek V3.2 and V4.

`<tool_call><function=f><parameter=a>...</parameter></function></tool_call>` and the like: the
families differ in the tags alone. Values are bare text, so the tool's schema tells a string from
other JSON. Each parameter becomes a piece of the call's arguments when it has ended.
"""

import json
import re
from dataclasses import replace

from molink.api.chat.formats.parameters import Parameters
from molink.api.chat.formats.reader import CallWriter, HoldingReader
from molink.api.chat.formats.shapes import TagShape
from molink.serving.text_stream import first_of

NAME_CHARS_MAX = 256
"""Up to the end of a function's name; longer is text."""


class TaggedCallsReader(HoldingReader):
    """Base of the readers whose calls have their arguments in tags; a subclass has the tags."""

    shape: TagShape

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._name_pattern = _name_pattern(self.shape)
        self._parameters_of_tool = Parameters({})
        self._separator = ""

    def _text(self) -> bool:
        return self._open(self.shape.begin, self._name)

    def _name(self) -> bool:
        found = self._name_pattern.match(self._held, 0, NAME_CHARS_MAX)
        if found is not None and self._may_call(found[1]):
            self._take(found.end())
            self._begin(found[1].strip())
            return True
        if found is None and len(self._held) < NAME_CHARS_MAX and self._may_become_name():
            return False
        return self._break()

    def _may_become_name(self) -> bool:
        shape, begun = self.shape, self._held.lstrip()
        if shape.open:
            is_begun = re.fullmatch(re.escape(shape.open) + r"[^<>\n]*", begun) is not None
            return is_begun or shape.open.startswith(begun)
        name = re.match(r"[^\s<>]*\s*", begun)
        rest = begun[name.end() :] if name is not None else begun
        return shape.key.startswith(rest) or shape.close.startswith(rest)

    def _may_call(self, name: str) -> bool:
        """Whether this may be a call's name: without a mark before it, only a tool's tells one."""
        return bool(self.shape.open) or name in self._calls.tools

    def _begin(self, name: str) -> None:
        self._parameters_of_tool = Parameters(self._calls.tools.get(name, {}))
        self._begin_call(name)
        self._add_arguments("{")
        self._separator = ""
        self._step = self._parameters

    def _parameters(self) -> bool:
        """Read on before a parameter, or at the call's end."""
        self._held = self._held.lstrip()
        if self._held.startswith(self.shape.key):
            return self._parameter()
        if self._held.startswith(self.shape.close):
            self._take(len(self.shape.close))
            self._add_arguments("}")
            self._step = self._close
            return True
        return self._pass_over()

    def _pass_over(self) -> bool:
        """Drop what belongs to no parameter, up to the next mark."""
        at, mark = first_of(self._held, (self.shape.key, self.shape.close))
        self._take(at)
        return bool(mark)

    def _parameter(self) -> bool:
        at, mark = first_of(self._held, (self.shape.value_end, self.shape.close))
        if not mark:
            return False
        text = self._take(at).removeprefix(self.shape.key)
        end, mark = first_of(text, (self.shape.key_end, self.shape.json_key_end))
        key, value = text[:end], text[end + len(mark) :]
        if self._held.startswith(self.shape.value_end):
            self._take(len(self.shape.value_end))
        if self.shape.value:
            value = value.lstrip().removeprefix(self.shape.value)
        self._add(key.strip(), value)
        return True

    def _add(self, key: str, text: str) -> None:
        edge = self.shape.value_break
        value = self._parameters_of_tool.read(key, text.removeprefix(edge).removesuffix(edge))
        written = json.dumps(value, ensure_ascii=False)
        self._add_arguments(f"{self._separator}{json.dumps(key)}: {written}")
        self._separator = ", "

    def _close(self) -> bool:
        """Read on behind a call: another call, or the mark that ends them, which may be missing."""
        rest = self._held.lstrip()
        nexts = [mark for mark in (self.shape.open, self.shape.end) if mark]
        if not any(rest.startswith(mark) for mark in nexts):
            if any(mark.startswith(rest) for mark in nexts):
                return False
            self._step = self._text
        elif self.shape.open and rest.startswith(self.shape.open):
            self._step = self._name
        else:
            self._held, self._step = rest[len(self.shape.end) :], self._text
        return True

    def _end(self) -> None:
        if self._step not in (self._name, self._text):
            self._held = ""
        super()._end()


def _name_pattern(shape: TagShape) -> re.Pattern[str]:
    if shape.open:
        return re.compile(rf'\s*{re.escape(shape.open)}([^<>\n"]+){re.escape(shape.name_end)}')
    return re.compile(rf"\s*([^\s<>]+)\s*(?={re.escape(shape.key)}|{re.escape(shape.close)})")


class QwenCoderReader(TaggedCallsReader):
    """Reader of Qwen3-Coder's calls, which Nemotron 3 and Step 3.5 write as well."""

    shape = TagShape(
        begin="<tool_call>",
        open="<function=",
        name_end=">",
        key="<parameter=",
        key_end=">",
        value="",
        value_end="</parameter>",
        close="</function>",
        end="</tool_call>",
        value_break="\n",
    )
    marks, last_mark = shape.marks, shape.end


class SeedReader(TaggedCallsReader):
    """Reader of the calls of ByteDance's Seed-OSS."""

    shape = replace(
        QwenCoderReader.shape, begin="<seed:tool_call>", end="</seed:tool_call>", value_break=""
    )
    marks, last_mark = shape.marks, shape.end


class GlmReader(TaggedCallsReader):
    """Reader of the calls of GLM 4.5 to 4.7."""

    shape = TagShape(
        begin="<tool_call>",
        open="",
        name_end="",
        key="<arg_key>",
        key_end="</arg_key>",
        value="<arg_value>",
        value_end="</arg_value>",
        close="</tool_call>",
    )
    marks, last_mark = (*shape.marks, shape.key_end), shape.close


class MiniMaxReader(TaggedCallsReader):
    """Reader of MiniMax-M2's calls."""

    shape = replace(
        QwenCoderReader.shape,
        begin="<minimax:tool_call>",
        open='<invoke name="',
        name_end='">',
        key='<parameter name="',
        key_end='">',
        close="</invoke>",
        end="</minimax:tool_call>",
        value_break="",
    )
    marks, last_mark = shape.marks, shape.end


class DeepseekV32Reader(TaggedCallsReader):
    """Reader of DeepSeek V3.2's calls."""

    shape = TagShape(
        begin="<｜DSML｜function_calls>",
        open='<｜DSML｜invoke name="',
        name_end='">',
        key='<｜DSML｜parameter name="',
        key_end='" string="true">',
        json_key_end='" string="false">',
        value="",
        value_end="</｜DSML｜parameter>",
        close="</｜DSML｜invoke>",
        end="</｜DSML｜function_calls>",
    )
    marks, last_mark = (*shape.marks, "｜DSML｜"), shape.end


class DeepseekV4Reader(TaggedCallsReader):
    """Reader of DeepSeek V4's calls."""

    shape = replace(
        DeepseekV32Reader.shape, begin="<｜DSML｜tool_calls>", end="</｜DSML｜tool_calls>"
    )
    marks, last_mark = (*shape.marks, "｜DSML｜"), shape.end
