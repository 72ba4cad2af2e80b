"""Parts of an answer: reasoning, text, calls of tools, and its end.

They come while the answer is generated, in the order in which the model writes them. Parts of the
same kind (and of the same call) belong together; where they are cut means nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from molink.api.chat.conversation import ToolCall, read_json
from molink.serving.token_events import TokenLogprob


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Piece of the answer's text."""

    text: str
    logprobs: tuple[TokenLogprob, ...] = ()
    """Log-probabilities of its tokens, where they are wanted: readers know of none."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Piece of a call: first one with its id and name and no arguments, then arguments alone."""

    index: int
    """Number of the call in this answer, from 0."""
    id: str = ""
    name: str = ""
    arguments: str = ""
    """A piece of the model's own JSON text."""


@dataclass(frozen=True, slots=True)
class Finished:
    """End of the answer, always its last part."""

    reason: str
    """Reason of the end: "stop", "length", or "tool_calls": a stop after which to call tools."""


Part = ReasoningDelta | TextDelta | ToolCallDelta | Finished


@dataclass(slots=True)
class Reply:
    """Parts of one answer put together."""

    reasoning: str = ""
    text: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish_reason: str | None = None

    @classmethod
    def of(cls, parts: Iterable[Part]) -> "Reply":
        """All parts of an answer."""
        reply = cls()
        for part in parts:
            reply.add(part)
        return reply

    def add(self, part: Part) -> None:
        """Take the next part into account."""
        match part:
            case ReasoningDelta(text):
                self.reasoning += text
            case TextDelta(text):
                self.text += text
            case Finished(reason):
                self.finish_reason = reason
            case ToolCallDelta(index, call_id, name, arguments) if index == len(self.tool_calls):
                self.tool_calls.append(ToolCall(call_id, name, arguments))
            case ToolCallDelta(index, _, _, arguments):
                call = self.tool_calls[index]
                self.tool_calls[index] = ToolCall(call.id, call.name, call.arguments + arguments)

    def drop_last_if_broken(self) -> None:
        """Leave out the last call where its arguments are no JSON object."""
        if not isinstance(read_json(self.tool_calls[-1].arguments), dict):
            self.tool_calls.pop()

    @property
    def has_broken_call(self) -> bool:
        """Whether the arguments of a call are no JSON object."""
        return not all(isinstance(read_json(one.arguments), dict) for one in self.tool_calls)
