"""Who is let in without a key: from which host and origin, and where one is wanted."""

import pytest

from molink.api.access import open_access
from molink.api.keys.store import KEY_PREFIX, KeyStore
from molink.client.api_client import is_loopback
from molink.errors import UserError
from tests.api.access.keyed_server import Server, ask, post

OURS = ["localhost", "LOCALHOST:80", "127.0.0.1:9", "[::1]:8000", "192.0.2.7", "home.example"]
FOREIGN = ["attacker.example", "127.0.0.1.attacker.example", "localhost.attacker.example", "", "["]


async def test_on_loopback_a_key_is_needed_once_there_is_one(keyless, http):
    with keyless.store.temporary_admin(keyless.unix_s) as (_, own):
        for key in (None, "none", "unused", own):
            assert (await post(http, keyless, key))[0] == 200
            assert (await ask(http, keyless, "/cluster", key))[0] == 200
    made = keyless.key(name="anna", scope="admin")
    for key, status in ((None, 401), ("none", 401), (made, 200)):
        assert (await post(http, keyless, key))[0] == status
        assert (await ask(http, keyless, "/cluster", key))[0] == status
    keyless.store.revoke("anna", keyless.unix_s)
    assert (await post(http, keyless))[0] == 401, "nor does it open when the last one ends"


@pytest.mark.parametrize(
    "header", ["Forwarded", "X-Forwarded-For", "x-forwarded-proto", "X-Real-IP", "via"]
)
async def test_what_a_proxy_passes_on_needs_a_key(keyless, http, header):
    for path in ("/v1/models", "/cluster"):
        status, error = await ask(http, keyless, path, **{header: "203.0.113.7"})
        assert status == 401 and header.title() in error["message"]
        assert "molink key create" in error["message"] and error["message"].count(".") == 1
    assert (await ask(http, keyless, "/health", **{header: "x"}))[0] == 200
    key = keyless.key(scope="admin")
    assert (await ask(http, keyless, "/cluster", key, **{header: "x"}))[0] == 200


async def test_who_lets_everybody_ask_lets_nobody_watch_or_order(tmp_path, service, http):
    made = Server(tmp_path)
    await made.start(service, no_keys=True)
    user, proxied = made.key(), {"X-Forwarded-For": "203.0.113.7"}
    for key, headers in ((None, {}), ("none", proxied), (user, {})):
        assert (await post(http, made, key, **headers))[0] == 200
        assert (await ask(http, made, "/cluster", key, **headers))[0] in (401, 403)
    assert (await ask(http, made, "/cluster", made.key(scope="watch")))[0] == 200
    await made.stop()


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
            assert access.lets_in("inference", proxied=False) is (is_ours_alone or no_keys)
            assert access.lets_in("watch", proxied=False) is is_ours_alone
            assert not access.lets_in("admin", proxied=False)
            assert (access.hint is None) is (is_ours_alone or no_keys)
            who = "everybody" if no_keys else "on this machine" if is_ours_alone else "has a key"
            assert who in access.rules and "\n" not in access.rules


async def test_keys_are_read_where_there_may_be_any(tmp_path):
    async with open_access("localhost", tmp_path, ["A.b"], no_keys=False, make=False) as access:
        assert access.keys is not None and "a.b" in access.host_names
    no_folder = tmp_path / "file"
    no_folder.touch()
    async with open_access("localhost", no_folder, [], no_keys=False, make=False) as access:
        assert access.keys is None and access.lets_in("watch", proxied=False)
    for host, make in (("0.0.0.0", False), ("localhost", True)):
        with pytest.raises(UserError):
            async with open_access(host, no_folder, [], no_keys=False, make=make):
                pass
    (tmp_path / "keys.sqlite").write_bytes(b"damaged" * 1000)
    with pytest.raises(UserError):
        async with open_access("localhost", tmp_path, [], no_keys=False, make=False):
            pass


async def test_what_was_used_is_written_at_the_end(tmp_path):
    async with open_access("0.0.0.0", tmp_path, [], no_keys=False, make=True) as access:
        store = KeyStore.open(tmp_path)
        assert "molink key create" in access.hint
        key, _ = store.create(0.0)
        assert access.hint is None
        access.keys.usage(key).requests += 1
    assert store.list_keys()[0].usage.requests == 1
    store.close()
