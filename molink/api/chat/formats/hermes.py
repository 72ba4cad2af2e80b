"""Hermes and Qwen: each call between `<tool_call>` and `</tool_call>`."""

from molink.api.chat.formats.json_calls import JsonCallsReader
from molink.api.chat.formats.reader import CallWriter
from molink.api.chat.formats.shapes import NAME, JsonShape
from molink.serving.text_stream import overlap

__all__ = ["HermesReader"]

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesReader(JsonCallsReader):
    """Reader of tagged calls, anywhere in the text."""

    marks = (OPEN, CLOSE)
    close_mark = last_mark = CLOSE
    shape = JsonShape(
        open=f'{OPEN}\n{{"name": "{NAME}", "arguments": ', close=f"}}\n{CLOSE}", between="\n"
    )

    def __init__(self, calls: CallWriter) -> None:
        super().__init__(calls)
        self._step = self._text

    def _text(self) -> bool:
        at = self._held.find(OPEN)
        if at < 0:
            self._say(self._take(len(self._held) - overlap(self._held, OPEN)))
            return False
        self._say(self._take(at))
        return self._begin_object(self._take(len(OPEN)))

    def _close(self) -> bool:
        """A call may end without its mark."""
        rest = self._held.lstrip()
        if not rest.startswith(CLOSE) and CLOSE.startswith(rest):
            return False
        if rest.startswith(CLOSE):
            self._held = rest[len(CLOSE) :]
        self._step = self._text
        return True
