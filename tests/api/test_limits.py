"""Numbers as clients of other servers write them, and answers that do not fit."""

from dataclasses import replace

import pytest

from tests.api.conftest import CARD, CharTokenizer
from tests.api.scripted import ScriptedService

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
COMPLETIONS, GENERATE = "/v1/completions", "/generate"
HELLO = [{"role": "user", "content": "hi"}]
ASKED = {
    CHAT: ({"messages": HELLO}, "max_completion_tokens"),
    RESPONSES: ({"input": "hi"}, "max_output_tokens"),
    MESSAGES: ({"messages": HELLO}, "max_tokens"),
    COMPLETIONS: ({"prompt": "hi"}, "max_tokens"),
    GENERATE: ({"prompt": "hi"}, "max_tokens"),
}


@pytest.fixture
def service():
    return ScriptedService()


@pytest.mark.parametrize("given", [-1, -2, 32_000, 32_000.0, 10**30])
@pytest.mark.parametrize("path", ASKED)
async def test_a_length_over_what_is_left_is_cut(service, serve, http, path, given):
    body, name = ASKED[path]
    async with http.post(f"{await serve(service)}{path}", json=body | {name: given}) as response:
        assert response.status == 200, await response.text()
    (request,) = service.requests
    assert request.sampling.max_tokens + len(request.prompt_token_ids) == 2000


@pytest.mark.parametrize("path", ASKED)
async def test_a_prompt_that_is_too_long_is_told_in_the_words_of_the_dialect(
    service, serve, http, path
):
    (name,) = ASKED[path][0]
    text = "x" * 2500
    body = {name: [{"role": "user", "content": text}] if name == "messages" else text}
    async with http.post(f"{await serve(service)}{path}", json=body) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    tokens = {CHAT: 2517, RESPONSES: 2517, MESSAGES: 2517}.get(path, 2501)
    if path == MESSAGES:
        assert error["message"] == f"prompt is too long: {tokens} tokens > 2000 maximum"
        assert error["type"] == "invalid_request_error"
    else:
        assert error["message"] == (
            "This model's maximum context length is 2000 tokens. However, your prompt has "
            f"{tokens} tokens: shorten it."
        )
        assert (error["code"], error["param"]) == ("context_length_exceeded", name)
    assert service.requests == []


@pytest.mark.parametrize(
    ("fields", "name", "means"),
    [
        ({"top_k": -1}, "top_k", 0),
        ({"top_k": -1.0}, "top_k", 0),
        ({"top_k": 40.0}, "top_k", 40),
        ({"seed": 7.0}, "seed", 7),
        ({"temperature": 1}, "temperature", 1.0),
        ({"top_p": 0}, "top_p", 1e-9),
        ({"stop": None}, "stop", ()),
        ({"stop": ""}, "stop", ()),
        ({"stop": [None]}, "stop", ()),
        ({"stop": ["", "a", None]}, "stop", ("a",)),
        ({"stop": [f"n{one}:" for one in range(24)]}, "stop", tuple(f"n{i}:" for i in range(24))),
        ({"min_tokens": -1}, "min_tokens", 0),
        ({"truncate_prompt_tokens": -1}, "min_tokens", 0),
        ({"repetition_penalty": 0}, "repetition_penalty", 1.0),
        ({"repetition_penalty": 0.0}, "repetition_penalty", 1.0),
        ({"stop_token_ids": [2.0]}, "stop_token_ids", (2, *CARD.eos_token_ids)),
        ({"stream_options": {"include_usage": True}}, "max_tokens", None),
    ],
)
@pytest.mark.parametrize("path", ASKED)
async def test_what_clients_mean(service, serve, http, path, fields, name, means):
    fields = {
        "stop_sequences" if path == MESSAGES and one == "stop" else one: value
        for one, value in fields.items()
    }
    if path == GENERATE and "stream_options" in fields:
        return
    url = await serve(service)
    async with http.post(f"{url}{path}", json=ASKED[path][0] | fields) as response:
        assert response.status == 200, await response.text()
    if means is not None:
        assert getattr(service.requests[0].sampling, name) == means


@pytest.mark.parametrize("path", ASKED)
async def test_a_seed_of_minus_one_is_drawn(service, serve, http, path):
    url = await serve(service)
    for _ in range(2):
        async with http.post(f"{url}{path}", json=ASKED[path][0] | {"seed": -1}) as response:
            assert response.status == 200
    first, second = (one.sampling.seed for one in service.requests)
    assert first != second


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"reasoning_effort": "default"}),
        (RESPONSES, {"reasoning": {"effort": "default"}}),
        (MESSAGES, {"output_config": {"effort": "default"}}),
    ],
)
async def test_the_default_effort_is_the_templates(service, serve, http, path, fields):
    template = "{{ reasoning_effort or 'own' }}{{ messages[0].content }}"
    service.card = replace(service.card, tokenizer=CharTokenizer(chat_template=template))
    url = await serve(service)
    async with http.post(f"{url}{path}", json=ASKED[path][0] | fields) as response:
        assert response.status == 200, await response.text()
    assert service.prompts == ["ownhi"]


@pytest.mark.parametrize("name", ["n_predict", "num_predict", "max_new_tokens"])
@pytest.mark.parametrize("path", ASKED)
async def test_no_limit_under_another_name(service, serve, http, path, name):
    url = await serve(service)
    async with http.post(f"{url}{path}", json=ASKED[path][0] | {name: -1}) as got:
        assert got.status == 200, await got.text()
    async with http.post(f"{url}{path}", json=ASKED[path][0] | {name: -1, "max_tokens": 5}) as got:
        assert got.status == 200, await got.text()
    most, few = (one.sampling.max_tokens for one in service.requests)
    assert (most + len(service.requests[0].prompt_token_ids), few) == (2000, 5)


async def test_stop_strings_are_short_in_all(service, serve, http):
    url = await serve(service)
    for count, status in ((8, 200), (9, 400)):
        stops = [f"{one}" * 250 for one in range(count)]
        async with http.post(f"{url}{CHAT}", json=ASKED[CHAT][0] | {"stop": stops}) as response:
            assert response.status == status, await response.text()
