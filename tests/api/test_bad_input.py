"""Everything that a client can get wrong, and what it is told."""

import asyncio
import json

import pytest

from molink.api.body import BODY_BYTES_MAX

JSON = {"Content-Type": "application/json"}
GENERATE = "/generate"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
OK = {
    GENERATE: {"prompt": "hi"},
    COMPLETIONS: {"prompt": "hi"},
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
}


PYDANTIC_WORDS = (
    "Input",
    "a valid ",
    "should",
    "instance",
    "validation",
    "Value error",
    "required",
)
"""Of its own messages; ours say what to do instead."""


async def error_of(http, url, path, **request):
    """Status and error object of a POST, whose shape is checked."""
    async with http.post(f"{url}{path}", **request) as response:
        body = await response.json()
        assert body.keys() == {"error"}, body
        error = body["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    message = error["message"]
    assert ": " in message and message.endswith((".", ")"))
    assert not any(word in message for word in PYDANTIC_WORDS), message
    return response.status, error


NOT_JSON = [
    b"",
    b"{",
    b"no",
    b'{"prompt": "hi",}',
    b"\xff\xfe",
    b'{"prompt": "hi", "temperature": NaN}',
    b'{"prompt": "hi", "temperature": Infinity}',
    b'{"prompt": "hi", "temperature": -Infinity}',
    b'{"prompt": "half \\ud800"}',
    b'{"half \\ud800": 1}',
    b"[" * 100_000,
    b'{"prompt": "hi", "seed": ' + b"1" * 10_000 + b"}",
    b"[]",
    b'"hi"',
    b"null",
    b"3",
]


@pytest.mark.parametrize("raw", NOT_JSON, ids=lambda raw: repr(raw[:40]))
@pytest.mark.parametrize("path", OK)
async def test_bodies_that_are_no_json_object(service, serve, http, path, raw):
    status, _ = await error_of(http, await serve(service), path, data=raw, headers=JSON)
    assert status == 400
    assert service.requests == []


async def test_a_body_that_does_not_match_its_headers(service, serve, http):
    headers = JSON | {"Content-Encoding": "gzip"}
    async with http.post(
        f"{await serve(service)}/generate", data=b"{}", headers=headers
    ) as response:
        assert response.status == 400
        assert "Content-Encoding" in (await response.json())["error"]["message"]


SHARED_BAD = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 5.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": True}, "temperature"),
    ({"temperature": 1e308 * 10}, None),
    ({"max_tokens": -3}, "max_tokens"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"min_p": -0.1}, "min_p"),
    ({"kv_budget": 0}, "kv_budget"),
    ({"kv_budget": 0.09}, "kv_budget"),
    ({"kv_budget": 2}, "kv_budget"),
    ({"kv_budget": "x"}, "kv_budget"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"repetition_penalty": -1}, "repetition_penalty"),
    ({"seed": 1.5}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"seed": "lucky"}, "seed"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a"] * 65}, "stop"),
    ({"stop": "x" * 257}, "stop.0"),
    ({"cache_salt": "x" * 257}, "cache_salt"),
    ({"cache_salt": 5}, "cache_salt"),
    ({"stop_token_ids": 5}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids.0"),
    ({"stop_token_ids": [300]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"ignore_eos": 1}, "ignore_eos"),
    ({"priority": 0.5}, "priority"),
    ({"priority": 2**31}, "priority"),
    ({"timeout_s": 0}, "timeout_s"),
    ({"timeout_s": "soon"}, "timeout_s"),
    ({"ttft_target_s": 0}, "ttft_target_s"),
    ({"ttft_target_s": 1e9}, "ttft_target_s"),
    ({"tpot_target_ms": -5}, "tpot_target_ms"),
    ({"tpot_target_ms": "fast"}, "tpot_target_ms"),
    ({"tpot_target_ms": 0}, "tpot_target_ms"),
    ({"tbt_target_ms": 0}, "tbt_target_ms"),
    ({"tbt_target_ms": float("nan")}, None),
    ({"max_new_tokens": 5}, "max_new_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"json_schema": {}}, "json_schema"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"tokenizer": "mine"}, "tokenizer"),
    ({"model": 5}, "model"),
]


@pytest.mark.parametrize("path", OK)
@pytest.mark.parametrize(("extra", "param"), SHARED_BAD, ids=lambda value: str(value)[:40])
async def test_wrong_fields_of_every_endpoint(service, serve, http, path, extra, param):
    # json.dumps writes Infinity as such: the parser refuses it before any field is looked at.
    raw = json.dumps(OK[path] | extra)
    status, error = await error_of(http, await serve(service), path, data=raw, headers=JSON)
    assert status == 400
    assert error["param"] == param
    assert param is None or param.split(".")[0] in error["message"]
    assert service.requests == []


PATH_BAD = [
    (GENERATE, {"prompt": ""}, "prompt"),
    (GENERATE, {"prompt": ["hi"]}, "prompt"),
    (GENERATE, {"prompt": None}, "prompt"),
    (GENERATE, {"prompt_token_ids": [5]}, "prompt"),
    (GENERATE, {"prompt": None, "prompt_token_ids": []}, "prompt_token_ids"),
    (GENERATE, {"prompt": None, "prompt_token_ids": "abc"}, "prompt_token_ids"),
    (GENERATE, {"prompt": None, "prompt_token_ids": [1.0]}, "prompt_token_ids"),
    (GENERATE, {"prompt": None, "prompt_token_ids": [True]}, "prompt_token_ids"),
    (GENERATE, {"prompt": None, "prompt_token_ids": [300]}, "prompt_token_ids"),
    (GENERATE, {"prompt": None, "prompt_token_ids": [10**30]}, "prompt_token_ids"),
    (GENERATE, {"logprobs": 21}, "logprobs"),
    (GENERATE, {"logprobs": True}, "logprobs"),
    (GENERATE, {"n": 2}, "n"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": ["hi", ""]}, "prompt"),
    (COMPLETIONS, {"prompt": ["hi", 5]}, "prompt"),
    (COMPLETIONS, {"prompt": [5, "hi"]}, "prompt"),
    (COMPLETIONS, {"prompt": [[5], []]}, "prompt"),
    (COMPLETIONS, {"prompt": [300]}, "prompt"),
    (COMPLETIONS, {"prompt": {"text": "hi"}}, "prompt"),
    (COMPLETIONS, {"prompt": ["hi"] * 65}, "prompt"),
    (COMPLETIONS, {"n": 0}, "n"),
    (COMPLETIONS, {"n": 17}, "n"),
    (COMPLETIONS, {"best_of": 17}, "best_of"),
    (COMPLETIONS, {"n": 3, "best_of": 2}, "best_of"),
    (COMPLETIONS, {"best_of": 2, "stream": True}, "best_of"),
    (COMPLETIONS, {"echo": 1}, "echo"),
    (CHAT, {"prompt_logprobs": -1}, "prompt_logprobs"),
    (CHAT, {"thinking_token_budget": 100}, "thinking_token_budget"),
    (GENERATE, {"echo": True}, "echo"),
    (COMPLETIONS, {"suffix": "end"}, "suffix"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs"),
    (
        COMPLETIONS,
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
    ),
    (COMPLETIONS, {"max_completion_tokens": 5}, "max_completion_tokens"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": ["hi"]}, "messages.0"),
    (CHAT, {"messages": [{"role": "user", "content": [[5]]}]}, "messages.0.content.0"),
    (CHAT, {"messages": [{"role": "king", "content": "hi"}]}, "messages.0.role"),
    (
        CHAT,
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]},
        "messages.0.tool_calls.0.function",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages.0.content",
    ),
    (CHAT, {"messages": [{"role": "assistant", "content": "hi"}]}, "messages"),
    (CHAT, {"n": 17}, "n"),
    (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    (CHAT, {"logprobs": 5}, "logprobs"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"functions": [{}]}, "functions.0.name"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools.0.function"),
    (CHAT, {"tool_choice": "required"}, "tool_choice"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities"),
    (CHAT, {"audio": {"voice": "x"}}, "audio"),
    (CHAT, {"reasoning_effort": "much"}, "reasoning_effort"),
    (CHAT, {"prompt": "hi"}, "prompt"),
]


@pytest.mark.parametrize(("path", "extra", "param"), PATH_BAD, ids=lambda value: str(value)[:40])
async def test_wrong_fields_of_one_endpoint(service, serve, http, path, extra, param):
    status, error = await error_of(http, await serve(service), path, json=OK[path] | extra)
    assert status == 400
    assert error["param"] == param
    assert service.requests == []


SENTENCES = [
    (GENERATE, {"max_tokens": 0}, "'max_tokens' must be 1 or more: send a larger number."),
    (GENERATE, {"timeout_s": 0}, "must be more than 0: send a larger number."),
    (GENERATE, {"seed": 2**64}, "'seed' must be 18446744073709551615 or less: send a smaller"),
    (GENERATE, {"temperature": "hot"}, "must be a number: send one that is finite, without"),
    (GENERATE, {"stream": "yes"}, "'stream' must be true or false: send one of them, without"),
    (GENERATE, {"stop": ["a"] * 65}, "'stop' holds 65 entries: send at most 64."),
    (GENERATE, {"stop": "x" * 257}, "'stop.0' is too long: send at most 256 characters."),
    (CHAT, {"cache_salt": "x" * 257}, "'cache_salt' is too long: send at most 256 characters."),
    (GENERATE, {"logit_bias": {"7": 101}}, "'logit_bias.7' must be 100 or less: send a smaller"),
    (CHAT, {"logit_bias": {"-1": 1}}, "'-1', which is no token id of this model: use 0 to 299, in"),
    (CHAT, {"logit_bias": [[7, 1]]}, "'logit_bias' must be an object: send its fields in braces."),
    (
        COMPLETIONS,
        {"logit_bias": {str(one): 1 for one in range(301)}},
        "'logit_bias' holds 301 entries: send at most 300.",
    ),
    (GENERATE, {"stop": 5}, "'stop' must be a string or a list: send one of them."),
    (GENERATE, {"prompt": 5}, "'prompt' must be a string: send it in quotes."),
    (CHAT, {"messages": ["hi"]}, "'messages.0' must be an object: send its fields in braces."),
    (CHAT, {"messages": []}, "'messages' is too short: send at least 1."),
    (
        CHAT,
        {"messages": [{"role": 5, "content": "hi"}]},
        "'tool' or 'function': nothing else is served.",
    ),
    (CHAT, {"stream_options": 5}, "'stream_options' must be an object: send its fields in braces."),
]


@pytest.mark.parametrize(("path", "extra", "says"), SENTENCES, ids=lambda value: str(value)[:40])
async def test_a_wrong_field_is_named_with_what_to_do(service, serve, http, path, extra, says):
    status, error = await error_of(http, await serve(service), path, json=OK[path] | extra)
    assert status == 400
    assert says in error["message"]


async def test_a_salt_of_a_megabyte_is_refused_before_it_is_read(service, serve, http):
    body = OK[CHAT] | {"cache_salt": "x" * BODY_BYTES_MAX}
    status, error = await error_of(http, await serve(service), CHAT, json=body)
    assert status == 413 and error["message"].startswith("The body is over 33554432 bytes")
    assert service.requests == []


async def test_missing_messages(service, serve, http):
    status, error = await error_of(http, await serve(service), CHAT, json={})
    assert (status, error["param"]) == (400, "messages")


HARMLESS = [
    (COMPLETIONS, {"user": "u", "suffix": None, "echo": False, "best_of": 1, "logit_bias": {}}),
    (COMPLETIONS, {"suffix": "", "length_penalty": 1.0, "min_tokens": 0, "bad_words": []}),
    (COMPLETIONS, {"n": 2, "best_of": 2}),
    (CHAT, {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"}),
    (CHAT, {"safety_identifier": "s", "prompt_cache_key": "k", "parallel_tool_calls": True}),
    (CHAT, {"tools": None, "tool_choice": "none", "functions": [], "logit_bias": None}),
    (CHAT, {"response_format": {"type": "text"}, "modalities": ["text"]}),
    (CHAT, {"reasoning_effort": None, "audio": None, "stream_options": None}),
    (GENERATE, {"user": "u", "model": "tiny/model"}),
]


@pytest.mark.parametrize(("path", "extra"), HARMLESS, ids=lambda value: str(value)[:40])
async def test_fields_that_change_nothing_are_accepted(service, serve, http, path, extra):
    async with http.post(f"{await serve(service)}{path}", json=OK[path] | extra) as response:
        assert response.status == 200, await response.text()


EDGES = [
    {"temperature": 0},
    {"temperature": 100},
    {"top_p": 1},
    {"top_p": 1e-9},
    {"min_p": 1},
    {"kv_budget": 0.1},
    {"kv_budget": 1},
    {"repetition_penalty": 100},
    {"seed": -(2**63)},
    {"seed": 2**64 - 1},
    {"top_k": 2**31},
    {"stop": ["a"] * 64},
    {"stop": ["a", "", None]},
    {"stop": ""},
    {"top_p": 0},
    {"top_k": -1},
    {"max_tokens": -1},
    {"max_tokens": 10**30},
    {"max_tokens": 5.0, "seed": -1.0},
    {"stop": []},
]


@pytest.mark.parametrize("path", OK)
@pytest.mark.parametrize("extra", EDGES, ids=str)
async def test_what_the_api_accepts_the_core_accepts(service, serve, http, path, extra):
    async with http.post(f"{await serve(service)}{path}", json=OK[path] | extra) as response:
        assert response.status == 200, await response.text()


@pytest.mark.parametrize("path", OK)
async def test_text_for_a_model_without_tokenizer(bare_service, serve, http, path):
    status, error = await error_of(http, await serve(bare_service), path, json=OK[path])
    assert status == 400
    assert "prompt_token_ids" in error["message"]


async def test_stop_text_for_a_model_without_tokenizer(bare_service, serve, http):
    request = {"prompt_token_ids": [5], "stop": "x"}
    status, error = await error_of(http, await serve(bare_service), GENERATE, json=request)
    assert (status, error["param"]) == (400, "stop")


async def test_chat_with_a_model_without_chat_template(templateless_service, serve, http):
    url = await serve(templateless_service)
    status, error = await error_of(http, url, CHAT, json=OK[CHAT])
    assert status == 400
    assert "/v1/completions" in error["message"]


@pytest.mark.parametrize("path", OK)
async def test_a_body_over_the_limit(service, serve, http, path):
    url = await serve(service, body_bytes_max=1000)
    status, error = await error_of(http, url, path, json=OK[path] | {"stop": "x" * 2000})
    assert status == 413
    assert "1000" in error["message"]


@pytest.mark.parametrize("path", OK)
async def test_another_model_is_not_found(service, serve, http, path):
    url = await serve(service)
    status, error = await error_of(http, url, path, json=OK[path] | {"model": "gpt-9"})
    assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert "tiny/model" in error["message"]


async def test_unknown_path_and_wrong_method(service, serve, http):
    url = await serve(service)
    status, error = await error_of(http, url, "/v1/complet", json={})
    assert status == 404 and "/v1/complet:" in error["message"]
    status, error = await error_of(http, url, "/health", json={})
    assert status == 405
    async with http.get(f"{url}/generate") as response:
        assert (response.status, response.headers["Allow"]) == (405, "POST")
        assert "use POST" in (await response.json())["error"]["message"]


async def test_a_bad_request_leaves_running_ones_alone(service, serve, http):
    service.events_before_hold = 1
    url = await serve(service)
    request = {"prompt": "x", "stream": True}
    async with http.post(f"{url}/generate", json=request) as response:
        await response.content.readline()
        await asyncio.gather(
            *(error_of(http, url, path, json=OK[path] | {"top_p": 9}) for path in OK)
        )
        assert service.closed.locked()
