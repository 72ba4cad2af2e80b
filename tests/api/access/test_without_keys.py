"""Who is let in without a key: from which host and origin, and where one is wanted."""

import pytest

from molink.api.access import is_loopback, open_access
from molink.control.api_keys.store import KEY_PREFIX, KeyStore
from tests.api.access.keyed_server import ask, post

OURS = ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:8000", "192.0.2.7", "home.example"]
FOREIGN = ["attacker.example", "127.0.0.1.attacker.example", "localhost.attacker.example", "", "["]


async def test_on_loopback_a_key_is_not_needed(keyless, http):
    for key in (None, "none", "unused", keyless.key()):
        assert (await post(http, keyless, key))[0] == 200
        assert (await ask(http, keyless, "/cluster", key))[0] == 200


async def test_a_key_of_ours_that_is_not_right_is_refused_there_too(keyless, http):
    gone = keyless.key(name="anna")
    keyless.store.revoke("anna", keyless.unix_s)
    for wrong in (gone, KEY_PREFIX + "x" * 43):
        assert (await post(http, keyless, wrong))[0] == 401


@pytest.mark.parametrize("host", OURS)
async def test_hosts_that_are_ours(keyless, http, host):
    assert (await post(http, keyless, Host=host))[0] == 200


@pytest.mark.parametrize("host", FOREIGN)
async def test_a_rebound_name_is_refused(keyless, http, host):
    """A page whose name is made to point here sends its own name as the host."""
    for status, error in (
        await ask(http, keyless, "/cluster", Host=host),
        (await post(http, keyless, Host=host))[:2],
    ):
        assert (status, error["code"]) == (403, "unknown_host")
    assert (await ask(http, keyless, "/health", Host=host))[0] == 200


@pytest.mark.parametrize("origin", ["http://attacker.example", "null", "http://127.0.0.1:1"])
async def test_pages_of_other_origins_are_refused(keyless, http, origin):
    status, error, _ = await post(http, keyless, Origin=origin)
    assert (status, error["code"]) == (403, "foreign_origin")


async def test_a_page_of_this_server_may_ask(keyless, http):
    assert (await post(http, keyless, Origin=keyless.url))[0] == 200


async def test_a_key_needs_no_known_host(server, http):
    """No page has a key; a proxy may pass on any name."""
    headers = {"Host": "api.example", "Origin": "https://chat.example"}
    assert (await post(http, server, server.key(), **headers))[0] == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None]
)
async def test_what_a_page_may_post_unasked_is_refused(keyless, http, service, kind):
    headers = {} if kind is None else {"Content-Type": kind}
    async with http.post(
        f"{keyless.url}/generate", data=b'{"prompt": "x"}', headers=headers
    ) as response:
        assert response.status == 415
        assert "application/json" in (await response.json())["error"]["message"]
    assert service.requests == []


@pytest.mark.parametrize(
    ("host", "is_ours_alone"),
    [
        ("127.0.0.1", True),
        ("127.8.9.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.2", False),
        ("home.example", False),
        ("", False),
    ],
)
async def test_keys_are_wanted_beyond_loopback(tmp_path, host, is_ours_alone):
    assert is_loopback(host) is is_ours_alone
    for no_keys in (False, True):
        async with open_access(host, tmp_path, [], no_keys=no_keys, make=True) as access:
            assert access.required is not (is_ours_alone or no_keys)
            assert (access.hint is None) is (is_ours_alone or no_keys)


async def test_keys_are_read_where_there_are_any(tmp_path):
    async with open_access("localhost", tmp_path, ["A.b"], no_keys=False, make=False) as access:
        assert access.keys is None and "a.b" in access.host_names
    assert list(tmp_path.iterdir()) == []
    KeyStore.open(tmp_path).close()
    async with open_access("localhost", tmp_path, [], no_keys=False, make=False) as access:
        assert access.keys is not None


async def test_what_was_used_is_written_at_the_end(tmp_path):
    async with open_access("0.0.0.0", tmp_path, [], no_keys=False, make=True) as access:
        store = KeyStore.open(tmp_path)
        assert "molink key create" in access.hint
        key, _ = store.create(0.0)
        assert access.hint is None
        access.keys.usage(key).requests += 1
    assert store.list_keys()[0].usage.requests == 1
    store.close()
