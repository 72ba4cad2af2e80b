"""Calls in notations of their own: Gemma 4 and LFM 2.

What stands between the marks is read when it is whole; a call that is demanded is JSON between the
same marks, which these readers take as well.
"""

import ast
import json
import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

from molink.api.chat.conversation import read_json
from molink.api.chat.formats.json_calls import whole_call
from molink.api.chat.formats.reader import HoldingReader
from molink.api.chat.formats.shapes import NAME, JsonShape
from molink.serving.text_stream import first_of


class NotedCallsReader(HoldingReader):
    """Base of these readers; a subclass has the marks, and reads what is between them."""

    @staticmethod
    @abstractmethod
    def calls_in(text: str) -> list[tuple[str, str] | None]:
        """Names and arguments; raises ValueError, or holds None, for what are no calls."""

    def _text(self) -> bool:
        return self._open(self.marks[0], self._calls_up_to_the_end)

    def _calls_up_to_the_end(self) -> bool:
        at, mark = first_of(self._held, (self.last_mark,))
        if not mark:
            return False
        try:
            calls = self.calls_in(self._held[:at])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            calls = []
        if not calls or None in calls:
            return self._break()
        self._take(at + len(mark))
        for call in calls:
            assert call is not None
            self._begin_call(call[0])
            self._add_arguments(call[1])
        self._step = self._text
        return True


QUOTE = '<|"|>'
_KEY = re.compile(r"([{,]\s*)([\w.-]+)(?=\s*:)")


class Gemma4Reader(NotedCallsReader):
    """Reader of Gemma 4's calls: JSON with other quotes, and keys without any."""

    marks, last_mark = ("<|tool_call>", QUOTE, "<tool_call|>"), "<tool_call|>"
    shape = JsonShape(open=f"<|tool_call>call:{NAME}", close="<tool_call|>")

    @staticmethod
    def calls_in(text: str) -> list[tuple[str, str] | None]:
        """Name and arguments of the one call in `call:f{a:<|"|>text<|"|>,b:[1,2]}`."""
        name, _, rest = text.strip().removeprefix("call:").partition("{")
        arguments = read_json("{" + rest, strict=False)
        if arguments is None:
            pieces = ("{" + rest).split(QUOTE)
            pieces[1::2] = [json.dumps(one) for one in pieces[1::2]]
            pieces[::2] = [_KEY.sub(r'\1"\2"', one) for one in pieces[::2]]
            arguments = read_json("".join(pieces))
        return [whole_call({"name": name.strip(), "arguments": arguments}, needs_arguments=True)]


class Lfm2Reader(NotedCallsReader):
    """Reader of LFM 2's calls, which are a list in Python: `[f(a='text', b=[1, 2])]`."""

    marks, last_mark = ("<|tool_call_start|>", "<|tool_call_end|>"), "<|tool_call_end|>"
    shape = JsonShape(
        begin="<|tool_call_start|>[",
        open=f'{{"name": "{NAME}", "arguments": ',
        close="}",
        between=", ",
        end="]<|tool_call_end|>",
    )

    @staticmethod
    def calls_in(text: str) -> list[tuple[str, str] | None]:
        """All calls of a list, of which each is JSON or Python."""
        found: Any = read_json(text, strict=False)
        if found is None:
            written = _JsonNames().visit(ast.parse(text.strip(), mode="eval")).body
            found = [_python_call(one) for one in getattr(written, "elts", ())]
        listed = found if isinstance(found, list) else [found]
        return [whole_call(one, needs_arguments=False) for one in listed]


class _JsonNames(ast.NodeTransformer):
    """JSON's names in Python: templates write objects so."""

    KNOWN: Mapping[str, bool | None] = {"true": True, "false": False, "null": None}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self.KNOWN[node.id]) if node.id in self.KNOWN else node


def _python_call(call: ast.AST) -> dict[str, Any] | None:
    if not isinstance(call, ast.Call):
        return None
    arguments = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
    return {"name": ast.unparse(call.func), "arguments": arguments}
