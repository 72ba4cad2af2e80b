"""Fields that change nothing are accepted and named; with --strict they are refused."""

import openai
import pytest

from molink.api.headers.ignored_fields import IGNORED_HEADER, NAMES_SHOWN_MAX

GENERATE = "/generate"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
OK = {
    GENERATE: {"prompt": "hi"},
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}
TALK = [{"role": "user", "content": "hi", "mood": 1}, {"role": "user", "content": "a", "mood": 2}]


async def ignored_of(http, url, path, body):
    async with http.post(f"{url}{path}", json=body) as response:
        assert response.status == 200, await response.text()
        return response.headers.get(IGNORED_HEADER)


KNOWN = "user store metadata service_tier cache_prompt safety_identifier verbosity"


@pytest.mark.parametrize("path", OK)
async def test_every_ignored_field_is_named(service, serve, http, path):
    fields = {name: {"any": ["value"]} for name in KNOWN.split()}
    names = await ignored_of(http, await serve(service), path, OK[path] | fields | {"max_token": 5})
    assert names == ", ".join([*KNOWN.split(), "max_token"])


@pytest.mark.parametrize("path", OK)
async def test_nothing_is_named_where_nothing_is_ignored(service, serve, http, path):
    body = OK[path] | {"user": None, "suffix": "" if path == COMPLETIONS else None, "top_k": 1}
    assert await ignored_of(http, await serve(service), path, body) is None


@pytest.mark.parametrize(
    ("extra", "names"),
    [
        ({"messages": TALK}, "messages.mood"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        ({"a, b": 1, "line\r\nbreak: 1": 1, "\x1b[2J": 1}, "a??b, line??break:?1, ?[2J"),
        ({"ü" * 100: 1}, "?" * 60),
    ],
)
async def test_how_they_are_named(service, serve, http, extra, names):
    assert await ignored_of(http, await serve(service), CHAT, OK[CHAT] | extra) == names


async def test_many_fields_are_named_in_short(service, serve, http):
    fields = {f"field{place}": 1 for place in range(1000)}
    names = await ignored_of(http, await serve(service), GENERATE, OK[GENERATE] | fields)
    assert names.split(", ") == [f"field{place}" for place in range(NAMES_SHOWN_MAX)] + ["..."]


@pytest.mark.parametrize(
    ("path", "extra", "param"),
    [
        (GENERATE, {"max_token": 5}, "max_token"),
        (COMPLETIONS, {"user": "me"}, "user"),
        (CHAT, {"messages": TALK[1:]}, "messages.0.mood"),
        (CHAT, {"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ],
)
async def test_a_strict_server_refuses_them(service, serve, http, path, extra, param):
    url = await serve(service, strict=True)
    async with http.post(f"{url}{path}", json=OK[path] | extra) as response:
        error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, param)
    assert error["code"] == "unknown_parameter" and f"'{param}'" in error["message"]
    assert service.requests == []
    assert await ignored_of(http, url, path, OK[path] | {"stream": False}) is None


async def test_the_official_client_sends_what_only_openai_knows(service, serve):
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        got = await client.chat.completions.with_raw_response.create(
            model="tiny/model",
            messages=OK[CHAT]["messages"],
            metadata={"a": "b"},
            store=True,
            user="me",
            service_tier="auto",
            safety_identifier="s",
            prompt_cache_key="k",
            extra_body={"cache_prompt": True},
        )
    assert got.parse().choices[0].message.content.startswith("abc")
    named = set(got.headers[IGNORED_HEADER].split(", "))
    assert named == {
        "metadata",
        "store",
        "user",
        "service_tier",
        "safety_identifier",
        "cache_prompt",
    }
