"""`prompt_cache_key` with the official client, unchanged: a session, and a prompt that stays."""

from dataclasses import replace

import openai
import pytest

from molink.api.requests import SESSION_KEEP_S
from tests.api.scripted import ScriptedService

HELLO = [{"role": "user", "content": "hi"}]


@pytest.fixture
def service():
    return ScriptedService()


@pytest.fixture
async def client(service, serve):
    url = await serve(service)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def by_chat(client, **fields):
    await client.chat.completions.create(model="tiny/model", messages=HELLO, **fields)


async def by_responses(client, **fields):
    await client.responses.create(model="tiny/model", input="hi", **fields)


async def by_completions(client, **fields):
    await client.completions.create(model="tiny/model", prompt="hi", extra_body=fields)


@pytest.mark.parametrize("ask", [by_chat, by_responses, by_completions])
async def test_a_session_is_named_and_its_prompt_stays(client, service, ask):
    await ask(client, prompt_cache_key="repository-7")
    (request,) = service.requests
    assert request.session == "repository-7"
    assert request.wishes == ((len(request.prompt_token_ids), SESSION_KEEP_S),)


@pytest.mark.parametrize("fields", [{}, {"prompt_cache_key": ""}])
async def test_without_a_name_there_is_none(client, service, fields):
    await by_chat(client, **fields)
    assert (service.requests[0].session, service.requests[0].wishes) == ("", ())
    assert service.requests[0].named_session == ""


async def test_sessions_of_one_name_and_several_keys_are_several(client, service):
    await by_chat(client, prompt_cache_key="a")
    await by_chat(client, prompt_cache_key="b")
    one, other = service.requests
    keyed = replace(one, key_id="k1")
    assert len({one.named_session, other.named_session, keyed.named_session}) == 3
    assert replace(keyed, prompt_token_ids=(1,)).named_session == keyed.named_session


async def test_a_name_that_is_too_long_is_refused(client, service):
    with pytest.raises(openai.BadRequestError, match="'prompt_cache_key' is too long"):
        await by_chat(client, prompt_cache_key="x" * 257)
