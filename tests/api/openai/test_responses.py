"""`/v1/responses` with the official client, unchanged."""

import json

import openai
import pytest
from pydantic import BaseModel

from tests.api.scripted import CALL, SCHEMA, ScriptedService

MODEL = "tiny/model"
TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": True}


@pytest.fixture
def service():
    return ScriptedService()


async def test_text(client, service):
    answer = await client.responses.create(
        model=MODEL,
        input="hi",
        instructions="be kind",
        store=True,
        metadata={"run": "7"},
        temperature=0.5,
    )
    assert (answer.object, answer.status, answer.model) == ("response", "completed", MODEL)
    assert answer.output_text == "Hello there."
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    assert service.prompts == ["<system>be kind<user>hi<assistant>"]
    assert service.requests[0].sampling.temperature == 0.5
    used = answer.usage
    prompt_tokens = len(service.prompts[0])
    assert (used.input_tokens, used.output_tokens) == (prompt_tokens, 12)
    assert used.total_tokens == prompt_tokens + 12
    assert used.output_tokens_details.reasoning_tokens == 0
    assert (answer.instructions, answer.temperature) == ("be kind", 0.5)
    assert answer.metadata == {"run": "7"}, "given back as it came"
    assert answer.to_dict()["store"] is False, "nothing is stored, whatever was wished for"
    assert answer.error is None and answer.incomplete_details is None


async def test_an_answer_that_is_cut_off_is_incomplete(client):
    answer = await client.responses.create(model=MODEL, input="hi", max_output_tokens=5)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.output_text == "Hello"
    assert answer.output[0].status == "incomplete"


async def test_an_answer_goes_back_as_it_came(client, service):
    service.says(f"<think>look it up</think>\n\nI will look.\n{CALL}")
    first = await client.responses.create(model=MODEL, input="weather?", tools=[TOOL])
    thought, message, call = first.output
    assert (thought.type, thought.content[0].text) == ("reasoning", "look it up")
    assert message.content[0].text == "I will look."
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "weather",
        {"city": "Oslo"},
    )
    assert first.usage.output_tokens_details.reasoning_tokens > 0
    service.says("Rain.")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    again = await client.responses.create(
        model=MODEL,
        input=[{"role": "user", "content": "weather?"}, *first.output, result],
        tools=[TOOL],
    )
    assert again.output_text == "Rain."
    assert service.prompts[1] == (
        "[weather]<user>weather?<assistant><think>look it up</think>I will look."
        '<tool_call>weather {"city": "Oslo"}</tool_call><tool>rain<assistant>'
    )


@pytest.mark.parametrize(
    ("items", "prompt"),
    [
        (
            [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}],
            "<system>a<user>b",
        ),
        (
            [
                {
                    "type": "message",
                    "role": "user",
                    "content": [
                        {"type": "input_text", "text": "a"},
                        {"type": "input_text", "text": "b"},
                    ],
                }
            ],
            "<user>a\nb",
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "c"}]},
            ],
            "<user>a<assistant>b<assistant>c",
        ),
        (
            [
                {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
                {"type": "function_call", "call_id": "2", "name": "g", "arguments": "broken"},
                {
                    "type": "function_call_output",
                    "call_id": "1",
                    "output": [{"type": "input_text", "text": "x"}],
                },
            ],
            '<assistant><tool_call>f {}</tool_call><tool_call>g "broken"</tool_call><tool>x',
        ),
        (
            [
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None},
                {"role": "assistant", "content": "a"},
            ],
            "<assistant>a",
        ),
    ],
)
async def test_items(client, service, items, prompt):
    await client.responses.create(model=MODEL, input=items)
    assert service.prompts == [f"{prompt}<assistant>"]


async def events_of(client, **request):
    stream = await client.responses.create(model=MODEL, stream=True, **request)
    events = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events


async def test_every_event_of_a_streamed_text(client, service):
    service.says("Hi.")
    events = await events_of(client, input="hi")
    assert [event.type for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * 3,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in events[4:7]) == events[7].text == "Hi."
    assert events[0].response.status == "in_progress" and events[0].response.output == []
    assert events[2].item.status == "in_progress" and events[2].item.content == []
    assert len({event.item_id for event in events[3:9]}) == 1
    assert events[-1].response.output_text == "Hi."
    assert events[-1].to_dict()["molink"].keys() >= {"request_id", "decode_ms"}
    assert events[-1].response.usage.output_tokens == 3


async def test_every_event_of_a_streamed_call(client, service):
    service.says(f"<think>ah</think>{CALL}")
    events = await events_of(client, input="hi", tools=[TOOL])
    kinds = list(dict.fromkeys((getattr(e, "output_index", None), e.type) for e in events))
    assert kinds == [
        (None, "response.created"),
        (None, "response.in_progress"),
        (0, "response.output_item.added"),
        (0, "response.content_part.added"),
        (0, "response.reasoning_text.delta"),
        (0, "response.reasoning_text.done"),
        (0, "response.content_part.done"),
        (0, "response.output_item.done"),
        (1, "response.output_item.added"),
        (1, "response.function_call_arguments.delta"),
        (1, "response.function_call_arguments.done"),
        (1, "response.output_item.done"),
        (None, "response.completed"),
    ]
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert len(deltas) > 1 and "".join(deltas) == done.arguments == '{"city": "Oslo"}'
    call = events[-1].response.output[1]
    assert (call.name, call.arguments, call.id) == ("weather", done.arguments, done.item_id)


