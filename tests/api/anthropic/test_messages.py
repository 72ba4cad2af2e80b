"""`/v1/messages` with the official client, unchanged."""

from dataclasses import replace

import anthropic
import pytest
from pydantic import BaseModel

from tests.api.conftest import CharTokenizer
from tests.api.scripted import CALL, SCHEMA, ScriptedService

MODEL = "tiny/model"
HELLO = [{"role": "user", "content": "hi"}]
TOOL = {"name": "weather", "description": "Of a city.", "input_schema": SCHEMA}
ASKED = {"model": MODEL, "max_tokens": 200, "messages": HELLO}


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture
async def client(service, serve):
    url = await serve(service)
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_text(client, service):
    answer = await client.messages.create(
        **ASKED, system="be kind", metadata={"user_id": "7"}, extra_body={"temperature": 0.5}
    )
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    (block,) = answer.content
    assert (block.type, block.text) == ("text", "Hello there.")
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    assert service.prompts == ["<system>be kind<user>hi<assistant>"]
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (len(service.prompts[0]), 12)
    sampling = service.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature) == (200, 0.5)
    assert answer.id == f"msg_{answer._request_id}"


async def test_why_an_answer_ends(client, service):
    answer = await client.messages.create(**{**ASKED, "max_tokens": 5})
    assert (answer.stop_reason, answer.content[0].text) == ("max_tokens", "Hello")
    service.stop_reason = "END"
    answer = await client.messages.create(**ASKED, stop_sequences=["END", "."])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "END")
    assert service.requests[-1].sampling.stop == ("END", ".")


async def test_more_tokens_than_the_model_has_left_are_cut_to_those(client, service):
    service.says("x" * 3000)
    answer = await client.messages.create(**{**ASKED, "max_tokens": 8000})
    assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.input_tokens + answer.usage.output_tokens == 2000


async def test_an_answer_goes_back_as_it_came(client, service):
    service.says(f"<think>look it up</think>\n\nI will look.\n{CALL}")
    first = await client.messages.create(**ASKED, tools=[TOOL])
    thought, text, use = first.content
    assert (thought.type, thought.thinking) == ("thinking", "look it up")
    assert text.text == "I will look."
    assert (use.type, use.name, use.input) == ("tool_use", "weather", {"city": "Oslo"})
    assert first.stop_reason == "tool_use"
    service.says("Rain.")
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "rain", "is_error": False}
    messages = [*HELLO, first.to_param(), {"role": "user", "content": [result]}]
    again = await client.messages.create(**{**ASKED, "messages": messages}, tools=[TOOL])
    assert again.content[0].text == "Rain."
    assert service.prompts[1] == (
        "[weather]<user>hi<assistant><think>look it up</think>I will look."
        '<tool_call>weather {"city": "Oslo"}</tool_call><tool>rain<assistant>'
    )


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        (
            [
                {"role": "user", "content": "a"},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}},
                        {"type": "text", "text": "c"},
                    ],
                },
            ],
            "<user>a\nb\nc",
        ),
        (
            [
                {"role": "user", "content": "a"},
                {"role": "system", "content": "b"},
                {"role": "user", "content": "c"},
            ],
            "<user>a<system>b<user>c",
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "and?"},
                        {
                            "type": "tool_result",
                            "tool_use_id": "1",
                            "content": [{"type": "text", "text": "x"}],
                        },
                        {"type": "tool_result", "tool_use_id": "2"},
                    ],
                }
            ],
            "<tool>x<tool><user>and?",
        ),
    ],
)
async def test_messages(client, service, messages, prompt):
    await client.messages.create(**{**ASKED, "messages": messages})
    assert service.prompts == [f"{prompt}<assistant>"]


async def events_of(client, **request):
    stream = await client.messages.create(**{**ASKED, **request}, stream=True)
    return [event async for event in stream]


