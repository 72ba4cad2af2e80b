"""What a key opens, how often, until when, and what is kept of its use."""

import asyncio
import logging

import openai
import pytest

from molink.api.callers import CALLERS
from molink.api.keys.store import KEY_PREFIX, ROTATED_S
from molink.errors import RingError
from tests.api.access.keyed_server import MODEL, PROMPT, ask, bearer, post

OPEN = ["/health", "/", "/page/main.js"]
INFERENCE = ["/v1/models", f"/v1/models/{MODEL}", "/ring"]
WATCH = [
    "/cluster",
    "/cluster/requests",
    "/cluster/events",
    "/cluster/findings",
    "/plan",
    "/catalogue",
]
NOWHERE = ["/weights/manifest", "/nothing"]


async def test_what_each_key_opens(server, http):
    keys = {scope: server.key(scope=scope) for scope in ("inference", "watch", "admin")}
    keys = {"none": None} | keys
    paths = OPEN + INFERENCE + WATCH + NOWHERE
    opened = {
        name: [p for p in paths if (await ask(http, server, p, key))[0] < 400]
        for name, key in keys.items()
    }
    assert opened == {
        "none": OPEN,
        "inference": OPEN + INFERENCE,
        "watch": OPEN + WATCH,
        "admin": OPEN + INFERENCE + WATCH,
    }
    statuses = [(await post(http, server, key))[0] for key in keys.values()]
    assert statuses == [401, 200, 403, 200]


async def test_metrics_are_for_keys_that_watch(server, http):
    opened = {"inference": 403, "watch": 200, "admin": 200}
    for key, status in ((None, 401), *((server.key(scope=s), n) for s, n in opened.items())):
        headers = bearer(key) if key is not None else {}
        async with http.get(f"{server.url}/metrics", headers=headers) as response:
            assert response.status == status


async def test_refusals_say_what_to_do(server, http):
    status, error = await ask(http, server, "/v1/models")
    assert (status, error["code"]) == (401, "invalid_api_key")
    assert "Authorization: Bearer KEY" in error["message"]
    status, error = await ask(http, server, "/cluster", server.key())
    assert (status, error["code"]) == (403, "insufficient_permissions")
    assert "--scope watch" in error["message"]
    assert error.keys() == {"message", "type", "param", "code"}


PERSONS = {"user": "inference", "admin": "admin"}


async def test_only_an_admin_goes_before_others(server, http, service):
    asked = {name: server.key(scope=scope) for name, scope in PERSONS.items()}
    seen = {}
    for name, key in asked.items():
        for priority in (-1, 0, 1):
            body, headers = PROMPT | {"priority": priority}, bearer(key)
            async with http.post(f"{server.url}/generate", json=body, headers=headers) as response:
                seen[name, priority] = response.status
                if response.status == 403:
                    error = (await response.json())["error"]
    assert seen.pop(("user", -1)) == 403 and set(seen.values()) == {200}
    assert (error["param"], error["code"]) == ("priority", "insufficient_permissions")
    assert [request.priority for request in service.requests] == [0, 1, -1, 0, 1]


PRIORITIES = {
    "/generate": PROMPT,
    "/v1/completions": PROMPT,
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
    "/v1/responses": {"input": "x", "max_output_tokens": 2},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2},
}


@pytest.mark.parametrize("path", PRIORITIES)
@pytest.mark.parametrize("usual", [-5, 5])
async def test_a_keys_priority_is_its_requests_default_and_best(server, http, service, path, usual):
    """Said or not: a 0 that is said is not the key's."""
    headers, statuses = bearer(server.key(priority=usual)), []
    for said in (None, usual - 1, usual, 0, 6):
        body = PRIORITIES[path] | {"model": MODEL} | ({} if said is None else {"priority": said})
        async with http.post(f"{server.url}{path}", json=body, headers=headers) as response:
            statuses.append(response.status)
    first = usual <= 0
    assert statuses == [200, 403, 200, 200 if first else 403, 200]
    given = [usual, usual, 0, 6] if first else [usual, usual, 6]
    assert [request.priority for request in service.requests] == given


