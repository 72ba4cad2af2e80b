"""An answer says which ring served it, and what each part took."""

import json

import anthropic
import openai
import pytest

from molink.api.headers.serving import serving_headers
from molink.report.requests import StageLayers
from molink.serving.timeline import RequestTimeline
from tests.api.scripted import ScriptedService

STAGES = (StageLayers("anna", (0, 4)), StageLayers("bén, the\x1b[2J 2nd", (4, 8)))
TIMES = ("X-MoLink-Queue-Ms", "X-MoLink-Prefill-Ms", "X-MoLink-Decode-Ms")
ASKS = [
    ("/generate", {"prompt": "hi"}),
    ("/v1/completions", {"prompt": ["a", "b"], "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
]


@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_headers_of_a_whole_answer(service, serve, http, path, body):
    service.stages = STAGES
    async with http.post(f"{await serve(service)}{path}", json=body) as response:
        assert response.status == 200
        assert response.headers["X-MoLink-Ring"] == "0"
        assert response.headers["X-MoLink-Nodes"] == "anna, b?n? the?[2J 2nd"
        assert all(float(response.headers[name]) >= 0 for name in TIMES)


@pytest.mark.parametrize("usage", [True, False])
@pytest.mark.parametrize(("path", "body"), ASKS)
async def test_a_stream_has_the_rest_in_its_last_event(service, serve, http, path, body, usage):
    service.stages = STAGES
    body = body | {"stream": True, "max_tokens": 2}
    if usage and path != "/generate":
        body["stream_options"] = {"include_usage": True}
    async with http.post(f"{await serve(service)}{path}", json=body) as response:
        assert response.headers["X-MoLink-Ring"] == "0"
        assert all(float(response.headers[name]) >= 0 for name in TIMES[:2])
        assert TIMES[2] not in response.headers
        lines = (await response.text()).split("\n\n")
        request_id = response.headers["X-Request-Id"]
    *events, last = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert not any("molink" in event for event in events)
    told = last["molink"]
    assert (told["request_id"], told["rings"]) == (request_id, [0])
    assert told["nodes"] == [stage.node for stage in STAGES]
    assert all(told[name] >= 0 for name in ("queue_ms", "prefill_ms", "decode_ms"))
    stages = [{"node": one.node, "layers": list(one.layers)} for one in STAGES]
    part = {"ring": 0, "stages": stages, "tokens": 2, "moved_because": ""}
    assert told["attempts"] == ([] if "n" in body else [part]), "for one sequence"


async def test_the_official_client_reads_it(service, serve):
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = await client.completions.create(model="tiny/model", prompt="a", stream=True)
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].molink["rings"] == [0]


async def test_streams_of_typed_events_have_it_in_their_last_one(serve):
    service = ScriptedService(stages=STAGES)
    url = await serve(service)
    hello = [{"role": "user", "content": "hi"}]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        stream = await client.responses.create(model="tiny/model", input="hi", stream=True)
        responses = [event async for event in stream]
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none") as client:
        asked = {"model": "tiny/model", "max_tokens": 20, "messages": hello}
        messages = [event async for event in await client.messages.create(**asked, stream=True)]
    for events, kind in ((responses, "response.completed"), (messages, "message_stop")):
        assert events[-1].type == kind
        assert events[-1].molink["nodes"] == [stage.node for stage in STAGES]
        assert events[-1].molink["attempts"][0]["tokens"] == len(service.script)
        assert not any(hasattr(event, "molink") for event in events[:-1])


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nothing"])
async def test_other_answers_have_none(service, serve, http, path):
    async with http.get(f"{await serve(service)}{path}") as response:
        assert not [name for name in response.headers if name.startswith("X-MoLink")]


def test_an_answer_that_was_chosen_for_an_audit_says_so():
    whole, other = RequestTimeline("m", 1, 1), RequestTimeline("m", 1, 1)
    assert "X-MoLink-Audited" not in serving_headers([whole, other])
    other.audited = "pending"
    assert serving_headers([whole, other])["X-MoLink-Audited"] == "pending"
