"""Keys on disk: what is kept of them, who may have one, how long."""

from dataclasses import replace

import pytest

from molink.api.keys.store import (
    KEEP_ENDED_S,
    KEY_PREFIX,
    KEYS_MAX,
    MIGRATIONS,
    ROTATED_S,
    TEMPORARY_S,
    KeyRecord,
    KeyStore,
    KeyUsage,
    digest_of,
)
from molink.api.keys.wishes import CONCURRENCY_MAX
from molink.control.sqlite_file import open_database
from molink.errors import UserError
from molink_scheduler.request import PRIORITY_MAX

NOW = 1_000_000.0


@pytest.fixture
def store(tmp_path):
    opened = KeyStore.open(tmp_path / "data")
    yield opened
    opened.close()


def test_only_a_hash_is_kept(store):
    key, secret = store.create(NOW, name="anna")
    assert secret.startswith(KEY_PREFIX) and len(secret) > 50
    files = [file for file in store.path.parent.iterdir() if file.is_file()]
    assert any(digest_of(secret) in file.read_bytes() for file in files)
    for file in files:
        assert secret.encode() not in file.read_bytes()
        assert secret.removeprefix(KEY_PREFIX).encode() not in file.read_bytes()
        assert file.stat().st_mode & 0o077 == 0, file
    assert store.by_digest() == {digest_of(secret): key}
    assert secret not in repr((key, store.list_keys(), store))


def test_no_two_keys_are_alike(store):
    assert len({store.create(NOW)[1] for _ in range(50)}) == 50
    assert len({one.key.key_id for one in store.list_keys()}) == 50


def test_a_key_is_what_was_wished_for(store):
    key, _ = store.create(NOW, name="ben", scope="admin", rate_per_min=60, expires_s=10)
    assert (key.name, key.scope, key.rate_per_min) == ("ben", "admin", 60)
    assert [key.state(NOW + after_s) for after_s in (0, 9.9, 10)] == ["usable", "usable", "expired"]
    endless, _ = store.create(NOW)
    assert endless.state(NOW * 1e6) == "usable"
    assert [one.key for one in store.list_keys()] == [key, endless]


@pytest.mark.parametrize("priority", [-PRIORITY_MAX, -1, 0, 7, PRIORITY_MAX])
def test_a_key_has_a_priority(store, priority):
    key, secret = store.create(NOW, priority=priority)
    assert key.priority == priority
    assert store.by_digest() == {digest_of(secret): key}
    assert store.list_keys()[0].key == key


@pytest.mark.parametrize("version", range(1, len(MIGRATIONS)))
def test_keys_of_an_older_file_open_what_they_did(tmp_path, version):
    older = open_database(tmp_path / "keys.sqlite", MIGRATIONS[:version])
    column, anna, ben = ("is_admin", 1, 0) if version < 3 else ("scope", "admin", "inference")
    with older:
        older.executemany(
            f"INSERT INTO keys (id, digest, name, {column}, created, requests) "
            "VALUES (?, ?, ?, ?, ?, 3)",
            [("a1", b"1", "anna", anna, NOW), ("b2", b"2", "ben", ben, NOW)],
        )
    older.close()
    store = KeyStore.open(tmp_path)
    record, other = store.list_keys()
    assert (record.key.name, record.key.scope, record.key.priority) == ("anna", "admin", 0)
    assert (other.key.name, other.key.scope, other.key.is_temporary) == ("ben", "inference", False)
    assert record.usage.requests == 3 and set(store.by_digest()) == {b"1", b"2"}
    assert store.create(NOW, priority=5)[0].priority == 5
    assert record.key.concurrency is None and record.usage.refused == 0
    limited, _ = store.create(NOW, concurrency=2)
    store.add_usage({limited.key_id: KeyUsage(3, refused=1)}, NOW)
    assert store.list_keys()[-1] == KeyRecord(limited, KeyUsage(3, refused=1))
    assert store.days_since(NOW)[0].refused == 1
    store.close()


@pytest.mark.parametrize(
    "wish",
    [
        {"name": "x" * 61},
        {"name": "two\nlines"},
        {"name": " x"},
        {"name": "\x1b[2J"},
        {"rate_per_min": 0},
        {"priority": PRIORITY_MAX + 1},
        {"priority": -PRIORITY_MAX - 1},
        {"rate_per_min": 10**9},
        {"concurrency": 0},
        {"concurrency": CONCURRENCY_MAX + 1},
        {"expires_s": 0},
        {"expires_s": float("inf")},
        {"expires_s": float("nan")},
    ],
    ids=str,
)
def test_impossible_wishes_are_refused(store, wish):
    with pytest.raises(UserError):
        store.create(NOW, **wish)
    assert store.list_keys() == []


def test_a_name_is_taken_while_its_key_is_usable(store):
    store.create(NOW, name="anna", expires_s=10)
    with pytest.raises(UserError, match="anna"):
        store.create(NOW + 9, name="anna")
    second, _ = store.create(NOW + 10, name="anna")
    assert store.revoke("anna", NOW + 11).key_id == second.key_id
    with pytest.raises(UserError, match="anna"):
        store.revoke("anna", NOW + 12)


def test_a_key_is_revoked_by_its_id_even_if_that_is_anothers_name(store):
    key, _ = store.create(NOW)
    other, _ = store.create(NOW, name=key.key_id)
    assert store.revoke(key.key_id, NOW) == key
    states = {one.key.key_id: one.key.state(NOW) for one in store.list_keys()}
    assert states == {key.key_id: "revoked", other.key_id: "usable"}


