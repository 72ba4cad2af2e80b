"""`/v1/responses` as Codex asks it: namespaces, tools that take a text, tools that OpenAI runs."""

import json

import openai
import pytest

from molink.api.headers.ignored_fields import IGNORED_HEADER
from tests.api.scripted import SCHEMA, ScriptedService

MODEL = "tiny/model"
PLANT = {"type": "function", "name": "plant", "parameters": SCHEMA}
GARDEN = {"type": "namespace", "name": "mcp__garden", "description": "d", "tools": [PLANT]}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Patch",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
SEARCH = {"type": "web_search", "external_web_access": True}
PATCH_CALL = (
    '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** Begin\\n\\"ü\\""}}'
    "\n</tool_call>"
)
PLANT_CALL = (
    '<tool_call>\n{"name": "mcp__garden__plant", "arguments": {"city": "Oslo"}}\n</tool_call>'
)


@pytest.fixture
def service():
    return ScriptedService()


async def test_the_first_request_of_codex(client, service):
    raw = await client.responses.with_raw_response.create(
        model=MODEL,
        input=[{"role": "developer", "content": "Be careful."}, {"role": "user", "content": "hi"}],
        tools=[PLANT, PATCH, SEARCH, GARDEN, {"type": "local_shell"}],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        truncation="auto",
        text={"verbosity": "low"},
    )
    assert service.prompts == [
        "[plant,apply_patch,mcp__garden__plant]<system>Be careful.<user>hi<assistant>"
    ]
    ignored = set(raw.headers[IGNORED_HEADER].split(", "))
    assert ignored == {
        "text.verbosity",
        "tools.web_search",
        "tools.local_shell",
        "tools.description",
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_within_a_namespace_goes_there_and_back(client, service, stream):
    service.says(PLANT_CALL)
    asked = {"model": MODEL, "tools": [PLANT, GARDEN]}
    if stream:
        async with client.responses.stream(input="hi", **asked) as events:
            answer = await events.get_final_response()
    else:
        answer = await client.responses.create(input="hi", **asked)
    (call,) = answer.to_dict()["output"]
    assert (call["type"], call["name"], call["namespace"]) == (
        "function_call",
        "plant",
        "mcp__garden",
    )
    assert json.loads(call["arguments"]) == {"city": "Oslo"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}
    await client.responses.create(input=[{"role": "user", "content": "hi"}, call, result], **asked)
    assert '<tool_call>mcp__garden__plant {"city": "Oslo"}' in service.prompts[-1]


async def test_a_choice_within_a_namespace(client, service):
    service.says(PLANT_CALL)
    choice = {"type": "function", "name": "plant", "namespace": "mcp__garden"}
    await client.responses.create(model=MODEL, input="a", tools=[GARDEN], tool_choice=choice)
    assert "mcp__garden__plant" in service.requests[0].sampling.grammar
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [choice]}
    await client.responses.create(
        model=MODEL, input="a", tools=[PLANT, GARDEN], tool_choice=allowed
    )
    assert service.prompts[1].startswith("[mcp__garden__plant]")


async def test_a_tool_that_takes_a_text_goes_there_and_back(client, service):
    service.says(PATCH_CALL)
    answer = await client.responses.create(model=MODEL, input="hi", tools=[PATCH])
    (call,) = answer.output
    assert (call.type, call.name, call.input) == (
        "custom_tool_call",
        "apply_patch",
        '*** Begin\n"ü"',
    )
    result = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    service.says("Good.")
    await client.responses.create(
        model=MODEL, input=[{"role": "user", "content": "hi"}, call, result], tools=[PATCH]
    )
    assert '<tool_call>apply_patch {"input": "*** Begin' in service.prompts[1]
    assert service.prompts[1].endswith("</tool_call><tool>done<assistant>")


async def test_every_event_of_a_call_with_a_text(client, service):
    service.says(PATCH_CALL)
    stream = await client.responses.create(model=MODEL, input="hi", tools=[PATCH], stream=True)
    events = [event async for event in stream]
    assert [event.type for event in events][2:-1] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    added, delta, done, ended = events[2:-1]
    assert (added.item.type, added.item.input) == ("custom_tool_call", "")
    assert delta.delta == done.input == ended.item.input == '*** Begin\n"ü"'


async def test_items_of_tools_that_openai_ran_are_left_out(client, service):
    raw = await client.responses.with_raw_response.create(
        model=MODEL,
        input=[
            {"role": "user", "content": "find it"},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
            {"type": "web_search_call", "id": "ws", "status": "completed", "action": {}},
            {"type": "compaction", "encrypted_content": "x"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "Found."}]},
            {"role": "user", "content": "go on"},
        ],
    )
    assert service.prompts == ["<user>find it<assistant>Found.<user>go on<assistant>"]
    assert {"input.web_search_call", "input.compaction"} <= set(
        raw.headers[IGNORED_HEADER].split(", ")
    )


async def test_tokens_are_counted(client, service):
    counted = await client.responses.input_tokens.count(model=MODEL, input="hi", tools=[PLANT])
    answer = await client.responses.create(model=MODEL, input="hi", tools=[PLANT])
    assert counted.input_tokens == answer.usage.input_tokens
    with pytest.raises(openai.NotFoundError, match="Compaction is not served here"):
        await client.responses.compact(model=MODEL, input="hi")
