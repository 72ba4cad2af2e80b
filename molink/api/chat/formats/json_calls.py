"""Calls written as JSON objects: `{"name": "f", "arguments": {...}}`.

Models write the name first, so arguments are handed out while they are generated, in the model's
own characters. Objects in any other order are read whole. Where an object ends is found by counting
brackets outside of strings; whether it is JSON is asked of the parser when it has ended. What is
none, or no call, is text again, marks included.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from molink.api.chat.conversation import read_json
from molink.api.chat.formats.reader import CallWriter, HoldingReader
from molink.serving.text_stream import first_of

OBJECTS = ('{"name"', '{\n  "name"', '{\n    "name"')
"""How objects without marks begin."""

_IN_TEXT = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')

_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
"""Up to the first bracket of the arguments."""

_FIRST_KEY = re.compile(r'\s*\{\s*"((?:[^"\\]|\\.)*)"')

CALL_KEYS = frozenset({"arguments", "function", "id", "name", "parameters", "type"})
"""Keys with which a call's object may begin."""

NAMED_CHARS_MAX = 256
"""Characters from a call's mark to its arguments, where its name stands between them; longer is
text."""

HEAD_CHARS_MAX = 1024
"""Characters within which a name and its arguments' beginning come; each new piece is searched."""


@dataclass(slots=True)
class JsonSpan:
    """Finder of the end of one JSON object or array, whose text comes in pieces."""

    depth: int = 0
    """Brackets that are open."""
    _in_text: bool = False
    _escaped: bool = False

    def end(self, text: str) -> int | None:
        """How many characters of the next `text` belong to it; None: all, and it goes on."""
        at = 0
        while at < len(text):
            if self._escaped:
                self._escaped, at = False, at + 1
                continue
            mark = (_IN_TEXT if self._in_text else _OUTSIDE).search(text, at)
            if mark is None:
                return None
            at = mark.end()
            if self._closes(mark[0]):
                return at
        return None

    def _closes(self, mark: str) -> bool:
        if mark == "\\":
            self._escaped = True
        elif mark == '"':
            self._in_text = not self._in_text
        else:
            self.depth += 1 if mark in "{[" else -1
            return self.depth <= 0
        return False


class JsonCallsReader(HoldingReader):
    """Base of the readers whose calls are JSON objects.

    A subclass finds where one begins, sets `_opening` and steps to `_head`; when the call has ended
    the step is `_close`, and when it was none the step is `_text`. Both are the subclass's.
    """

    close_mark = ""
    """Mark that ends a call besides its bracket."""

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._is_bare = False
        """Whether only the object itself tells that it is a call: then it must name a tool and have
        arguments."""
        self._span, self._scanned = JsonSpan(), 0
        self._after_arguments: Callable[[], bool] = self._tail

    @abstractmethod
    def _close(self) -> bool:
        """Step behind a call."""

    def _begin_object(self, opening: str, *, is_bare: bool = False) -> bool:
        """Take the held text for the beginning of a call's object."""
        self._opening, self._is_bare = opening, is_bare
        self._span, self._scanned = JsonSpan(), 0
        self._after_arguments, self._step = self._tail, self._head
        return True

    def _begin_arguments(self, name: str, then: Callable[[], bool], own_id: str = "") -> bool:
        """Take the held text for the first bracket of a call's arguments; `own_id`: the one that
        the model gave the call."""
        self._begin_call(name, own_id)
        self._span, self._after_arguments, self._step = JsonSpan(), then, self._arguments
        return True

    def _begin_named(self, header: re.Pattern[str], then: Callable[[], bool]) -> bool:
        """Take the held text for a `header`, an `id` and a `name`, and the arguments behind it."""
        found = header.match(self._held, 0, NAMED_CHARS_MAX)
        if found is not None:
            self._take(found.end())
            return self._begin_arguments(found["name"], then, found["id"])
        if "{" in self._held or len(self._held) >= NAMED_CHARS_MAX:
            return self._break()
        return False

    def _head(self) -> bool:
        if is_no_call(self._held):
            return self._break()
        head = _HEAD.match(self._held, 0, HEAD_CHARS_MAX)
        if head is not None:
            name = read_json(head[1], strict=False)
            if not self._may_call(name):
                return self._break()
            self._take(head.end())
            return self._begin_arguments(name, self._tail)
        end = self._span.end(self._held[self._scanned :])
        if end is None:
            self._scanned = len(self._held)
            return False
        return self._whole(self._scanned + end)

    def _whole(self, end: int) -> bool:
        """An object that has ended without a head."""
        call = whole_call(read_json(self._held[:end], strict=False), needs_arguments=self._is_bare)
        if call is None or not self._may_call(call[0]):
            return self._break()
        self._take(end)
        self._call(*call)
        self._step = self._close
        return True

    def _call(self, name: str, arguments: str) -> None:
        """Give a call whole."""
        self._begin_call(name)
        self._add_arguments(arguments)

    def _arguments(self) -> bool:
        end = self._span.end(self._held)
        self._add_arguments(self._take(len(self._held) if end is None else end))
        if end is None:
            return False
        self._span, self._step = JsonSpan(depth=1), self._after_arguments
        return True

    def _tail(self) -> bool:
        """Pass over what follows the arguments, up to the object's bracket or the closing mark."""
        sure, mark = first_of(self._held, (self.close_mark,))
        end = self._span.end(self._held[:sure])
        self._take(sure if end is None else end)
        if end is None and not mark:
            return False
        self._step = self._close
        return True

    def _may_call(self, name: Any) -> bool:
        is_name = isinstance(name, str) and bool(name)
        return is_name and (not self._is_bare or name in self._calls.tools)

    def _end(self) -> None:
        """Drop the text that follows a call's arguments."""
        if self._step == self._tail or (self._step == self._close and self._calls.count):
            self._held = ""
        super()._end()


def is_no_call(text: str) -> bool:
    """Whether no call begins as this text does."""
    first = _FIRST_KEY.match(text, 0, HEAD_CHARS_MAX)
    if first is not None:
        return first[1] not in CALL_KEYS
    return text.lstrip()[:1] not in ("", "{")


def whole_call(found: Any, *, needs_arguments: bool) -> tuple[str, str] | None:
    """Name and arguments of a call's object; None: it is none."""
    if not isinstance(found, dict):
        return None
    name = found.get("name", found.get("function"))
    arguments = found.get("arguments", found.get("parameters"))
    if arguments is None and not needs_arguments:
        arguments = {}
    if isinstance(arguments, str):
        arguments = read_json(arguments, strict=False)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, json.dumps(arguments, ensure_ascii=False)
