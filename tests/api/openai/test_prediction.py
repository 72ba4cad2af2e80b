"""OpenAI's `prediction`: what goes to the ring with a request, and what the usage tells of it."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from molink.api.openai.chat_schemas import PREDICTION_CHARS_MAX
from molink.serving.service import GenerationRequest
from molink.serving.token_events import TokenEvent
from molink_scheduler.request import PREDICTION_TOKENS_MAX
from tests.api.scripted import ScriptedService
from tests.api.test_rounds import together

CHAT = "/v1/chat/completions"
HELLO = {"model": "tiny/model", "messages": [{"role": "user", "content": "hi"}]}
PIECES = [{"type": "text", "text": "Hello "}, {"type": "text", "text": "there"}]


@dataclass
class DraftingService(ScriptedService):
    """Verifies four drafts a round, of which two are right."""

    drafts: int = 4

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[TokenEvent, None]:
        waiting: list[TokenEvent] = []
        async for event in super().generate(request):
            waiting.append(event)
            if len(waiting) == (3 if self.drafts else 1) or event.finish_reason is not None:
                yield replace(together(waiting), drafts=self.drafts)
                waiting = []


async def asked(http: Any, url: str, **more: Any) -> tuple[int, dict[str, Any]]:
    async with http.post(url + CHAT, json=HELLO | more) as response:
        return response.status, await response.json()


@pytest.mark.parametrize("content", ["Hello there", PIECES])
async def test_its_tokens_go_with_every_choice(service, serve, http, content):
    prediction = {"type": "content", "content": content}
    status, _ = await asked(http, await serve(service), prediction=prediction, n=2)
    assert status == 200
    assert [one.prediction for one in service.requests] == [tuple(b"Hello there")] * 2


async def test_none_goes_where_none_is_given(service, serve, http):
    url = await serve(service)
    for more in ({}, {"prediction": None}, {"prediction": {"type": "content", "content": ""}}):
        status, body = await asked(http, url, **more)
        has_details = "completion_tokens_details" in body["usage"]
        assert (status, has_details) == (200, bool(more.get("prediction")))
    assert not any(one.prediction for one in service.requests)


@pytest.mark.parametrize(
    ("prediction", "words"),
    [
        ("Hello", "'prediction' must be an object"),
        (["Hello"], "'prediction' must be an object"),
        ({"type": "content"}, "'prediction.content' is missing"),
        ({"type": "content", "content": None}, "'prediction.content' must be a list"),
        ({"type": "content", "content": 5}, "'prediction.content' must be a list"),
        ({"type": "content", "content": [5]}, "'prediction.content.0' must be an object"),
        ({"type": "content", "content": [{"type": "text"}]}, "'prediction.content.0.text'"),
        ({"type": "content", "content": [{"type": "image_url", "text": ""}]}, "nothing else is"),
        ({"type": "file", "content": "x"}, "nothing else is served"),
        ({"type": "content", "content": "x" * 2**20}, f"at most {PREDICTION_CHARS_MAX} char"),
        (
            {"type": "content", "content": "x" * (PREDICTION_TOKENS_MAX + 1)},
            f"{PREDICTION_TOKENS_MAX + 1} tokens long: send at most {PREDICTION_TOKENS_MAX}",
        ),
    ],
)
async def test_what_is_none_is_refused_with_a_sentence(service, serve, http, prediction, words):
    status, body = await asked(http, await serve(service), prediction=prediction)
    assert status == 400 and words in body["error"]["message"], body
    assert not service.requests


@pytest.mark.parametrize(
    ("drafts", "told"),
    [
        (0, {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}),
        (4, {"accepted_prediction_tokens": 8, "rejected_prediction_tokens": 8}),
    ],
)
async def test_usage_tells_what_became_of_drafts(serve, http, drafts, told):
    """Twelve tokens in four rounds, each with two drafts that were right and two that were not."""
    url = await serve(DraftingService(drafts=drafts))
    prediction = {"type": "content", "content": "Hello"}
    _, body = await asked(http, url, prediction=prediction)
    assert body["usage"]["completion_tokens_details"] == told
    assert body["usage"]["completion_tokens"] == 12
    _, two = await asked(http, url, prediction=prediction, n=2)
    doubled = {name: 2 * count for name, count in told.items()}
    assert two["usage"]["completion_tokens_details"] == doubled


async def test_a_stream_tells_it_at_its_end(serve, http):
    import openai

    url = await serve(DraftingService())
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="tiny/model",
            messages=HELLO["messages"],
            prediction={"type": "content", "content": "Hello"},
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    details = chunks[-1].usage.completion_tokens_details
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (8, 8)
    assert len(chunks) == 5, "four rounds, and the usage"
