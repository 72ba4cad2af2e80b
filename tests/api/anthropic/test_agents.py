"""`/v1/messages` as Claude Code asks it: fields of betas, hosted tools, and their blocks."""

import pytest

from molink.api.headers.ignored_fields import IGNORED_HEADER
from tests.api.scripted import SCHEMA, ScriptedService

HELLO = [{"role": "user", "content": "hi"}]
READ = {"name": "Read", "description": "Reads a file", "input_schema": SCHEMA}
FIRST = {
    "model": "tiny/model",
    "max_tokens": 32_000,
    "metadata": {"user_id": "u-1"},
    "thinking": {"type": "adaptive", "display": "summarized"},
    "output_config": {"effort": "medium"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "container": "c",
    "mcp_servers": [{"type": "url", "url": "https://e.example/"}],
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "tools": [
        READ | {"defer_loading": True, "eager_input_streaming": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    ],
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
}


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture
async def post(service, serve, http):
    url = await serve(service)

    async def posted(path="/v1/messages", **body):
        async with http.post(f"{url}{path}", json=body) as response:
            assert response.status == 200, await response.text()
            ignored = response.headers.get(IGNORED_HEADER, "")
            is_json = response.content_type == "application/json"
            return ignored.split(", "), await (response.json() if is_json else response.text())

    return posted


async def test_the_first_request_of_claude_code(service, post):
    ignored, answer = await post("/v1/messages?beta=true", **FIRST)
    assert service.prompts == ["[Read]<system>Be brief.<user>hello<assistant>"]
    assert answer["context_management"] == {"applied_edits": []}
    assert set(ignored) >= {
        "context_management",
        "container",
        "mcp_servers",
        "tools.web_search_20250305",
        "tools.tool_search_tool_regex_20251119",
        "tools.defer_loading",
    }
    assert not any("max_uses" in name for name in ignored), "it is named once"


async def test_a_stream_tells_of_edits_where_they_are_asked_for(post):
    _, told = await post(**FIRST, stream=True)
    assert '"context_management":{"applied_edits":[]}' in told.replace(" ", "")
    _, answer = await post(messages=HELLO)
    assert "context_management" not in answer


async def test_tokens_are_counted_of_the_same_body(service, post):
    counted = {name: value for name, value in FIRST.items() if name != "max_tokens"}
    _, answer = await post("/v1/messages/count_tokens", **counted)
    await post(**FIRST)
    assert answer["input_tokens"] == len(service.prompts[0])


def history(*blocks, role="assistant"):
    return [*HELLO, {"role": role, "content": list(blocks)}, *HELLO]


SEARCHED = (
    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "news"}},
    {
        "type": "web_search_tool_result",
        "tool_use_id": "s",
        "content": [{"type": "web_search_result", "title": "T", "encrypted_content": "x"}],
    },
    {"type": "text", "text": "Nothing."},
)


async def test_blocks_of_tools_that_a_server_ran_are_left_out(service, post):
    ignored, _ = await post(messages=history(*SEARCHED))
    assert service.prompts == ["<user>hi<assistant>Nothing.<user>hi<assistant>"]
    assert set(ignored) == {
        "messages.content.server_tool_use",
        "messages.content.web_search_tool_result",
    }


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "tool_reference", "tool_name": "Web"}, "The tool Web is available now."),
        (
            {
                "type": "search_result",
                "source": "https://e.example/",
                "title": "T",
                "content": [{"type": "text", "text": "found"}],
            },
            "T\nhttps://e.example/\nfound",
        ),
        (
            {"type": "document", "title": "T", "source": {"type": "text", "data": "told"}},
            "T\ntold",
        ),
        (
            {
                "type": "document",
                "source": {"type": "content", "content": [{"type": "text", "text": "told"}]},
            },
            "told",
        ),
        (
            {"type": "document", "source": {"type": "base64", "data": "JVBE"}},
            "[document left out: this model reads text]",
        ),
    ],
)
@pytest.mark.parametrize("in_result", [False, True])
async def test_blocks_that_hold_text_are_text(service, post, block, shown, in_result):
    result = {"type": "tool_result", "tool_use_id": "t", "content": [block]}
    await post(messages=history(result if in_result else block, role="user") + HELLO)
    assert shown in service.prompts[0] and "JVBE" not in service.prompts[0]


@pytest.mark.parametrize(
    ("kind", "name", "knows"),
    [
        ("bash_20250124", "bash", "restart"),
        ("text_editor_20250728", "str_replace_based_edit_tool", "old_str"),
        ("memory_20250818", "memory", "old_path"),
    ],
)
async def test_tools_that_the_client_runs_are_shown(service, post, kind, name, knows):
    tokenizer = service.card.tokenizer
    tokenizer.chat_template = "{{ tools | tojson }}" + tokenizer.chat_template
    service.says(f'<tool_call>{{"name": "{name}", "arguments": {{"{knows}": "x"}}}}</tool_call>')
    ignored, answer = await post(messages=HELLO, tools=[{"type": kind, "name": name}])
    assert knows in service.prompts[0] and ignored == [""]
    assert answer["content"][0]["name"] == name


async def test_the_same_id_twice_and_a_result_without_a_call(service, post):
    use = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "1"}
    nobodys = {"type": "tool_result", "tool_use_id": "nobody", "content": "2"}
    said = [{"role": "assistant", "content": [use, use]}]
    said += [{"role": "user", "content": [result, result, nobodys]}]
    await post(messages=[*HELLO, *said])
    assert service.prompts[0].endswith("<tool>1<tool>1<tool>2<assistant>")


async def test_no_length_is_all_that_is_left(service, post):
    _, answer = await post(messages=HELLO)
    assert service.requests[0].sampling.max_tokens == 2000 - len(service.prompts[0])
    assert answer["stop_reason"] == "end_turn"