def test_what_has_ended_is_listed_for_a_while(store):
    key, _ = store.create(NOW, name="old")
    store.revoke("old", NOW)
    store.create(NOW + KEEP_ENDED_S)
    assert store.list_keys()[0].key == replace(key, revoked=NOW)
    store.create(NOW + KEEP_ENDED_S + 1)
    assert key.key_id not in [one.key.key_id for one in store.list_keys()]


def test_usage_is_added_up(store):
    key, _ = store.create(NOW)
    store.add_usage(
        {key.key_id: KeyUsage(1, 10, 100, NOW, 1), "unknown": KeyUsage(1, 1, 1, NOW)}, NOW
    )
    store.add_usage({key.key_id: KeyUsage(2, 0, 5, None, 2)}, NOW)
    (record,) = store.list_keys()
    assert record.usage == KeyUsage(3, 10, 105, NOW, 3)


def test_a_temporary_key_is_gone_afterwards(store):
    with store.temporary_admin(NOW) as (made, secret):
        key = store.by_digest()[digest_of(secret)]
        assert key == made and (key.scope, key.is_temporary) == ("admin", True)
        assert key.state(NOW + TEMPORARY_S) == "expired"
        store.renew(key, NOW + 50)
        renewed = store.by_digest()[digest_of(secret)]
        assert renewed.state(NOW + TEMPORARY_S) == "usable"
        assert renewed.state(NOW + 50 + TEMPORARY_S) == "expired"
    assert store.list_keys() == []


def test_what_killed_commands_leave_is_cleared_by_the_next(store):
    left = store.temporary_admin(NOW)
    left.__enter__()
    with store.temporary_admin(NOW + TEMPORARY_S - 1):
        assert len(store.list_keys()) == 2
    with store.temporary_admin(NOW + TEMPORARY_S + 1) as (key, _):
        assert [one.key for one in store.list_keys()] == [key]


def test_a_rotated_key_has_two_secrets_for_a_day(store):
    key, first = store.create(NOW, name="anna", scope="watch", priority=3)
    rotated, second = store.rotate("anna", NOW)
    assert rotated == key and second != first and second.startswith(KEY_PREFIX)
    found = store.by_digest()
    assert found[digest_of(second)] == key
    old = found[digest_of(first)]
    assert old == replace(key, expires=NOW + ROTATED_S, rotated=NOW)
    assert [old.state(NOW + one) for one in (ROTATED_S - 1, ROTATED_S)] == ["usable", "rotated"]
    assert [record.key for record in store.list_keys()] == [key]
    _, third = store.rotate(key.key_id, NOW + 1)
    assert set(store.by_digest()) == {digest_of(second), digest_of(third)}
    store.revoke("anna", NOW + 2)
    assert {one.state(NOW + 3) for one in store.by_digest().values()} == {"revoked"}


def test_a_rotated_key_expires_as_before(store):
    key, first = store.create(NOW, expires_s=60)
    _, second = store.rotate(key.key_id, NOW + 1)
    for secret in (first, second):
        assert store.by_digest()[digest_of(secret)].expires == NOW + 60
        assert store.by_digest()[digest_of(secret)].state(NOW + 60) == "expired"
    with pytest.raises(UserError, match="is expired"):
        store.rotate(key.key_id, NOW + 60)
    with pytest.raises(UserError, match="no usable key"):
        store.rotate("nobody", NOW)


def test_there_is_an_end_to_keys(store, monkeypatch):
    monkeypatch.setattr("molink.api.keys.store.KEYS_MAX", 3)
    for _ in range(3):
        store.create(NOW)
    with pytest.raises(UserError, match="revoke some"):
        store.create(NOW)
    assert KEYS_MAX >= 1000


@pytest.fixture
def other(tmp_path):
    """The keys of a second server of the same cluster."""
    opened = KeyStore.open(tmp_path / "other")
    yield opened
    opened.close()


def states(store, now=NOW):
    return {one.key.name: one.key.state(now) for one in store.list_keys()}


def test_what_is_done_to_keys_of_another_store_holds_here(store, other):
    anna, old = store.create(NOW, name="anna", tokens_per_day=9)
    store.create(NOW, name="ben")
    with store.temporary_admin(NOW):
        other.adopt(store, NOW)
    assert other.by_digest() == store.by_digest()
    other.add_usage({anna.key_id: KeyUsage(3, 2, 1, NOW)}, NOW)
    _, new = store.rotate("anna", NOW)
    store.revoke("ben", NOW)
    for _ in range(2):
        other.adopt(store, NOW)
    assert states(other) == {"anna": "usable", "ben": "revoked"}
    assert other.by_digest()[digest_of(old)].expires == NOW + ROTATED_S
    assert other.by_digest()[digest_of(new)] == anna
    assert other.list_keys()[0].usage == KeyUsage(3, 2, 1, NOW), "each counts by itself"


def test_what_was_done_here_stays(store, other):
    for name in ("anna", "ben"):
        store.create(NOW, name=name)
    other.adopt(store, NOW)
    other.revoke("ben", NOW)
    store.rotate("anna", NOW)
    _, latest = other.rotate("anna", NOW + 1)
    other.adopt(store, NOW + 1)
    assert states(other) == {"anna": "usable", "ben": "revoked"}
    assert digest_of(latest) in other.by_digest()
    later = NOW + KEEP_ENDED_S + 2
    other.create(later, name="new")
    other.adopt(store, later)
    assert states(other, later) == {"anna": "usable", "new": "usable"}, "ben is not taken anew"
