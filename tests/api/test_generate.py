import json
import math
from dataclasses import replace

import pytest

from molink.api.answers import finite
from molink.api.generate import Stopwatch
from molink.errors import InvalidRequestError, RingError


async def events_of(response):
    """The data of a stream's events."""
    text = (await response.read()).decode()
    assert text.endswith("\n\n")
    lines = text.removesuffix("\n\n").split("\n\n")
    assert all(line.startswith("data: ") for line in lines)
    return [line.removeprefix("data: ") for line in lines]


async def test_whole_answer(service, serve, http):
    url = await serve(service)
    async with http.post(f"{url}/generate", json={"prompt": "hi", "max_tokens": 3}) as response:
        assert response.status == 200
        body = await response.json()
    assert body.pop("id").startswith("gen-")
    timing = body.pop("timing")
    assert timing.keys() == {"ttft_s", "tpot_s", "total_s"}
    assert 0 < timing["ttft_s"] <= timing["total_s"] and timing["tpot_s"] >= 0
    assert body == {
        "text": "abc",
        "token_ids": [97, 98, 99],
        "finish_reason": "length",
        "stop_reason": None,
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 3,
            "total_tokens": 6,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


async def test_streamed_answer_has_the_same_shape_in_parts(service, serve, http):
    url = await serve(service)
    request = {"prompt": "hi", "max_tokens": 3, "stream": True}
    async with http.post(f"{url}/generate", json=request) as response:
        assert response.content_type == "text/event-stream"
        *events, last = await events_of(response)
    assert last == "[DONE]"
    parts = [json.loads(event) for event in events]
    assert len({part["id"] for part in parts}) == 1
    assert [part["text"] for part in parts] == ["a", "b", "c"]
    assert [part["token_ids"] for part in parts] == [[97], [98], [99]]
    assert [part["finish_reason"] for part in parts] == [None, None, "length"]
    assert [part["usage"]["completion_tokens"] for part in parts] == [1, 2, 3]
    assert parts[0]["timing"]["tpot_s"] is None
    assert parts[-1]["timing"]["tpot_s"] is not None


async def test_one_token_has_no_time_between_tokens(service, serve, http):
    url = await serve(service)
    async with http.post(f"{url}/generate", json={"prompt": "x", "max_tokens": 1}) as response:
        assert (await response.json())["timing"]["tpot_s"] is None


async def test_without_tokenizer_token_ids_go_in_and_out(bare_service, serve, http):
    url = await serve(bare_service)
    request = {"prompt_token_ids": [0, 5, 299], "max_tokens": 2}
    async with http.post(f"{url}/generate", json=request) as response:
        body = await response.json()
    assert (body["text"], body["token_ids"]) == ("", [97, 98])
    assert bare_service.requests[0].prompt_token_ids == (0, 5, 299)


async def test_every_sampling_field_reaches_the_service(service, serve, http):
    url = await serve(service)
    asked = {
        "max_tokens": 7,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 4,
        "min_p": 0.1,
        "kv_budget": 0.25,
        "seed": 11,
        "frequency_penalty": -1,
        "presence_penalty": 1.5,
        "repetition_penalty": 1.25,
        "logprobs": 2,
    }
    request = asked | {"prompt": "x", "stop": "z", "stop_token_ids": [9, 3]}
    async with http.post(f"{url}/generate", json=request) as response:
        assert response.status == 200
    sampling = service.requests[0].sampling
    assert {name: getattr(sampling, name) for name in asked} == asked
    assert sampling.stop == ("z",)
    assert sampling.stop_token_ids == (9, 3)


async def test_a_model_with_latent_rows_has_no_budget(service, serve, http):
    service.card = replace(service.card, has_latents=True)
    url = await serve(service)
    for budget, status in ((0.5, 400), (1, 200), (None, 200)):
        asked = {"prompt": "x", "kv_budget": budget}
        async with http.post(f"{url}/generate", json=asked) as response:
            body = await response.json()
            assert response.status == status, body
            assert status == 200 or "leave 'kv_budget' out" in body["error"]["message"]


async def test_defaults(service, serve, http):
    url = await serve(service)
    nulls = {"temperature": None, "seed": None, "stop": None, "stream": None, "logprobs": None}
    for extra in ({}, nulls):
        async with http.post(f"{url}/generate", json={"prompt": "x"} | extra) as response:
            assert response.status == 200
    first, second = (request.sampling for request in service.requests)
    assert (first.max_tokens, first.temperature, first.top_p, first.top_k) == (128, 1.0, 1.0, 0)
    assert first.stop_token_ids == (3,) and first.logprobs is None
    assert first.seed != second.seed, "a seed that was not given is drawn afresh"


async def test_default_length_shrinks_to_what_is_left(service, serve, http):
    url = await serve(service)
    async with http.post(f"{url}/generate", json={"prompt_token_ids": [5] * 190}) as response:
        assert response.status == 200
    assert service.requests[0].sampling.max_tokens == 10


async def test_ignore_eos_leaves_only_the_users_stop_tokens(service, serve, http):
    url = await serve(service)
    request = {"prompt": "x", "ignore_eos": True, "stop_token_ids": [8]}
    async with http.post(f"{url}/generate", json=request) as response:
        assert response.status == 200
    assert service.requests[0].sampling.stop_token_ids == (8,)


async def test_logprobs_hold_only_json_numbers(service, serve, http):
    url = await serve(service)
    request = {"prompt": "x", "max_tokens": 1, "logprobs": 3}
    async with http.post(f"{url}/generate", json=request) as response:
        (one,) = (await response.json())["logprobs"]
    assert one == {
        "token_id": 97,
        "logprob": -0.5,
        "top": [
            {"token_id": 97, "logprob": -0.5},
            {"token_id": 98, "logprob": -1.5},
            {"token_id": 99, "logprob": -9999.0},
        ],
    }


@pytest.mark.parametrize(
    "logprob, shown",
    [(-0.5, -0.5), (1e-7, 0.0), (math.inf, 0.0), (-math.inf, -9999.0), (math.nan, -9999.0)],
)
def test_no_tail_makes_an_answer_that_is_no_json(logprob, shown):
    assert finite(logprob) == shown


async def test_a_long_prompt_is_encoded_too(service, serve, http):
    url = await serve(service)
    async with http.post(f"{url}/generate", json={"prompt": "x" * 9_000}) as response:
        assert response.status == 400
        error = (await response.json())["error"]
    assert error["code"] == "context_length_exceeded"
    assert "9001" in error["message"] and "200" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_event_has_a_status(service, serve, http, stream):
    url = await serve(service)
    cases = [
        (RingError("The ring is draining: try again."), 503, "server_error"),
        (InvalidRequestError("Too long: shorten it.", "prompt"), 400, "invalid_request_error"),
        (ZeroDivisionError("secret"), 500, "server_error"),
    ]
    for service.failure, status, kind in cases:
        request = {"prompt": "x", "stream": stream}
        async with http.post(f"{url}/generate", json=request) as response:
            assert response.status == status
            assert ("Retry-After" in response.headers) == (status == 503)
            error = (await response.json())["error"]
        assert error["type"] == kind and "secret" not in error["message"]


async def test_a_failure_in_the_middle_is_an_event(service, serve, http, caplog):
    service.failure, service.events_before_failure = ZeroDivisionError("secret"), 2
    url = await serve(service)
    async with http.post(f"{url}/generate", json={"prompt": "x", "stream": True}) as response:
        assert response.status == 200
        events = await events_of(response)
    assert [json.loads(event).get("text") for event in events] == ["a", "b", None]
    error = json.loads(events[-1])["error"]
    assert error["code"] == "internal_error" and "secret" not in error["message"]
    assert "ZeroDivisionError: secret" in caplog.text


def test_times_count_from_arrival_and_between_tokens():
    clock = iter([10.5, 11.0, 12.5])
    stopwatch = Stopwatch(lambda: next(clock), arrived_s=10.0)
    assert stopwatch.timing() == {"ttft_s": None, "tpot_s": None, "total_s": None}
    stopwatch.tokens_came(1)
    assert stopwatch.timing() == {"ttft_s": 0.5, "tpot_s": None, "total_s": 0.5}
    stopwatch.tokens_came(1)
    stopwatch.tokens_came(3)
    assert stopwatch.timing() == {"ttft_s": 0.5, "tpot_s": 0.5, "total_s": 2.5}