async def test_an_admins_key_has_a_default_and_no_best(server, http, service):
    headers = bearer(server.key(scope="admin", priority=5))
    for said in ({}, {"priority": None}, {"priority": 0}, {"priority": -9}):
        body = PROMPT | said
        async with http.post(f"{server.url}/generate", json=body, headers=headers) as response:
            assert response.status == 200
    assert [request.priority for request in service.requests] == [5, 5, 0, -9]


async def test_without_keys_everybody_may_go_first(keyless, http, service):
    body = PROMPT | {"priority": -5}
    async with http.post(f"{keyless.url}/generate", json=body) as response:
        assert response.status == 200
    assert [request.priority for request in service.requests] == [-5]


async def test_a_key_has_no_more_rights_where_none_is_needed(keyless, http, service):
    headers = bearer(keyless.key(priority=7))
    async with http.post(
        f"{keyless.url}/generate", json=PROMPT | {"priority": -5}, headers=headers
    ) as response:
        assert response.status == 403
    assert (await post(http, keyless, keyless.key(priority=7)))[0] == 200
    assert [request.priority for request in service.requests] == [7]
    assert (await ask(http, keyless, "/cluster", keyless.key()))[0] == 403


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer x", f"Bearer {KEY_PREFIX}", "Basic a2V5OmtleQ==", "\x80"],
)
async def test_what_is_no_key_opens_nothing(server, http, header):
    server.key()
    for path in INFERENCE + WATCH + NOWHERE:
        assert (await ask(http, server, path, Authorization=header))[0] == 401


async def test_a_key_as_anthropics_clients_send_it(server, http):
    headers = {"X-Api-Key": server.key(), "anthropic-version": "2023-06-01"}
    assert (await post(http, server, **headers))[0] == 200
    for path in ("/tokenize", "/detokenize", "/v1/nothing"):
        url = server.url + path
        async with http.post(url, json={}) as shut, http.post(url, json={}, headers=headers) as let:
            assert (shut.status, let.status in (400, 404)) == (401, True), path
    wrong = {**headers, "X-Api-Key": f"{KEY_PREFIX}x"}
    assert (await post(http, server, **wrong))[0] == 401
    assert (await post(http, server, "x", **headers))[0] == 401, "a bearer's key comes first"


async def test_a_key_is_refused_from_its_revocation_on(server, http):
    key = server.key(name="anna")
    assert (await post(http, server, key))[0] == 200
    server.store.revoke("anna", server.unix_s)
    status, error, _ = await post(http, server, key)
    assert status == 401 and "revoked" in error["message"]
    assert "molink key create" in error["message"]


async def test_that_a_revoked_key_is_used_becomes_an_event_once_a_minute(service, server, http):
    key = server.key(name="anna")
    server.store.revoke("anna", server.unix_s)
    for later_s, told in ((0, 1), (59, 1), (1, 2)):
        server.unix_s += later_s
        assert (await post(http, server, key))[0] == 401
        found = [one for one in service.events.after(0) if one.kind == "key_refused"]
        assert len(found) == told
    assert "the key 'anna'" in found[0].text and "is revoked" in found[0].text


async def test_a_key_expires(server, http):
    key = server.key(expires_s=60)
    server.unix_s += 59
    assert (await post(http, server, key))[0] == 200
    server.unix_s += 1
    status, error, _ = await post(http, server, key)
    assert status == 401 and "expired" in error["message"]


async def test_a_rotated_keys_old_secret_leads_to_the_new_one(service, server, http):
    old = server.key(name="anna")
    new = server.store.rotate("anna", server.unix_s)[1]
    assert (await post(http, server, old))[0] == 200
    server.unix_s += ROTATED_S
    status, error, _ = await post(http, server, old)
    assert status == 401 and "replaced by a new one on 1970-01-12" in error["message"]
    assert "key create" not in error["message"]
    (told,) = [one.text for one in service.events.after(0) if one.kind == "key_refused"]
    assert "was rotated on 1970-01-12" in told and "its old secret" in told
    assert (await post(http, server, new))[0] == 200


