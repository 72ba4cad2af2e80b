"""A request's id goes in, is answered, and is made where there is none."""

import re

import openai
import pytest

from molink.api.headers.request_id import REQUEST_ID_HEADER

MADE = re.compile("[0-9a-f]{24}")


async def id_of(http, url, path="/health", **request):
    async with http.get(f"{url}{path}", **request) as response:
        return response.headers[REQUEST_ID_HEADER]


@pytest.mark.parametrize("given", ["abc-123", "0" * 128, "a/b:c=d!~", "two words"])
async def test_a_good_id_comes_back(service, serve, http, given):
    assert await id_of(http, await serve(service), headers={REQUEST_ID_HEADER: given}) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "Grüße"])
async def test_any_other_is_replaced(service, serve, http, given):
    made = await id_of(http, await serve(service), headers={REQUEST_ID_HEADER: given})
    assert MADE.fullmatch(made)


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nothing", "/generate"])
async def test_every_answer_has_one_of_its_own(service, serve, http, path):
    url = await serve(service)
    first, second = [await id_of(http, url, path) for _ in range(2)]
    assert MADE.fullmatch(first) and first != second


async def test_the_official_client_finds_it_in_answer_and_error(service, serve):
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        mine = {REQUEST_ID_HEADER: "mine-1"}
        answer = await client.completions.create(model=None, prompt="a", extra_headers=mine)
        assert (answer._request_id, answer.id) == ("mine-1", "cmpl-mine-1")
        with pytest.raises(openai.NotFoundError) as caught:
            await client.completions.create(model="other", prompt="a", extra_headers=mine)
        assert caught.value.request_id == "mine-1"
        async for chunk in await client.completions.create(
            model=None, prompt="a", stream=True, extra_headers=mine
        ):
            assert chunk.id == "cmpl-mine-1"
