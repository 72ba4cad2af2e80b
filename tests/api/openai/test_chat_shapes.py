"""`/v1/chat/completions` in the shapes of other APIs, and of its own former versions."""

import json

import openai
import pytest

from tests.api.scripted import CALL, SCHEMA, ScriptedService

MODEL = "tiny/model"
HELLO = [{"role": "user", "content": "hi"}]
WEATHER = {"name": "weather", "description": "Of a city.", "parameters": SCHEMA}
TOOLS = [{"type": "function", "function": {**WEATHER, "name": one}} for one in ("weather", "time")]
PATH = "/v1/chat/completions"


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture
async def post(service, serve, http):
    url = await serve(service)

    async def posted(**body):
        async with http.post(f"{url}{PATH}", json=body) as response:
            return response.status, dict(response.headers), await response.json()

    return posted


async def test_a_body_of_responses_is_told_where_it_belongs(service, post):
    status, _, answer = await post(instructions="Be brief.", input=HELLO, max_output_tokens=8)
    assert status == 400 and "/v1/responses" in answer["error"]["message"]
    assert "'messages'" in answer["error"]["message"] and not service.requests


async def test_flat_tools(service, post):
    service.says(CALL)
    flat = {"type": "function", **WEATHER}
    status, headers, answer = await post(
        messages=HELLO, tools=[flat], tool_choice={"type": "function", "name": "weather"}
    )
    assert status == 200, answer
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert service.prompts[0].startswith("[weather]") and "X-MoLink-Ignored" not in headers


async def test_hosted_tools_and_hints_are_named(service, post):
    status, headers, answer = await post(
        messages=HELLO,
        tools=[*TOOLS, {"type": "web_search"}],
        verbosity="low",
        web_search_options={"user_location": None},
        reasoning={"effort": "high"},
        thinking={"type": "enabled"},
    )
    assert status == 200, answer
    named = headers["X-MoLink-Ignored"].split(", ")
    assert sorted(named) == [
        "reasoning",
        "thinking",
        "tools.web_search",
        "verbosity",
        "web_search_options",
    ]
    assert service.prompts[0].startswith("[weather,time]")


@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_allowed_tools(service, post, mode):
    service.says(CALL)
    named = [{"type": "function", "function": {"name": "weather"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": named}}
    status, _, answer = await post(messages=HELLO, tools=TOOLS, tool_choice=choice)
    assert status == 200, answer
    assert service.prompts[0].startswith("[weather]<user>")
    assert bool(service.requests[0].sampling.grammar) == (mode == "required")


async def test_a_refusal_in_the_history_is_text(service, post):
    said = [
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "Never."}]},
        {"role": "assistant", "content": None, "refusal": "No."},
    ]
    status, _, answer = await post(messages=[*HELLO, *said, *HELLO])
    assert status == 200, answer
    assert service.prompts == ["<user>hi<assistant>Never.<assistant>No.<user>hi<assistant>"]


async def test_results_find_calls_without_ids(service, post):
    template = service.card.tokenizer.chat_template
    service.card.tokenizer.chat_template = template.replace(
        "<{{ m.role }}>", "<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>"
    )
    calls = [
        {"type": None, "function": {"name": one, "arguments": None}} for one in ("time", "weather")
    ]
    results = [{"role": "tool", "content": "noon"}, {"role": "tool", "content": "rain"}]
    said = [{"role": "assistant", "content": None, "tool_calls": calls}, *results]
    status, _, answer = await post(messages=[*HELLO, *said, *HELLO])
    assert status == 200, answer
    assert "<tool time>noon<tool weather>rain<user>hi" in service.prompts[0]


async def test_a_call_with_a_text_in_the_history(service, post):
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}
    said = [{"role": "assistant", "tool_calls": [call]}]
    status, _, answer = await post(messages=[*HELLO, *said, *HELLO])
    assert status == 200, answer
    assert '<tool_call>patch {"input": "*** Begin"}</tool_call>' in service.prompts[0]


@pytest.mark.parametrize("choice", [5, [], {"type": []}, {"type": "function", "function": 5}])
async def test_a_choice_that_is_none(service, post, choice):
    status, _, answer = await post(messages=HELLO, tools=TOOLS, tool_choice=choice)
    assert (status, answer["error"]["param"]) == (400, "tool_choice") and not service.requests


async def test_the_same_id_twice_and_a_result_without_a_call(service, post):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    said = [{"role": "assistant", "tool_calls": [call, call]}]
    said += [{"role": "tool", "tool_call_id": one, "content": one} for one in ("c", "c", "nobody")]
    status, _, answer = await post(messages=[*HELLO, *said])
    assert status == 200, answer
    assert service.prompts[0].endswith("<tool>c<tool>c<tool>nobody<assistant>")


@pytest.mark.parametrize(
    "choice", [{}, {"function_call": "auto"}, {"function_call": {"name": "weather"}}]
)
async def test_former_functions_are_answered_in_their_words(service, post, choice):
    service.says(CALL)
    status, _, answer = await post(messages=HELLO, functions=[WEATHER], **choice)
    assert status == 200, answer
    (got,) = answer["choices"]
    assert got["finish_reason"] == "function_call" and "tool_calls" not in got["message"]
    assert got["message"]["function_call"]["name"] == "weather"
    assert json.loads(got["message"]["function_call"]["arguments"]) == {"city": "Oslo"}
    result = {"role": "function", "name": "weather", "content": "rain"}
    service.says("Rain.")
    await post(messages=[*HELLO, got["message"], result], functions=[WEATHER])
    assert service.prompts[1] == (
        '[weather]<user>hi<assistant><tool_call>weather {"city": "Oslo"}</tool_call>'
        "<tool>rain<assistant>"
    )


async def test_former_functions_are_streamed_in_their_words(service, serve):
    service.says(CALL)
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=HELLO, functions=[WEATHER], stream=True
        )
        choices = [chunk.choices[0] async for chunk in stream]
    pieces = [one.delta.function_call for one in choices if one.delta.function_call]
    assert pieces[0].name == "weather" and choices[-1].finish_reason == "function_call"
    assert json.loads("".join(one.arguments for one in pieces)) == {"city": "Oslo"}
