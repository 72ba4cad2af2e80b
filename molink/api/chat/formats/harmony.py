"""Harmony, the format of gpt-oss: messages in channels.

`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`: a header
says in which channel a message stands (`analysis` is reasoning, `final` the answer, `commentary`
what is said around calls) and to whom it goes (`to=functions.f` is a call, its body the arguments).
The prompt ends within the first header, so an answer begins there.

`openai-harmony` reads the same from token ids, but fetches its own vocabulary over the network when
it starts, where a checkpoint's tokenizer is all that we need.
"""

import re
from collections.abc import Callable

from molink.api.chat.formats.reader import CallWriter, HoldingReader
from molink.api.chat.formats.shapes import NAME, JsonShape
from molink.api.chat.formats.think import ThinkTags
from molink.api.chat.parts import ReasoningDelta
from molink.serving.text_stream import first_of

MESSAGE = "<|message|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>", "<|start|>")

HEADER_CHARS_MAX = 512
"""Characters of role, recipient and channel; longer is text."""

FINAL = "<|channel|>final<|message|>"
"""How the answer itself begins."""

QUIET = (
    ("", "<|channel|>final", False),
    ("<|end|>", "<|channel|>final", False),
    ("<|call|>", "<|channel|>final", False),
    ("<|constrain", MESSAGE, False),
    ("<|message", "|>", False),
)
"""Spans in which stop strings end nothing: all before the answer's body; a header may hold one."""

THOUGHTS = ThinkTags("<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
"""Marks around the model's reasoning, in the answer's first message."""

FUNCTIONS, ANALYSIS = "functions.", "analysis"

_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")


class HarmonyReader(HoldingReader):
    """Reader of answers in channels: reasoning, text and calls by the header of each message."""

    marks = (MESSAGE, "<|channel|>", "<|constrain|>", *ENDS)
    shape = JsonShape(
        open=f"<|channel|>commentary to={FUNCTIONS}{NAME} <|constrain|>json{MESSAGE}",
        is_single=True,
    )

    def __init__(self, calls: CallWriter, *, reads_calls: bool, reads_reasoning: bool) -> None:
        super().__init__(calls)
        self._reads_calls, self._reads_reasoning = reads_calls, reads_reasoning
        self._give: Callable[[str], None] = self._say
        """Function that takes the present message's body."""
        self._has_said = self._has_arguments = False

    def _text(self) -> bool:
        """Step up to a message's body: the header says who takes that."""
        at = self._held.find(MESSAGE, 0, HEADER_CHARS_MAX)
        if at < 0 and len(self._held) < HEADER_CHARS_MAX:
            return False
        header = self._take(at + len(MESSAGE)) if at >= 0 else ""
        self._give = self._receiver(header)
        self._step = self._body
        return True

    def _receiver(self, header: str) -> Callable[[str], None]:
        """Function that takes the body of the message with this header."""
        channel, recipient = _CHANNEL.search(header), _RECIPIENT.search(header)
        if recipient is not None and self._reads_calls:
            self._begin_call(recipient[1].removeprefix(FUNCTIONS))
            self._has_arguments = False
            return self._argue
        if channel is not None and channel[1] == ANALYSIS and self._reads_reasoning:
            return self._reason
        if self._has_said:
            self._say("\n")
        self._has_said = True
        return self._say

    def _argue(self, arguments: str) -> None:
        self._has_arguments = self._has_arguments or bool(arguments.strip())
        self._add_arguments(arguments)

    def _reason(self, text: str) -> None:
        if text:
            self._parts.append(ReasoningDelta(text))

    def _body(self) -> bool:
        at, mark = first_of(self._held, ENDS)
        self._give(self._take(at))
        if not mark:
            return False
        self._take(len(mark))
        self._end_message()
        return True

    def _end_message(self) -> None:
        if self._give == self._argue and not self._has_arguments:
            self._add_arguments("{}")
        self._step = self._text

    def _end(self) -> None:
        if self._step == self._body:
            self._give(self._take(len(self._held)))
            self._end_message()
        elif not self._held.lstrip().startswith("<|"):
            self._say(self._held)
        self._held = ""
