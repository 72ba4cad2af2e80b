"""Base of all readers of formats: held text, steps over it, and calls with ids.

A reader is a small state machine. `_step` is its state: it consumes what it can of `_held` and
tells whether something changed; `push` repeats steps until one waits for more text. What a step
decides depends only on the text from its beginning, never on how much more is there already.
"""

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from molink.api.chat.formats.shapes import CallShape
from molink.api.chat.parts import Part, TextDelta, ToolCallDelta
from molink.serving.text_stream import first_of

ID_LETTERS = string.ascii_letters + string.digits


def call_id() -> str:
    """A new id of a call, as OpenAI's look."""
    return f"call_{secrets.token_hex(12)}"


def nine_letters() -> str:
    """A new id as Mistral's templates demand: letters and digits, nine of them."""
    return "".join(secrets.choice(ID_LETTERS) for _ in range(9))


class TextReader(Protocol):
    """Reader of an answer's text: takes it piece by piece and gives parts."""

    def push(self, text: str) -> list[Part]:
        """Parts that became clear with this text."""

    def finish(self) -> list[Part]:
        """Parts of what was held back, at the end of the answer."""


class PlainText:
    """Reader that takes everything for text."""

    def push(self, text: str) -> list[Part]:
        """The same text, as a part."""
        return [TextDelta(text)]

    def finish(self) -> list[Part]:
        """No parts: nothing is held back."""
        return []


@dataclass(slots=True)
class CallWriter:
    """Writer of the deltas of an answer's calls: counts them and names them."""

    tools: Mapping[str, Mapping[str, Any]]
    """The tools that the model was told of: the schemas of their arguments by name."""
    make_id: Callable[[], str]
    is_strict: bool = False
    """Whether a grammar holds for calls between marks: what has none is text."""
    count: int = 0
    _ids: set[str] = field(default_factory=set)

    def begin(self, name: str, own_id: str = "") -> ToolCallDelta:
        """The first delta of the next call; `own_id`: the one that the model gave it, if it did."""
        self.count += 1
        is_new = bool(own_id) and own_id not in self._ids
        chosen = own_id if is_new else self.make_id()
        self._ids.add(chosen)
        return ToolCallDelta(self.count - 1, chosen, name)

    def go_on(self, arguments: str) -> ToolCallDelta:
        """A delta with more of the present call's arguments."""
        return ToolCallDelta(self.count - 1, arguments=arguments)


class SteppingReader:
    """Base of the readers that hold text back and go over it step by step."""

    def __init__(self) -> None:
        self._held = ""
        self._parts: list[Part] = []
        self._step: Callable[[], bool]
        """The state: consumes what it can of `_held`; False when it waits for more."""

    def push(self, text: str) -> list[Part]:
        """Parts that became clear with this text."""
        self._held += text
        while self._held and self._step():
            pass
        return self._taken()

    def _take(self, count: int) -> str:
        """The first characters of what is held, which is held no longer."""
        taken, self._held = self._held[:count], self._held[count:]
        return taken

    def _taken(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts


class HoldingReader(SteppingReader, ABC):
    """Base of the readers that find calls: text around calls loses its outer white space."""

    marks: tuple[str, ...] = ()
    """Marks that are looked for in the text; calls begin with the first."""
    last_mark = ""
    """Mark behind all calls; empty: no text follows them."""
    shape: CallShape
    """How the format writes calls."""

    def __init__(self, calls: CallWriter) -> None:
        super().__init__()
        self._calls = calls
        self._step = self._text
        self._spaces = ""
        """White space that is text only if text follows it."""
        self._is_after_call = False
        self._opening = ""
        """Text before what may be a call; it is text again if there is no call."""

    @classmethod
    def spans(cls) -> list[tuple[str, str, bool]]:
        """Marks before and behind calls; an empty end: no text follows. True: only at first."""
        return [(cls.marks[0], cls.last_mark, False)]

    def finish(self) -> list[Part]:
        """Parts of what was held back: whatever is no call is text."""
        self._end()
        if self._calls.count == 0 and self._spaces:
            self._parts.append(TextDelta(self._spaces))
        return self._taken()

    def _end(self) -> None:
        self._say(self._opening + self._take(len(self._held)))

    @abstractmethod
    def _text(self) -> bool:
        """Step outside of calls: gives text, up to the mark of a call."""

    def _break(self) -> bool:
        """Read again as text what was taken for a call."""
        self._say(self._opening)
        self._opening, self._step = "", self._text
        return True

    def _said_up_to(self, *marks: str) -> str:
        """The first of these marks, once the text before it is given; empty: none has come."""
        at, mark = first_of(self._held, marks)
        self._say(self._take(at))
        return mark

    def _open(self, mark: str, step: Callable[[], bool]) -> bool:
        """Give the text up to a mark, behind which `step` reads what may be a call."""
        if not self._said_up_to(mark):
            return False
        self._opening, self._step = self._take(len(mark)), step
        return True

    def _say(self, text: str) -> None:
        """Give text, but white space at its end only together with what follows."""
        text = self._spaces + text
        if self._is_after_call:
            text = text.lstrip()
        said = text.rstrip()
        self._spaces = text[len(said) :]
        if said:
            self._parts.append(TextDelta(said))
            self._is_after_call = False

    def _begin_call(self, name: str, own_id: str = "") -> None:
        self._spaces = self._opening = ""
        self._is_after_call = True
        self._parts.append(self._calls.begin(name, own_id))

    def _add_arguments(self, arguments: str) -> None:
        if arguments:
            self._parts.append(self._calls.go_on(arguments))
