"""Who shares cached KV with whom: one API key's requests, a chosen salt's, or all."""

import pytest

from molink.api.callers import CALLERS
from tests.api.access.keyed_server import PROMPT, bearer

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
BODIES = {
    "/generate": PROMPT,
    "/v1/completions": PROMPT,
    "/v1/chat/completions": CHAT,
    "/v1/messages": CHAT | {"model": "tiny/model"},
    "/v1/responses": {"input": "x", "max_output_tokens": 16},
}


async def salt_of(http, server, service, key, path="/generate", **fields):
    """With which a request is computed."""
    body = BODIES[path] | fields
    async with http.post(server.url + path, json=body, headers=bearer(key)) as response:
        assert response.status == 200, await response.text()
    return service.requests[-1].cache_salt


@pytest.mark.parametrize("path", BODIES)
async def test_requests_of_a_key_share_with_nobody_else(server, http, service, path):
    anna, ben = server.key(name="anna"), server.key(name="ben")
    salts = [await salt_of(http, server, service, key, path) for key in (anna, ben, anna)]
    assert salts[0] == salts[2] != salts[1] and all(salts)
    ids = [one.key.key_id for one in server.store.list_keys()]
    assert not any(one in salt for one in ids for salt in salts), "stages learn of no key"


@pytest.mark.parametrize("path", BODIES)
async def test_who_chooses_a_salt_shares_with_who_chooses_the_same(server, http, service, path):
    anna, ben = server.key(name="anna"), server.key(name="ben")
    own = [await salt_of(http, server, service, key, path) for key in (anna, ben)]
    chosen = [
        await salt_of(http, server, service, key, path, cache_salt="ours") for key in (anna, ben)
    ]
    assert chosen[0] == chosen[1] not in own and "ours" not in chosen[0]
    key_id = server.store.list_keys()[1].key.key_id
    guessed = await salt_of(http, server, service, anna, path, cache_salt=key_id)
    assert guessed not in own, "the id of a key is no way into its group"


async def test_all_keys_share_where_the_operator_says_so(server, http, service):
    server.app[CALLERS].shares_cache = True
    anna, ben = server.key(name="anna"), server.key(name="ben")
    salts = [await salt_of(http, server, service, key) for key in (anna, ben)]
    salts.append(await salt_of(http, server, service, anna, cache_salt="mine"))
    assert salts[0] == salts[1] == "" != salts[2]