async def test_a_rate_is_told_and_kept(server, http):
    key, other = server.key(rate_per_min=2), server.key()
    seen = [(await post(http, server, key)) for _ in range(3)]
    assert [status for status, *_ in seen] == [200, 200, 429]
    names = ("limit", "remaining", "reset")
    told = [[one[2][f"x-ratelimit-{name}-requests"] for name in names] for one in seen]
    assert told == [["2", "1", "30s"], ["2", "0", "1m0s"], ["2", "0", "1m0s"]]
    _, error, headers = seen[2]
    assert (error["code"], headers["Retry-After"]) == ("rate_limit_exceeded", "30")
    assert (await post(http, server, other))[0] == 200
    assert (await ask(http, server, "/v1/models", key))[0] == 200, "only posts are counted"
    server.now_s += 30
    assert [(await post(http, server, key))[0] for _ in range(2)] == [200, 429]


async def test_a_quota_of_tokens_ends_with_the_day(server, http):
    key, other = server.key(tokens_per_day=3), server.key()
    assert (await post(http, server, key))[0] == 200
    await server.keys.settle(server.store)
    status, error, headers = await post(http, server, key)
    assert (status, error["code"]) == (429, "insufficient_quota")
    wait_s = int(headers["Retry-After"])
    hours, minutes = divmod(-(-wait_s // 60), 60)
    assert "3 tokens a day" in error["message"]
    assert f"wait {hours} h {minutes} min, until midnight UTC" in error["message"]
    assert (await post(http, server, other))[0] == 200
    server.unix_s += wait_s
    assert (await post(http, server, key))[0] == 200


async def test_a_stream_tells_the_rate_too(server, http):
    headers = bearer(server.key(rate_per_min=120))
    body = PROMPT | {"stream": True}
    async with http.post(f"{server.url}/generate", json=body, headers=headers) as response:
        assert response.headers["x-ratelimit-remaining-requests"] == "119"
        assert response.headers["x-ratelimit-reset-requests"] == "500ms"
        await response.read()


async def test_usage_is_counted_for_each_key(server, http):
    key = server.key(name="anna")
    server.key(name="ben")
    await post(http, server, key)
    async with http.post(
        f"{server.url}/v1/completions",
        json={"prompt": ["ab", "c"], "n": 2, "max_tokens": 3, "stream": True},
        headers=bearer(key),
    ) as response:
        await response.read()
    await server.keys.settle(server.store)
    used = {one.key.name: one.usage for one in server.store.list_keys()}
    assert (used["anna"].requests, used["anna"].prompt_tokens) == (2, 2 + 3 + 2)
    assert (used["anna"].answer_tokens, used["anna"].last_used) == (2 + 4 * 3, server.unix_s)
    assert (used["ben"].requests, used["ben"].last_used) == (0, None)


async def test_tokens_of_an_answer_that_is_broken_off_count(server, http, service):
    key = server.key()
    service.events_before_failure, service.failure = 1, RingError("lost")
    await post(http, server, key)
    await server.keys.settle(server.store)
    assert server.store.list_keys()[0].usage.answer_tokens == 1


async def test_a_request_carries_the_id_of_its_key(server, http, service):
    key = server.key(name="anna")
    await post(http, server, key)
    assert service.requests[0].key_id == server.store.list_keys()[0].key.key_id


async def test_places_are_shared_by_key_and_not_by_address(server, http, service):
    service.events_before_hold = 0
    first, second = server.key(name="first"), server.key(name="second")
    tasks = [asyncio.create_task(post(http, server, key)) for key in (first, second, second)]
    for _ in tasks:
        await service.holding.acquire()
    callers, ids = server.app[CALLERS], [one.key for one in server.store.list_keys()]
    assert [callers.find("127.0.0.1", key).sequences for key in ids] == [1, 2]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_key_is_ever_logged(server, http, caplog):
    key = server.key()
    with caplog.at_level(logging.DEBUG):
        await post(http, server, key)
        await post(http, server, key + "x")
        server.store.revoke(server.store.list_keys()[0].key.key_id, server.unix_s)
        _, error, _ = await post(http, server, key)
    assert key not in caplog.text and key not in str(error)


async def test_openais_client_works_with_a_key(server):
    key = server.key(rate_per_min=1)
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as one:
        answer = await one.completions.create(model=MODEL, prompt="x", max_tokens=2)
        assert answer.choices[0].text == "ab"
        with pytest.raises(openai.RateLimitError, match="requests a minute"):
            await one.completions.create(model=MODEL, prompt="x")
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="no", max_retries=0) as one:
        with pytest.raises(openai.AuthenticationError, match="get a new one"):
            await one.models.list()