async def test_the_clients_own_stream_puts_the_same_answer_together(client, service):
    service.says(f"<think>ah</think>Look.{CALL}")
    async with client.responses.stream(model=MODEL, input="hi", tools=[TOOL]) as stream:
        async for _ in stream:
            pass
        streamed = await stream.get_final_response()
    whole = await client.responses.create(model=MODEL, input="hi", tools=[TOOL])
    assert [item.type for item in streamed.output] == ["reasoning", "message", "function_call"]
    assert streamed.output_text == whole.output_text == "Look."
    assert streamed.output[2].parsed_arguments == {"city": "Oslo"}
    assert streamed.usage == whole.usage


async def test_a_streamed_answer_that_is_cut_off(client):
    events = await events_of(client, input="hi", max_output_tokens=2)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.incomplete_details.reason == "max_output_tokens"


async def test_no_call_without_tools_and_none_when_they_may_not_be_called(client, service):
    service.says(CALL)
    for tools in ({}, {"tools": [TOOL], "tool_choice": "none"}):
        answer = await client.responses.create(model=MODEL, input="hi", **tools)
        assert answer.output_text == CALL


async def test_a_failure_in_the_middle_of_a_stream(client, service):
    service.failure, service.events_before_failure = RuntimeError("secret"), 3
    events = await events_of(client, input="hi")
    assert [event.type for event in events[-2:]] == ["response.output_item.done", "response.failed"]
    failed = events[-1].response
    assert (failed.status, failed.error.code) == ("failed", "server_error")
    assert failed.error.message.startswith("The server failed")
    assert failed.output_text == "Hel", "what had come is kept"


async def test_a_failure_before_the_first_token_has_a_status(client, service):
    service.unready_reason = "The ring is loading: try again soon."
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError, match="loading") as caught:
            await client.responses.create(model=MODEL, input="hi", stream=stream)
        assert caught.value.status_code == 503


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "middle"}, "truncation"),
        ({"input": []}, "input"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input"),
        (
            {
                "input": [
                    {"role": "user", "content": [{"type": "input_image", "image_url": "https://x"}]}
                ]
            },
            "input.0.content",
        ),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice",
        ),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "x"}}}}, "text.format"),
        ({"top_logprobs": 21}, "top_logprobs"),
    ],
)
async def test_mistakes_are_named(client, service, fields, param):
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(**{"model": MODEL, "input": "hi", **fields})
    assert caught.value.param == param
    assert ": " in caught.value.message
    assert not service.requests


async def test_what_was_answered_cannot_be_looked_up(client):
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="Answers are not kept"):
            await call("resp_1")
    with pytest.raises(openai.NotFoundError, match="send the whole conversation"):
        await client.responses.create(model=MODEL, input="hi", previous_response_id="resp_1")


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}


async def test_log_probabilities_are_those_of_the_text(client, service):
    service.says(f"<think>hm</think>\n\nYes.\n{CALL}")
    answer = await client.responses.create(model=MODEL, input="hi", tools=[TOOL], **LOGPROBS)
    _, message, _ = answer.output
    logprobs = message.content[0].logprobs
    assert (answer.top_logprobs, service.requests[0].sampling.logprobs) == (1, 1)
    assert [one.token for one in logprobs] == list("Yes.")
    assert (logprobs[0].logprob, logprobs[0].bytes) == (-0.5, [ord("Y")])
    assert [one.logprob for one in logprobs[0].top_logprobs] == [-0.5]
    async with client.responses.stream(model=MODEL, input="hi", tools=[TOOL], **LOGPROBS) as got:
        events = [event async for event in got]
    (done,) = [one for one in events if one.type == "response.output_text.done"]
    deltas = [one for one in events if one.type == "response.output_text.delta"]
    assert [part.token for one in deltas for part in one.logprobs] == list("Yes.")
    assert [one.token for one in done.logprobs] == list("Yes.")
    assert events[-1].response.output[1].content[0].logprobs == logprobs


@pytest.mark.parametrize(
    ("fields", "asked"),
    [({}, None), ({"include": LOGPROBS["include"]}, 0), ({"top_logprobs": 3}, 3)],
)
async def test_log_probabilities_come_where_they_are_asked_for(client, service, fields, asked):
    answer = await client.responses.create(model=MODEL, input="hi", **fields)
    logprobs = answer.output[0].content[0].logprobs
    assert "".join(one.token for one in logprobs) == ("" if asked is None else "Hello there.")
    assert service.requests[0].sampling.logprobs == asked


async def test_a_broken_call_becomes_text_with_all_its_log_probabilities(client, service):
    service.says('<tool_call>{"name": "weather", "arguments": {"city"')
    answer = await client.responses.create(model=MODEL, input="hi", tools=[TOOL], **LOGPROBS)
    (part,) = answer.output[0].content
    assert "".join(one.token for one in part.logprobs) == part.text == service.script


class Weather(BaseModel):
    city: str


async def test_an_answer_in_the_shape_of_a_schema(client, service):
    service.says('{"city": "Oslo"}')
    answer = await client.responses.parse(model=MODEL, input="hi", text_format=Weather)
    assert answer.output_parsed == Weather(city="Oslo")
    assert "city" in service.requests[0].sampling.grammar
