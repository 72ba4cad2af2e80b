"""Shapes that clients bring along from other dialects and servers are served in all."""

import gzip

import pytest

from tests.api.scripted import CALL, SCHEMA, ScriptedService

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PATHS = (CHAT, RESPONSES, MESSAGES)
JSON = {"Content-Type": "application/json"}
HELLO = {"role": "user", "content": "hi"}
FLAT = {"name": "weather", "parameters": SCHEMA}
ANTHROPICS = {"name": "weather", "input_schema": SCHEMA}
NO = {"role": "assistant", "content": "No."}


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture
async def post(service, serve, http):
    url = await serve(service)

    async def posted(path, said=(HELLO,), **fields):
        body = {"input" if path == RESPONSES else "messages": list(said), **fields}
        async with http.post(f"{url}{path}", json=body) as response:
            return response.status, await response.json()

    return posted


async def prompt_of(service, post, path, said=(HELLO,), **fields) -> str:
    status, answer = await post(path, said, **fields)
    assert status == 200, answer
    return service.prompts[-1]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": None, "text": "a"}], "a"),
        ([None], ""),
        ({"a": [1, "ü"]}, '{"a": [1, "ü"]}'),
        ([{"a": 1}, "b"], '{"a": 1}\nb'),
        (5, "5"),
        (True, "true"),
    ],
)
async def test_content_of_any_kind(service, post, path, content, text):
    said = [{"role": "user", "content": content}, NO, HELLO]
    assert (await prompt_of(service, post, path, said)).startswith(f"<user>{text}<assistant>No.")


@pytest.mark.parametrize("content", [{"a": 1}, [{"a": 1}]])
async def test_a_result_that_is_an_object(service, post, content):
    call = {"id": 7, "name": "f", "arguments": {}}
    said = [{"role": "assistant", "tool_calls": [call]}]
    chat = [*said, {"role": "tool", "tool_call_id": 7, "content": content}]
    assert '<tool>{"a": 1}' in await prompt_of(service, post, CHAT, chat)
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": 7, "name": "f"}]}
    result = {"type": "tool_result", "tool_use_id": 7, "content": content}
    said = [HELLO, use, {"role": "user", "content": [result]}]
    assert '<tool>{"a": 1}' in await prompt_of(service, post, MESSAGES, said)
    said = [
        {"type": "function_call", "call_id": "c", "name": "f"},
        {"type": "function_call_output", "call_id": "c", "output": content},
    ]
    assert '<tool>{"a": 1}' in await prompt_of(service, post, RESPONSES, said)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "tool",
    [
        FLAT,
        {"type": None, **FLAT},
        {"type": "function", **FLAT},
        {"type": "function", "function": FLAT},
        {"type": None, "function": FLAT},
        {"type": "function", "function": ANTHROPICS},
        ANTHROPICS,
    ],
)
async def test_tools_of_every_dialect(service, post, path, tool):
    service.says(CALL)
    choice = {"type": "any"}
    prompt = await prompt_of(service, post, path, tools=[tool], tool_choice=choice)
    assert prompt.startswith("[weather]")
    assert "city" in service.requests[-1].sampling.grammar


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("choice", "forced"),
    [
        ("any", True),
        ("required", True),
        ({"type": "any"}, True),
        ({"type": "required"}, True),
        ({"type": "tool", "name": "weather"}, True),
        ("auto", False),
        ({"type": "auto"}, False),
        ({"type": "none"}, False),
        ({}, False),
    ],
)
async def test_choices_of_every_dialect(service, post, path, choice, forced):
    service.says(CALL)
    await prompt_of(service, post, path, tools=[FLAT], tool_choice=choice)
    assert bool(service.requests[-1].sampling.grammar) == forced


async def test_a_tool_of_a_namespace_may_be_chosen_by_its_name(service, post):
    service.says(CALL.replace("weather", "mcp__sky__weather"))
    sky = {"type": "namespace", "name": "mcp__sky", "tools": [{"type": "function", **FLAT}]}
    empty = {"type": "namespace", "name": "mcp__void", "tools": None}
    choice = {"type": "function", "name": "weather"}
    await prompt_of(service, post, RESPONSES, tools=[sky, empty], tool_choice=choice)
    assert "mcp__sky__weather" in service.requests[-1].sampling.grammar


