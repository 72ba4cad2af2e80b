"""Reasoning between two tags, before the answer: `<think>...</think>`."""

from dataclasses import dataclass

from molink.api.chat.formats.reader import SteppingReader, TextReader
from molink.api.chat.parts import Part, ReasoningDelta
from molink.serving.text_stream import first_of


@dataclass(frozen=True, slots=True)
class ThinkTags:
    """Tags between which a model thinks."""

    open: str
    close: str
    is_implied: bool = False
    """Whether an answer begins inside, where neither prompt nor answer says so."""

    def begins_inside(self, prompt: str) -> bool:
        """Whether the answer to `prompt`, the template's text, begins with reasoning."""
        is_open = prompt.rstrip().endswith(self.open)
        return is_open or (self.is_implied and not self.is_closed(prompt))

    def is_closed(self, prompt: str) -> bool:
        """Whether the template has written the reasoning, usually none."""
        return prompt.rstrip().endswith(self.close)


class ThinkReader(SteppingReader):
    """Splitter of an answer: what stands between the tags is reasoning, the rest is for another
    reader. Line ends next to the tags belong to neither."""

    def __init__(self, tags: ThinkTags, rest: TextReader, *, inside: bool) -> None:
        super().__init__()
        self._tags, self._rest = tags, rest
        self._begins_inside = inside
        self._step = self._start
        self._has_reasoned = False

    def finish(self) -> list[Part]:
        """Parts of what was held back, at the end of the answer."""
        is_reasoning = self._begins_inside if self._step == self._start else self._is_inside
        held, self._held = self._held, ""
        if is_reasoning:
            self._reason(held)
        elif held:
            self._parts += self._rest.push(held)
        self._parts += self._rest.finish()
        return self._taken()

    @property
    def _is_inside(self) -> bool:
        return self._step == self._inside

    def _start(self) -> bool:
        """The opening tag comes first, or was in the prompt, or does not come at all."""
        rest, tag = self._held.lstrip(), self._tags.open
        if rest.startswith(tag):
            self._held = rest[len(tag) :]
            self._step = self._inside
        elif tag.startswith(rest):
            return False
        else:
            self._step = self._inside if self._begins_inside else self._outside
        return True

    def _inside(self) -> bool:
        at, tag = first_of(self._held, (self._tags.close,))
        sure = self._held[:at].rstrip("\n")
        self._reason(sure)
        self._take(at + len(tag) if tag else len(sure))
        self._step = self._skip_newlines if tag else self._inside
        return bool(tag)

    def _skip_newlines(self) -> bool:
        self._held = self._held.lstrip("\n")
        self._step = self._outside if self._held else self._skip_newlines
        return bool(self._held)

    def _outside(self) -> bool:
        held, self._held = self._held, ""
        self._parts += self._rest.push(held)
        return False

    def _reason(self, text: str) -> None:
        text = text if self._has_reasoned else text.lstrip("\n")
        if text:
            self._has_reasoned = True
            self._parts.append(ReasoningDelta(text))
