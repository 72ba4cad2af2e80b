"""One message, block by block: its events while it is generated, and the whole.

What the model gives becomes a list of blocks: what it reasoned, text, uses of tools. At most one of
them is open at a time; a part that does not belong to it closes it and opens the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from molink.api.anthropic.breakpoints import KEEP_S
from molink.api.chat.conversation import read_json
from molink.api.chat.parts import ReasoningDelta, TextDelta, ToolCallDelta
from molink.api.chat.typed_answer import Event, Spent, TypedPart, TypedWriter
from molink.api.errors import ApiError, anthropic_error_body
from molink.api.headers.serving import cached_tokens, wished_tokens
from molink.json_object import JsonObject

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


@dataclass(slots=True)
class _OpenBlock:
    """Block that is being written."""

    block: dict[str, Any]
    text_field: str
    """Name of the block's field, and its deltas', that takes text; a call's text is its input."""
    call: int = -1
    """Index of its call."""
    texts: list[str] = field(default_factory=list)


class MessageWriter(TypedWriter):
    """Writer of one message."""

    def __init__(
        self,
        message_id: str,
        model: str,
        prompt_tokens: int,
        *,
        is_cut: bool,
        beside: Mapping[str, Any],
    ) -> None:
        """`is_cut`: the model's length leaves fewer tokens than the request allows; `beside`: what
        its end tells beside."""
        body: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        super().__init__(body)
        self._is_cut = is_cut
        self._beside = beside
        self._open: _OpenBlock | None = None

    def started(self) -> list[Event]:
        """The events before all parts."""
        self._add_event("message_start", message=dict(self.body, content=[]))
        return self._take_events()

    def wrote(self, part: TypedPart) -> list[Event]:
        """The events of the next part."""
        match part:
            case TextDelta(text):
                self._continue("text", {"type": "text", "text": ""}, "text", text)
            case ReasoningDelta(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                self._continue("thinking", empty, "thinking", text)
            case ToolCallDelta(index, call_id, name, arguments):
                use = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
                self._continue("input_json", use, "partial_json", arguments, index)
        return self._take_events()

    def ended(self, finish_reason: str, stop_reason: str | int | None, spent: Spent) -> list[Event]:
        """The events after all parts."""
        self._close()
        reason = STOP_REASONS[finish_reason]
        if isinstance(stop_reason, str) and finish_reason == "stop":
            reason, self.body["stop_sequence"] = "stop_sequence", stop_reason
        elif reason == "max_tokens" and self._is_cut:
            reason = "model_context_window_exceeded"
        self.body["stop_reason"] = reason
        self.body["usage"] = _usage(spent)
        delta = {name: self.body[name] for name in ("stop_reason", "stop_sequence")}
        self.body |= self._beside
        self._add_event("message_delta", delta=delta, usage=self.body["usage"], **self._beside)
        self._add_event("message_stop")
        return self._take_events()

    def failed(self, error: ApiError) -> list[Event]:
        """The events of an answer that cannot go on."""
        return [anthropic_error_body(error)]

    def _continue(
        self, kind: str, empty: dict[str, Any], text_field: str, text: str, call: int = -1
    ) -> None:
        """Add a piece of text to the open block, or to a new one when it is of another kind."""
        is_open = self._open is not None and self._open.text_field == text_field
        if not is_open or (self._open and self._open.call != call):
            self._close()
            self._open = _OpenBlock(empty, text_field, call)
            self._add_event("content_block_start", index=self._index, content_block=dict(empty))
        assert self._open is not None, "it has begun"
        if text:
            self._open.texts.append(text)
            delta = {"type": f"{kind}_delta", text_field: text}
            self._add_event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> None:
        if self._open is None:
            return
        block, text = self._open.block, "".join(self._open.texts)
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        else:
            block[self._open.text_field] = text
        self._add_event("content_block_stop", index=self._index)
        self.body["content"].append(block)
        self._open = None

    @property
    def _index(self) -> int:
        return len(self.body["content"])

    def _add_event(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, **fields})


def _usage(spent: Spent) -> JsonObject:
    """What an answer cost; its prompt is told in three parts. Written is what the request wished to
    keep and was not cached before, each token for the longest time that it is kept."""
    cached, wished = cached_tokens(spent.prompt_tokens), wished_tokens()
    long = max([cached, *(tokens for tokens, keep_s in wished if keep_s == KEEP_S["1h"])])
    written = max([long, *(tokens for tokens, _ in wished)]) - cached
    return {
        "input_tokens": spent.prompt_tokens - cached - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": cached,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cached + written - long,
            "ephemeral_1h_input_tokens": long - cached,
        },
        "output_tokens": spent.answer_tokens,
    }


def _input(arguments: str) -> JsonObject:
    """A call's arguments as an object; broken ones, which a model may have written, within one, as
    Anthropic advises its own users."""
    found = read_json(arguments or "{}")
    return found if isinstance(found, dict) else {"INVALID_JSON": arguments}