async def test_a_body_of_chats_is_told_where_it_belongs(service, post, http, serve):
    async with http.post(f"{await serve(service)}{RESPONSES}", json={"messages": [HELLO]}) as got:
        assert got.status == 400 and "/v1/chat/completions" in await got.text()


async def test_anthropics_calls_within_a_chat(service, post):
    said = [
        HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Well."},
                {"type": "tool_use", "id": "c", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "rain"},
                {"type": "text", "text": "So?"},
            ],
        },
    ]
    assert await prompt_of(service, post, CHAT, said) == (
        '<user>hi<assistant>Well.<tool_call>weather {"city": "Oslo"}</tool_call>'
        "<tool>rain<user>So?<assistant>"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]},
        {"tool_calls": [{"index": "0", "id": 1, "function": {"name": None}}]},
        {"function_call": {}},
        {"reasoning": [{"type": "text", "text": "Hm."}]},
    ],
)
async def test_histories_of_other_servers(service, post, fields):
    said = [HELLO, {"role": "assistant", "content": "No.", **fields}, HELLO]
    prompt = await prompt_of(service, post, CHAT, said)
    assert ("<tool_call>" in prompt) == ("tool_calls" in fields)
    assert ("<think>Hm.</think>" in prompt) == ("reasoning" in fields)


@pytest.mark.parametrize("path", [RESPONSES, MESSAGES])
async def test_calls_without_ids_are_told_apart(service, post, path):
    template = service.card.tokenizer.chat_template
    service.card.tokenizer.chat_template = template.replace(
        "<{{ m.role }}>", "<{{ m.role }}{% if m.name %} {{ m.name }}{% endif %}>"
    )
    names, results = ("time", "weather"), ("noon", "rain")
    if path == RESPONSES:
        said = [{"type": "function_call", "name": one} for one in names]
        said += [{"type": "function_call_output", "output": one} for one in results]
    else:
        calls = [{"type": "tool_use", "name": one} for one in names]
        given = [{"type": "tool_result", "content": one} for one in results]
        said = [{"role": "assistant", "content": calls}, {"role": "user", "content": given}]
    prompt = await prompt_of(service, post, path, [HELLO, *said])
    assert "<tool time>noon<tool weather>rain" in prompt


async def test_roles_of_chats_in_messages_and_responses(service, post):
    said = [
        {"role": "developer", "content": "Be kind."},
        HELLO,
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f"}]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]
    prompt = await prompt_of(service, post, MESSAGES, said, thinking={"type": "auto"})
    assert prompt.startswith("<system>Be kind.<user>hi") and "<tool>rain" in prompt
    said = [{"type": "function_call", "call_id": "c", "name": "f"}, said[-1]]
    assert "<tool>rain" in await prompt_of(service, post, RESPONSES, said)


@pytest.mark.parametrize("given", [HELLO, None, "hi"])
async def test_input_and_instructions_of_any_shape(service, http, serve, given):
    instructions = [{"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}]
    body = {"input": given, "instructions": [*instructions, "Be brief."]}
    async with http.post(f"{await serve(service)}{RESPONSES}", json=body) as response:
        assert response.status == 200, await response.text()
    said = "" if given is None else "hi"
    assert service.prompts == [f"<system>Be kind.\nBe brief.<user>{said}<assistant>"]


async def test_a_custom_call_with_an_object(service, post):
    call = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": {"a": 1}}
    assert "patch" in await prompt_of(service, post, RESPONSES, [call])


async def test_the_former_name_of_an_output_format(service, post):
    service.says("{}")
    form = {"type": "json_schema", "schema": {"type": "object"}}
    await prompt_of(service, post, MESSAGES, output_format=form)
    assert service.requests[-1].sampling.grammar


async def test_bodies_of_odd_bytes(service, serve, http):
    url = await serve(service)
    text = b'{"messages": [{"role": "user", "content": "hi"}]}'
    async with http.post(f"{url}{CHAT}", data=b"\xef\xbb\xbf" * 2 + text, headers=JSON) as response:
        assert response.status == 200, await response.text()
    async with http.post(f"{url}{CHAT}", data=gzip.compress(text), headers=JSON) as response:
        assert response.status == 400 and "gzip" in await response.text()
