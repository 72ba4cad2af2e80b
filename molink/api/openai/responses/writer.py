"""One response, item by item: its events while it is generated, and the whole.

What the model gives becomes a list of items: what it reasoned, a message, calls of tools. At most
one of them is open at a time; a part that does not belong to it closes it and opens the next. Each
event is numbered and names the item and its place, as OpenAI's client demands.
"""

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from molink.api.chat.conversation import Tool
from molink.api.chat.parts import ReasoningDelta, TextDelta, ToolCallDelta
from molink.api.chat.typed_answer import Event, KeptWriter, Spent, TypedPart
from molink.api.errors import ApiError
from molink.api.headers.serving import cached_tokens
from molink.api.openai.logprobs import TokenTexts, positions
from molink.api.openai.responses.tools import OfferedTool, text_of_arguments
from molink.api.openapi.answers import TokenPosition

ID_DIGITS = 24
"""Hexadecimal ones of an item's id."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Kind of item, in OpenAI's words."""

    id_prefix: str
    delta: str
    done: str
    full: str
    """Name of the text in the event that ends it."""
    part: Mapping[str, Any] | None
    """The one part of its content, which gets the text; None: the text is a field of the item."""
    has_logprobs: bool = False
    """Whether its part and its events of text hold log-probabilities."""


_MESSAGE = _Kind(
    "msg",
    "response.output_text.delta",
    "response.output_text.done",
    "text",
    {"type": "output_text", "annotations": []},
    has_logprobs=True,
)
_REASONING = _Kind(
    "rs",
    "response.reasoning_text.delta",
    "response.reasoning_text.done",
    "text",
    {"type": "reasoning_text"},
)
_TEXT_CALL = _Kind(
    "ctc",
    "response.custom_tool_call_input.delta",
    "response.custom_tool_call_input.done",
    "input",
    None,
)
"""Call with a text, which stands within the JSON that the model writes: it is sent whole."""
_CALL = _Kind(
    "fc",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "arguments",
    None,
)


@dataclass(slots=True)
class _OpenItem:
    """Item that is being written."""

    kind: _Kind
    item: dict[str, Any]
    call: int = -1
    """Index of its call."""
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenPosition] = field(default_factory=list)


