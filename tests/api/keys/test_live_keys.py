"""Keys of a server that runs: found at once, limited by a clock, counted in batches."""

import sqlite3

import pytest

from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KEY_PREFIX, KeyStore, KeyUsage

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path):
    """As `molink key` opens it, in another process."""
    opened = KeyStore.open(tmp_path)
    yield opened
    opened.close()


@pytest.fixture
def keys(tmp_path):
    opened = KeyStore.open(tmp_path)
    yield LiveKeys(opened, clock=lambda: NOW)
    opened.close()


def test_what_a_command_writes_holds_at_once(store, keys):
    assert not keys.has_usable()
    key, secret = store.create(NOW)
    assert keys.find(secret) == key and keys.has_usable()
    store.revoke(key.key_id, NOW)
    assert keys.find(secret).state(NOW) == "revoked" and not keys.has_usable()


@pytest.mark.parametrize("secret", ["", "none", KEY_PREFIX, KEY_PREFIX + "x" * 43, "\ud800", "é"])
def test_what_is_no_key_is_none(store, keys, secret):
    store.create(NOW)
    assert keys.find(secret) is None
    assert keys.find(KEY_PREFIX + "x" * 10**6) is None


def test_the_rate_of_a_key(store, keys):
    """Six a minute: six at once, then one every ten seconds."""
    key, _ = store.create(NOW, rate_per_min=6)
    states = [keys.spend(key, 100.0) for _ in range(7)]
    assert [one.allowed for one in states] == [True] * 6 + [False]
    assert [one.remaining for one in states] == [5, 4, 3, 2, 1, 0, 0]
    assert states[0].reset_s == pytest.approx(10) and states[5].reset_s == pytest.approx(60)
    assert states[6].retry_s == pytest.approx(10) and states[5].retry_s == 0
    assert not keys.spend(key, 109.9).allowed
    assert keys.spend(key, 110.1).allowed
    assert not keys.spend(key, 110.2).allowed
    assert [keys.spend(key, 1000.0).remaining for _ in range(2)] == [5, 4]


def test_keys_do_not_share_a_rate(store, keys):
    first, second = (store.create(NOW, rate_per_min=1)[0] for _ in range(2))
    assert keys.spend(first, 0).allowed and keys.spend(second, 0).allowed
    assert not keys.spend(first, 0).allowed
    assert keys.spend(store.create(NOW)[0], 0) is None


async def test_usage_is_written_in_one_go(store, keys):
    key, _ = store.create(NOW)
    keys.usage(key).requests += 2
    keys.usage(key).answer_tokens += 7
    await keys.settle(store)
    keys.usage(key).answer_tokens += 1
    await keys.settle(store)
    await keys.settle(store)
    assert store.list_keys()[0].usage == KeyUsage(2, 0, 8, None)


async def test_usage_that_cannot_be_written_is_kept(store, keys, monkeypatch, caplog):
    key, _ = store.create(NOW)
    usage = keys.usage(key)
    usage.prompt_tokens, usage.last_used = 5, NOW
    with monkeypatch.context() as patch:

        def full(self, given, now):
            usage.prompt_tokens += 1  # Meanwhile another request has come.
            raise sqlite3.OperationalError("database or disk is full")

        patch.setattr(KeyStore, "add_usage", full)
        await keys.settle(store)
    assert "disk is full" in caplog.text
    assert (usage.prompt_tokens, usage.last_used) == (6, NOW)
    await keys.settle(store)
    assert store.list_keys()[0].usage == KeyUsage(0, 6, 0, NOW)


def test_keys_that_are_known_stay_so_while_the_file_cannot_be_read(store, keys, monkeypatch):
    key, secret = store.create(NOW)
    assert keys.find(secret) == key

    def broken(self):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(KeyStore, "changed_elsewhere", broken)
    assert keys.find(secret) == key
