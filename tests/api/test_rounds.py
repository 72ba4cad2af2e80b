"""Answers whose tokens come several at a time: whichever way they are cut into events, each front
end gives what it gives for a token an event."""

import json
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from tests.api.scripted import CALL, SCHEMA, ScriptedService

SCRIPTS = {
    "text": "Hello there, it is a long way.",
    "call": CALL,
    "thought, text and two calls": f"<think>look it up</think>\n\nI will look.\n{CALL}\n{CALL}",
    "thought alone": "<think>it goes on and on and on",
    "broken call": 'So: <tool_call>\n{"name": "weather", "arguments": {"ci',
    "text with a mark in it": "a <tool b </think> c",
}
LAST = {"id", "created", "created_at", "completed_at", "timing", "molink", "call_id", "item_id"}
"""What differs between two answers to the same request."""


def together(events: Sequence[TokenEvent]) -> TokenEvent:
    """One event of all of these."""
    texts = tuple(one.text for one in events)
    return TokenEvent(
        tuple(token for one in events for token in one.token_ids),
        "".join(texts),
        tuple(score for one in events for score in one.logprobs),
        events[-1].finish_reason,
        events[-1].stop_reason,
        events[0].prompt_logprobs,
        texts if len(texts) > 1 else (),
    )


@dataclass
class CutService(ScriptedService):
    """Answers with so many tokens an event, in turn."""

    sizes: Sequence[int] = (1,)
    events_sent: list[int] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        waiting: list[TokenEvent] = []
        sizes = iter(self.sizes * 1000)
        size = next(sizes)
        async for event in super().generate(request):
            waiting.append(event)
            if len(waiting) == size or event.finish_reason is not None:
                self.events_sent.append(len(waiting))
                yield together(waiting)
                waiting, size = [], next(sizes)


TOOL = {"name": "weather", "parameters": SCHEMA}
CHAT = {"messages": [{"role": "user", "content": "hi"}], "seed": 1}
USAGE = {"stream_options": {"include_usage": True}}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": (
        "/v1/chat/completions",
        CHAT
        | {"tools": [{"type": "function", "function": TOOL}], "logprobs": True, "top_logprobs": 2},
    ),
    "chat of two": ("/v1/chat/completions", CHAT | {"n": 2, "max_tokens": 17}),
    "chat in former words": ("/v1/chat/completions", CHAT | {"functions": [TOOL]}),
    "completions": ("/v1/completions", {"prompt": "hi", "logprobs": 2, "max_tokens": 300}),
    "responses": (
        "/v1/responses",
        {
            "input": "hi",
            "tools": [{"type": "function"} | TOOL],
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 1,
        },
    ),
    "messages": (
        "/v1/messages",
        {
            "messages": CHAT["messages"],
            "max_tokens": 500,
            "tools": [{"name": "weather", "input_schema": SCHEMA}],
        },
    ),
    "generate": ("/generate", {"prompt": "hi", "logprobs": 1, "max_tokens": 300}),
}


def plain(value: Any) -> Any:
    """An answer without what differs between two."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items() if name not in LAST}
    return [plain(one) for one in value] if isinstance(value, list) else value


def added(into: Any, piece: Any) -> Any:
    """A streamed value with its next piece: text grows, lists of numbered things by their index."""
    if isinstance(into, dict) and isinstance(piece, dict):
        return into | {name: added(into.get(name), one) for name, one in piece.items()}
    if isinstance(into, str) and isinstance(piece, str):
        return into + piece
    if isinstance(into, list) and isinstance(piece, list):
        if not any(isinstance(one, dict) and "index" in one for one in piece):
            return into + piece
        found = {one["index"]: one for one in into}
        for one in piece:
            found[one["index"]] = added(found.get(one["index"]), one)
        return [found[index] for index in sorted(found)]
    return into if piece is None else piece


def chunks(body: str) -> Iterator[dict[str, Any]]:
    lines = (line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data"))
    return (json.loads(line) for line in lines if line != "[DONE]")


def folded_typed(events: list[dict[str, Any]]) -> list[Any]:
    """Typed events, of which neighbours that add to the same text are one."""
    found: list[Any] = []
    for event in map(plain, events):
        event.pop("sequence_number", None)
        before = found[-1] if found else None
        if "delta" in event and before is not None and "delta" in before:
            same = {k: v for k, v in event.items() if k not in ("delta", "logprobs")}
            if same == {k: v for k, v in before.items() if k not in ("delta", "logprobs")}:
                before["delta"] = _grown(before["delta"], event["delta"])
                if "logprobs" in event:
                    before["logprobs"] += event["logprobs"]
                continue
        found.append(event)
    return found


def _grown(into: Any, piece: Any) -> Any:
    if isinstance(into, str):
        return into + piece
    grown = dict(into)
    for name, one in piece.items():
        grown[name] = grown[name] + one if name != "type" and isinstance(one, str) else one
    return grown


def folded(kind: str, body: str) -> Any:
    """What a client puts together from a stream."""
    events = list(chunks(body))
    if kind in ("responses", "messages"):
        return folded_typed(events)
    whole: Any = {}
    for event in events:
        event = plain(event)
        for name in ("object", "model"):
            event.pop(name, None)
        usage = event.pop("usage", None)
        choices = event.get("choices") or [{}]
        if kind == "generate" or kind == "completions":
            choices = [{"index": 0} | event] if kind == "generate" else choices
        for choice in choices:
            if choice:
                _fold_choice(whole, choice)
        if usage is not None:
            whole["usage"] = usage
    return whole


def _fold_choice(whole: Any, choice: dict[str, Any]) -> None:
    own = whole.setdefault(choice["index"], {})
    delta = choice.pop("delta", {})
    choice.pop("index")
    own["delta"] = added(own.get("delta", {}), {k: v for k, v in delta.items() if k != "role"})
    for name, one in choice.items():
        own[name] = added(own.get(name), one)


def ways(script: str) -> list[Sequence[int]]:
    """Ways to cut an answer into events."""
    some = [random.Random(seed) for seed in range(4)]
    drawn = [[draw.randint(1, 17) for _ in range(len(script))] for draw in some]
    return [(2,), (3, 1), (17,), (len(script),), *drawn]


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ASKED)
async def test_however_tokens_are_cut_into_events_an_answer_is_the_same(
    serve, http, kind, stream, script
):
    service = CutService(script=SCRIPTS[script])
    url = await serve(service)
    path, body = ASKED[kind]
    asked = body | {"model": "tiny/model", "stream": stream}
    if stream and path in ("/v1/chat/completions", "/v1/completions"):
        asked |= USAGE

    async def answer(sizes: Sequence[int]) -> Any:
        service.sizes = sizes
        async with http.post(url + path, json=asked) as response:
            text = await response.text()
            assert response.status == 200, text
        return folded(kind, text) if stream else plain(json.loads(text))

    alone = await answer((1,))
    service.events_sent.clear()
    for sizes in ways(SCRIPTS[script]):
        assert await answer(sizes) == alone, sizes
    assert max(service.events_sent) > 2, "several tokens were in one event"
