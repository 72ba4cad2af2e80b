"""Histories as clients keep them are served: pictures, nothing at all, and texts of any type."""

from dataclasses import replace

import pytest

from molink.api.headers.ignored_fields import IGNORED_HEADER
from tests.api.conftest import CharTokenizer
from tests.api.scripted import TEMPLATE, ScriptedService

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
LINE = "[picture left out: this model reads text]"
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def service():
    return ScriptedService()


async def posted(http, url, path, body):
    async with http.post(f"{url}{path}", json=body) as response:
        return response.status, response.headers.get(IGNORED_HEADER), await response.json()


async def served(http, url, path, body):
    status, ignored, answer = await posted(http, url, path, body)
    assert status == 200, answer
    return ignored


PICTURE = {
    CHAT: {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}},
    RESPONSES: {"type": "input_image", "image_url": "data:image/png;base64,iVBO"},
    MESSAGES: {"type": "image", "source": {"type": "base64", "data": "iVBO"}},
}
EARLIER = {
    path: [{"role": "user", "content": [picture]}, {"role": "assistant", "content": "No."}, USER]
    for path, picture in PICTURE.items()
}
IN_RESULTS = {
    CHAT: [
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "see"}}]},
        {"role": "tool", "tool_call_id": "c", "content": "Here it is."},
        {"role": "user", "content": [PICTURE[CHAT]]},
    ],
    RESPONSES: [
        {"type": "function_call", "call_id": "c", "name": "see", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": [PICTURE[RESPONSES]]},
    ],
    MESSAGES: [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "see"}]},
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [PICTURE[MESSAGES]]}
            ],
        },
    ],
}


def asked(path, messages):
    return {"input" if path == RESPONSES else "messages": messages}


@pytest.mark.parametrize("histories", [EARLIER, IN_RESULTS], ids=["earlier", "result"])
@pytest.mark.parametrize("path", PICTURE)
async def test_a_picture_of_earlier_is_a_line_of_text(service, serve, http, path, histories):
    url = await serve(service)
    ignored = await served(http, url, path, asked(path, histories[path]))
    assert LINE in service.prompts[0] and "iVBO" not in service.prompts[0]
    assert PICTURE[path]["type"] in ignored


@pytest.mark.parametrize("path", PICTURE)
async def test_a_picture_of_now_is_refused(service, serve, http, path):
    said = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, PICTURE[path]]}]
    status, _, answer = await posted(http, await serve(service), path, asked(path, said))
    assert status == 400 and "cannot read: send text" in answer["error"]["message"]
    assert path == MESSAGES or answer["error"]["code"] == "unsupported_content"
    assert service.requests == []


NOTHING = [
    {"content": None, "reasoning_content": "Hm."},
    {"content": None, "tool_calls": []},
    {"content": None, "tool_calls": None, "refusal": None, "audio": None},
    {"content": []},
    {"content": ""},
    {},
]


@pytest.mark.parametrize("turn", NOTHING, ids=str)
@pytest.mark.parametrize("path", PICTURE)
async def test_an_empty_turn_is_empty_text(service, serve, http, path, turn):
    url = await serve(service)
    await served(http, url, path, asked(path, [USER, {"role": "assistant", **turn}, USER]))
    assert service.prompts[0].endswith("<user>hi<assistant>")


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ({"type": "text", "text": "one part"}, "one part"),
        (["a", "b"], "a\nb"),
        ([{"type": "text", "text": None}, {"text": "no type"}], "no type"),
        ([{"type": "refusal", "refusal": "Never."}], "Never."),
        ([{"type": "output_text", "text": "theirs"}], "theirs"),
        ([{"type": "thought_bubble", "x": 1}, {"type": "text", "text": "x"}], "x"),
    ],
)
@pytest.mark.parametrize("path", [CHAT, RESPONSES])
async def test_texts_of_any_shape(service, serve, http, path, content, shown):
    url = await serve(service)
    await served(http, url, path, asked(path, [{"role": "user", "content": content}, USER]))
    expected = f"<user>{shown}<user>hi<assistant>"
    assert service.prompts == [expected]


async def test_a_type_that_is_no_text_is_a_mistake(service, serve, http):
    said = [{"role": "user", "content": [{"type": 5, "text": "x"}]}]
    status, _, answer = await posted(http, await serve(service), CHAT, {"messages": said})
    assert (status, answer["error"]["param"]) == (400, "messages.0.content.0.type")


@pytest.mark.parametrize("path", PICTURE)
async def test_400_turns_are_served(service, serve, http, path):
    service.card = replace(service.card, model_len_max=20_000)
    turns = [USER, {"role": "assistant", "content": "yes"}] * 200 + [USER]
    await served(http, await serve(service), path, asked(path, turns))
    assert service.prompts[0].count("<user>") == 201


@pytest.mark.parametrize("path", PICTURE)
async def test_a_megabyte_of_tools_is_served_or_refused_in_a_sentence(service, serve, http, path):
    schema = {"type": "object", "properties": {"a": {"type": "string", "description": "x" * 900}}}
    field = "input_schema" if path == MESSAGES else "parameters"
    tools = [{"name": f"tool_{number}", field: schema} for number in range(500)]
    service.card = replace(service.card, model_len_max=20_000)
    url = await serve(service)
    ignored = await served(http, url, path, asked(path, [USER]) | {"tools": tools})
    assert "[tool_0,tool_1," in service.prompts[0] and ignored is None
    status, _, answer = await posted(http, url, path, asked(path, [USER]) | {"tools": tools * 3})
    assert status in (400, 413) and ": send" in answer["error"]["message"]


ITEMS = "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}"


@pytest.mark.parametrize("walks", [False, True], ids=["tojson", "items"])
@pytest.mark.parametrize(
    "arguments", ['{"city": "Bern"}', {"city": "Bern"}, "[1]", '"Bern"', '{"city": ', None, [2], ""]
)
@pytest.mark.parametrize("path", PICTURE)
async def test_arguments_of_any_shape(service, serve, http, path, arguments, walks):
    if walks:
        template = TEMPLATE.replace("{{ c.function.arguments | tojson }}", ITEMS)
        service.card = replace(service.card, tokenizer=CharTokenizer(chat_template=template))
    function = {"name": "f", "arguments": arguments}
    history = {
        CHAT: [{"role": "assistant", "tool_calls": [{"id": "1", "function": function}]}],
        RESPONSES: [{"type": "function_call", "call_id": "1", **function}],
        MESSAGES: [
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "1", "name": "f", "input": arguments}],
            }
        ],
    }
    await served(http, await serve(service), path, asked(path, [USER, *history[path], USER]))
    said = str(arguments) if arguments and "1" in str(arguments) else ""
    assert "<tool_call>f " in service.prompts[0] and said in service.prompts[0]
    if "Bern" in str(arguments):
        assert "Bern" in service.prompts[0]