async def test_every_event_of_a_streamed_answer(client, service):
    service.says(f"<think>ah</think>Hi.{CALL}")
    events = await events_of(client, tools=[TOOL])
    kinds = [(e.type, getattr(e, "index", None)) for e in events]
    assert list(dict.fromkeys(kinds)) == [
        ("message_start", None),
        *((f"content_block_{what}", 0) for what in ("start", "delta", "stop")),
        *((f"content_block_{what}", 1) for what in ("start", "delta", "stop")),
        *((f"content_block_{what}", 2) for what in ("start", "delta", "stop")),
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert [e.content_block.type for e in events if e.type == "content_block_start"] == [
        "thinking",
        "text",
        "tool_use",
    ]
    deltas = [e.delta for e in events if e.type == "content_block_delta"]
    assert "".join(d.thinking for d in deltas if d.type == "thinking_delta") == "ah"
    assert "".join(d.text for d in deltas if d.type == "text_delta") == "Hi."
    pieces = [d.partial_json for d in deltas if d.type == "input_json_delta"]
    assert len(pieces) > 1 and "".join(pieces) == '{"city": "Oslo"}'
    assert events[0].message.content == [] and events[0].message.usage.input_tokens > 0
    assert events[-2].delta.stop_reason == "tool_use"
    assert events[-2].usage.output_tokens == len(service.script)
    assert events[-1].to_dict()["molink"].keys() >= {"request_id", "decode_ms"}


async def test_the_clients_own_stream_puts_the_same_answer_together(client, service):
    service.says(f"<think>ah</think>Look.{CALL}")
    async with client.messages.stream(**ASKED, tools=[TOOL]) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        streamed = await stream.get_final_message()
    whole = await client.messages.create(**ASKED, tools=[TOOL])
    assert text == "Look."
    assert [block.type for block in streamed.content] == ["thinking", "text", "tool_use"]
    assert streamed.content[2].input == whole.content[2].input == {"city": "Oslo"}
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert streamed.stop_reason == whole.stop_reason


async def test_arguments_that_are_no_json_are_not_lost(client, service):
    service.says('<tool_call>{"name": "weather", "arguments": {"city": Oslo}}</tool_call>')
    answer = await client.messages.create(**ASKED, tools=[TOOL])
    said = "".join(str(block.to_dict()) for block in answer.content)
    assert "Oslo" in said


async def test_how_many_tokens_a_message_would_take(client, service):
    counted = await client.messages.count_tokens(
        model=MODEL, messages=HELLO, system="be kind", tools=[TOOL]
    )
    answer = await client.messages.create(**ASKED, system="be kind", tools=[TOOL])
    assert counted.input_tokens == answer.usage.input_tokens
    assert len(service.requests) == 1


async def test_a_failure_in_the_middle_of_a_stream(client, service):
    service.failure, service.events_before_failure = RuntimeError("secret"), 3
    stream = await client.messages.create(**ASKED, stream=True)
    text = ""
    with pytest.raises(anthropic.APIStatusError, match="The server failed") as caught:
        async for event in stream:
            text += event.delta.text if event.type == "content_block_delta" else ""
    assert text == "Hel"
    assert caught.value.body["error"]["type"] == "api_error"


async def test_a_failure_before_the_first_token_has_a_status(client, service):
    service.unready_reason = "The ring is loading: try again soon."
    for stream in (False, True):
        with pytest.raises(anthropic.InternalServerError, match="loading") as caught:
            await client.messages.create(**ASKED, stream=stream)
        assert caught.value.status_code == 503
        assert caught.value.body["error"]["type"] == "overloaded_error"


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "The "}]}, "white space"),
        (
            {
                "messages": [*HELLO, {"role": "assistant", "content": "The"}],
                "max_tokens": 2000,
                "thinking": {"type": "enabled", "budget_tokens": 1024},
            },
            "thinking",
        ),
        (
            {
                "messages": [*HELLO, {"role": "assistant", "content": "The"}],
                "tools": [TOOL],
                "tool_choice": {"type": "any"},
            },
            "made to call",
        ),
        (
            {
                "messages": [
                    *HELLO,
                    {
                        "role": "assistant",
                        "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}],
                    },
                ]
            },
            "results",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {"type": "image", "source": {"type": "url", "url": "https://x"}}
                        ],
                    }
                ]
            },
            "'image'",
        ),
        (
            {
                "tools": [TOOL, {"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            "'web_search', which is not among",
        ),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"extra_body": {"n_predict": 5}}, "n_predict"),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "x"}}}},
            "output_config.format",
        ),
        ({"extra_body": {"temperature": -1}}, "temperature"),
    ],
)
async def test_mistakes_are_named(client, service, fields, name):
    with pytest.raises(anthropic.BadRequestError) as caught:
        await client.messages.create(**{**ASKED, **fields})
    error = caught.value.body["error"]
    assert error["type"] == "invalid_request_error"
    assert name in error["message"] and ": " in error["message"]
    assert not service.requests


async def test_another_model_is_not_here(client):
    with pytest.raises(anthropic.NotFoundError, match="not served here"):
        await client.messages.create(**{**ASKED, "model": "claude-9"})


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_goes_on_with_what_is_given(client, service, stream):
    service.says(" capital is Oslo.")
    begin = {"role": "assistant", "content": [{"type": "text", "text": "The"}]}
    asked = ASKED | {"messages": [*HELLO, begin]}
    if stream:
        async with client.messages.stream(**asked) as events:
            answer = await events.get_final_message()
    else:
        answer = await client.messages.create(**asked)
    assert answer.content[0].text == " capital is Oslo."
    assert service.prompts == ["<user>hi<assistant>The"]


async def test_a_budget_of_thoughts_is_named_as_ignored(client, service):
    thinking = {"type": "enabled", "budget_tokens": 1024}
    answer = await client.messages.with_raw_response.create(
        **{**ASKED, "max_tokens": 1900}, thinking=thinking
    )
    assert answer.headers["X-MoLink-Ignored"] == "thinking.budget_tokens"
    assert len(service.requests) == 1


async def test_thoughts_that_another_server_hides_are_left_out(client, service):
    hidden = {"type": "redacted_thinking", "data": "c2VjcmV0"}
    said = {"role": "assistant", "content": [hidden, {"type": "text", "text": "I see."}]}
    await client.messages.create(**{**ASKED, "messages": [*HELLO, said, *HELLO]})
    assert service.prompts == ["<user>hi<assistant>I see.<user>hi<assistant>"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/chat/completions"])
async def test_variables_of_the_template_are_taken_everywhere(service, serve, http, path):
    template = "{{ mood }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    service.card = replace(service.card, tokenizer=CharTokenizer(chat_template=template))
    asked = {"max_tokens": 5, "messages": HELLO}
    body = {"input": "hi"} if path.endswith("responses") else asked
    url = await serve(service)
    kwargs = {"chat_template_kwargs": {"mood": "glad"}}
    async with http.post(url + path, json=body | kwargs) as response:
        assert response.status == 200, await response.text()
    assert service.prompts == ["glad<user>hi"]


async def test_an_empty_beginning_is_none(client, service):
    asked = ASKED | {"messages": [*HELLO, {"role": "assistant", "content": ""}]}
    assert (await client.messages.create(**asked)).content[0].text == "Hello there."
    assert service.prompts == ["<user>hi<assistant>"]


class Weather(BaseModel):
    city: str


async def test_an_answer_in_the_shape_of_a_schema(client, service):
    service.says('{"city": "Oslo"}')
    answer = await client.messages.parse(**ASKED, output_format=Weather)
    assert answer.parsed_output == Weather(city="Oslo")
    assert "city" in service.requests[0].sampling.grammar
