"""How many requests of a key are under way at the same time."""

import asyncio

import openai
import pytest

from molink.api.access import Access
from molink.api.callers import CALLERS
from tests.api.access.keyed_server import MODEL, PROMPT, bearer
from tests.api.test_kept import KeepingService, live  # noqa: F401 - a fixture

HELLO = [{"role": "user", "content": "x"}]
ASKED = {
    "/generate": PROMPT,
    "/v1/completions": PROMPT | {"n": 3},
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 2, "n": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/messages": {"messages": HELLO, "max_tokens": 2},
}
LIMIT_S = 20
"""Only a hung test reaches this."""


async def asked(http, server, key, path="/generate", **more):
    """Status, error and headers."""
    body = ASKED[path] | {"model": MODEL} | more
    async with http.post(f"{server.url}{path}", json=body, headers=bearer(key)) as response:
        text = await response.text()
        error = (await response.json())["error"] if response.status >= 400 else None
        return response.status, error or text, response.headers


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ASKED)
async def test_a_request_beyond_the_keys_number_is_refused(server, http, service, path, stream):
    """A request counts once, however many choices it asks for."""
    service.events_before_hold = 0
    key, other = server.key(concurrency=1), server.key()
    first = asyncio.create_task(asked(http, server, key, path))
    await service.holding.acquire()
    status, error, headers = await asked(http, server, key, path, stream=stream)
    assert (status, headers["Retry-After"]) == (429, "5")
    assert "1 of 1 requests under way" in error["message"]
    if path == "/v1/messages":
        assert error["type"] == "rate_limit_error"
    else:
        assert (error["type"], error["code"]) == ("requests", "concurrency_limit_exceeded")
    second = asyncio.create_task(asked(http, server, other, path))
    service.goes_on.set()
    assert [(await one)[0] for one in (first, second)] == [200, 200]
    assert (await asked(http, server, key, path, stream=stream))[0] == 200


async def test_as_many_as_the_key_has(server, http, service):
    service.events_before_hold = 0
    key = server.key(concurrency=3)
    running = [asyncio.create_task(asked(http, server, key)) for _ in range(3)]
    for _ in running:
        await service.holding.acquire()
    assert (await asked(http, server, key))[0] == 429
    service.goes_on.set()
    assert [(await one)[0] for one in running] == [200] * 3


async def test_a_dropped_stream_frees_its_place(server, http, service):
    service.events_before_hold = 1
    key = server.key(concurrency=1)
    body = PROMPT | {"stream": True}
    async with asyncio.timeout(LIMIT_S):
        response = await http.post(f"{server.url}/generate", json=body, headers=bearer(key))
        assert (await asked(http, server, key))[0] == 429
        response.close()
        await service.closed.acquire()
        service.goes_on.set()
        assert (await asked(http, server, key))[0] == 200


async def test_a_request_that_fails_frees_its_place(server, http, service):
    key = server.key(concurrency=1)
    for _ in range(2):
        assert (await asked(http, server, key, priority=-1))[0] == 403
    assert (await asked(http, server, key))[0] == 200


async def test_refusals_are_counted_and_cost_no_tokens(server, http, service):
    service.events_before_hold = 0
    key = server.key(concurrency=1, rate_per_min=3, name="anna")
    first = asyncio.create_task(asked(http, server, key))
    await service.holding.acquire()
    codes = [(await asked(http, server, key))[1]["code"] for _ in range(3)]
    assert codes == ["concurrency_limit_exceeded"] * 2 + ["rate_limit_exceeded"]
    service.goes_on.set()
    await first
    assert server.keys.reports()[0].refused_today == 3
    await server.keys.settle(server.store)
    (record,) = server.store.list_keys()
    assert (record.usage.requests, record.usage.refused) == (4, 3)
    assert record.usage.prompt_tokens == 2, "of the one that was answered"
    (day,) = server.store.days_since(server.unix_s)
    assert (day.requests, day.refused) == (4, 3)
    (told,) = server.keys.reports()
    assert (told.concurrency, told.refused_today) == (1, 3)


async def test_what_is_not_generated_holds_no_place(server, http, service):
    service.events_before_hold = 0
    key = server.key(concurrency=1)
    first = asyncio.create_task(asked(http, server, key))
    await service.holding.acquire()
    body = {"prompt": "x"}
    async with http.post(f"{server.url}/tokenize", json=body, headers=bearer(key)) as response:
        assert response.status == 200
    service.goes_on.set()
    assert (await first)[0] == 200


async def test_an_answer_in_the_background_holds_its_place(server, serve, http, live):  # noqa: F811
    service = KeepingService()
    service.says("Hello there.")
    service.events_before_hold = 1
    url = await serve(service, live=live, access=Access(server.keys, required=True))
    key = server.key(concurrency=1)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
        begun = await client.responses.create(model=MODEL, input="x", background=True)
        with pytest.raises(openai.RateLimitError, match="1 of 1 requests under way"):
            await client.responses.create(model=MODEL, input="x")
        with pytest.raises(openai.RateLimitError, match="1 of 1 requests under way"):
            await client.responses.create(model=MODEL, input="x", background=True)
        await client.responses.cancel(begun.id)
        service.goes_on.set()
        await client.responses.create(model=MODEL, input="x")


async def test_a_server_that_starts_again_knows_the_number(server, http, service, tmp_path):
    key = server.key(concurrency=2)
    found = server.keys.find(key)
    assert server.app[CALLERS].find("127.0.0.1", found).concurrency == 2
    assert server.store.rotate(found.key_id, server.unix_s)[0].concurrency == 2