class ResponseWriter(KeptWriter):
    """Writer of one response."""

    def __init__(
        self,
        response_id: str,
        model: str,
        settings: Mapping[str, Any],
        token_texts: TokenTexts,
        tools: Iterable[OfferedTool] = (),
    ) -> None:
        """`settings`: what of the request the response repeats."""
        body: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "background": False,
            "store": False,
            "truncation": "disabled",
            "usage": None,
            **settings,
        }
        super().__init__(body)
        self._token_texts = token_texts
        self._tools = {one.tool.name: one for one in tools}
        self._open: _OpenItem | None = None
        self._sequence_number = 0

    def started(self) -> list[Event]:
        """The events before all parts."""
        for kind in ("response.created", "response.in_progress"):
            self._add_event(kind, response=dict(self.body, output=[]))
        return self._take_events()

    def wrote(self, part: TypedPart) -> list[Event]:
        """The events of the next part."""
        match part:
            case TextDelta(text, logprobs):
                self._continue(_MESSAGE, text, positions(logprobs, self._token_texts))
            case ReasoningDelta(text):
                self._continue(_REASONING, text)
            case ToolCallDelta():
                self._continue_call(part)
        return self._take_events()

    def ended(self, finish_reason: str, stop_reason: str | int | None, spent: Spent) -> list[Event]:
        """The events after all parts."""
        is_cut = finish_reason == "length"
        if not self.body["output"] and self._open is None:
            self._continue(_MESSAGE, "")
        self._close("incomplete" if is_cut else "completed")
        self.body["usage"] = _usage(spent)
        if is_cut:
            self.body["incomplete_details"] = {"reason": "max_output_tokens"}
        self._end("incomplete" if is_cut else "completed")
        return self._take_events()

    def failed(self, error: ApiError) -> list[Event]:
        """The events of an answer that cannot go on."""
        self._close("incomplete")
        self.body["error"] = {"code": "server_error", "message": str(error)}
        self._end("failed")
        return self._take_events()

    def stopped(self, status: str) -> list[Event]:
        """Write the answer as it is, though it has no end: it is `in_progress`, or `cancelled`."""
        self._close("in_progress" if status == "in_progress" else "incomplete")
        self._end(status)
        return self._take_events()

    # -- items ------------------------------------------------------------------------------------

    def _continue(self, kind: _Kind, text: str, logprobs: Sequence[TokenPosition] = ()) -> None:
        if self._open is None or self._open.kind is not kind:
            self._close()
            is_message = kind is _MESSAGE
            item = {"type": "message", "role": "assistant"} if is_message else {"type": "reasoning"}
            self._begin(kind, item | ({} if is_message else {"summary": []}) | {"content": []})
        self._add(text, logprobs)

    def _continue_call(self, part: ToolCallDelta) -> None:
        if self._open is None or self._open.call != part.index:
            self._close()
            self._begin_call(part)
        self._add(part.arguments)

    def _begin_call(self, part: ToolCallDelta) -> None:
        """Open the item of a call, in the words in which its tool was offered."""
        offered = self._tools.get(part.name) or OfferedTool(Tool(part.name), part.name)
        kind, type = _CALL, "function_call"
        if offered.takes_text:
            kind, type = _TEXT_CALL, "custom_tool_call"
        item = {"type": type, "call_id": self._id_of("call"), "name": offered.name, kind.full: ""}
        if offered.namespace is not None:
            item["namespace"] = offered.namespace
        self._begin(kind, item, part.index)

    def _begin(self, kind: _Kind, item: dict[str, Any], call: int = -1) -> None:
        item = {"id": self._id_of(kind.id_prefix), "status": "in_progress"} | item
        self._open = _OpenItem(kind, item, call)
        self._add_item_event("response.output_item.added")
        if kind.part is not None:
            part = {**kind.part, "text": "", **_logprobs(kind, [])}
            self._add_part_event("response.content_part.added", part=part)

    def _id_of(self, prefix: str) -> str:
        """Id of the item that begins: the same whenever this answer is written."""
        name = f"{self.body['id']}/{self._output_index}"
        return f"{prefix}_{hashlib.sha256(name.encode()).hexdigest()[:ID_DIGITS]}"

    def _add(self, text: str, logprobs: Sequence[TokenPosition] = ()) -> None:
        assert self._open is not None, "it has begun"
        if text:
            self._open.texts.append(text)
            self._open.logprobs += logprobs
            if self._open.kind is _TEXT_CALL:
                return
            beside = _logprobs(self._open.kind, logprobs)
            self._add_part_event(self._open.kind.delta, delta=text, **beside)

    def _close(self, status: str = "completed") -> None:
        if self._open is None:
            return
        kind, item, text = self._open.kind, self._open.item, "".join(self._open.texts)
        item["status"] = status
        if kind is _TEXT_CALL:
            text = text_of_arguments(text)
            self._add_part_event(kind.delta, delta=text)
        beside = _logprobs(kind, self._open.logprobs)
        self._add_part_event(kind.done, **{kind.full: text}, **beside)
        if kind.part is None:
            item[kind.full] = text
        else:
            part = {**kind.part, "text": text, **beside}
            item["content"] = [part]
            self._add_part_event("response.content_part.done", part=part)
        self._add_item_event("response.output_item.done")
        self.body["output"].append(item)
        self._open = None

    # -- events -----------------------------------------------------------------------------------

    def _end(self, status: str) -> None:
        self.body["status"] = status
        if status == "completed":
            self.body["completed_at"] = int(time.time())
        self._add_event(f"response.{status}", response=self.body)

    def _add_item_event(self, kind: str) -> None:
        """An event with the whole open item."""
        assert self._open is not None, "it is about an item"
        self._add_event(kind, output_index=self._output_index, item=dict(self._open.item))

    def _add_part_event(self, kind: str, **fields: Any) -> None:
        """An event about the text of the open item."""
        assert self._open is not None, "it is about an item"
        place = {} if self._open.kind.part is None else {"content_index": 0}
        item_id = self._open.item["id"]
        self._add_event(kind, output_index=self._output_index, item_id=item_id, **place, **fields)

    @property
    def _output_index(self) -> int:
        """Place of the open item."""
        return len(self.body["output"])

    def _add_event(self, kind: str, **fields: Any) -> None:
        self._events.append({"type": kind, "sequence_number": self._sequence_number, **fields})
        self._sequence_number += 1


def _logprobs(kind: _Kind, logprobs: Sequence[TokenPosition]) -> dict[str, Any]:
    return {"logprobs": list(logprobs)} if kind.has_logprobs else {}


def _usage(spent: Spent) -> dict[str, Any]:
    return {
        "input_tokens": spent.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": cached_tokens(spent.prompt_tokens),
            "cache_write_tokens": 0,
        },
        "output_tokens": spent.answer_tokens,
        "output_tokens_details": {"reasoning_tokens": spent.reasoning_tokens},
        "total_tokens": spent.prompt_tokens + spent.answer_tokens,
    }
