"""Llama 3: calls as bare JSON from the beginning of an answer, or behind `<|python_tag|>`.

Several follow each other with semicolons or line ends between them. A bare object is a call only if
it names a tool of the request: an answer may be JSON for its own sake.
"""

from molink.api.chat.formats.json_calls import OBJECTS, JsonCallsReader
from molink.api.chat.formats.reader import CallWriter
from molink.api.chat.formats.shapes import NAME, JsonShape

TAG = "<|python_tag|>"

BETWEEN_CALLS = " \t\r\n;,"


class LlamaReader(JsonCallsReader):
    """Reader of Llama's JSON calls."""

    marks = (TAG,)
    shape = JsonShape(open=f'{{"name": "{NAME}", "parameters": ', close="}", is_single=True)

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._step = self._close

    @classmethod
    def spans(cls) -> list[tuple[str, str, bool]]:
        """Marks before and behind calls."""
        begins = (*OBJECTS, '{"type": "function", "name"')
        return [*super().spans(), *((begin, "", True) for begin in begins)]

    def _text(self) -> bool:
        return bool(self._said_up_to(TAG)) and self._begin_object(self._take(len(TAG)))

    def _close(self) -> bool:
        """Read on where a call may begin: at first, and after another call."""
        rest = self._held.lstrip(BETWEEN_CALLS)
        if not rest or (rest != TAG and TAG.startswith(rest)):
            return False
        if rest.startswith("{"):
            between = self._take(len(self._held) - len(rest))
            return self._begin_object(between, is_bare=True)
        self._step = self._text
        return True
