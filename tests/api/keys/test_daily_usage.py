"""Usage by day, and the quota of a day."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.api.keys.daily_usage import DAY_S, DAYS_KEPT, DayUsage, day_of, until_next_day_s
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import KEEP_ENDED_S, KeyStore, KeyUsage
from molink.api.keys.wishes import TOKENS_PER_DAY_MAX
from molink.errors import UserError
from molink.report.requests import KeyReport

NOON = datetime(2026, 11, 29, 12, tzinfo=UTC).timestamp()


@pytest.fixture
def store(tmp_path):
    opened = KeyStore.open(tmp_path)
    yield opened
    opened.close()


def test_each_day_has_a_row_of_each_key(store):
    anna, ben = (store.create(NOON, name=name)[0] for name in ("anna", "ben"))
    store.add_usage({anna.key_id: KeyUsage(1, 10, 100), ben.key_id: KeyUsage(1, 1, 1)}, NOON)
    store.add_usage({anna.key_id: KeyUsage(2, 20, 200), "unknown": KeyUsage(9, 9, 9)}, NOON + 60)
    store.add_usage({anna.key_id: KeyUsage(1, 5, 5)}, NOON + DAY_S / 2)
    assert store.days_since(NOON) == [
        DayUsage("2026-11-29", anna.key_id, "anna", 3, 30, 300),
        DayUsage("2026-11-29", ben.key_id, "ben", 1, 1, 1),
        DayUsage("2026-11-30", anna.key_id, "anna", 1, 5, 5),
    ]
    assert [one.day for one in store.days_since(NOON + DAY_S)] == ["2026-11-30"]


def test_a_days_record_outlives_its_key(store):
    key, _ = store.create(NOON, name="anna")
    store.add_usage({key.key_id: KeyUsage(1, 10, 100)}, NOON)
    store.revoke("anna", NOON)
    store.create(NOON + KEEP_ENDED_S + DAY_S)
    assert len(store.list_keys()) == 1
    (row,) = store.days_since(NOON)
    assert (row.name, row.answer_tokens) == ("anna", 100)


def test_days_are_forgotten_after_a_year_and_more(store):
    key, _ = store.create(NOON)
    for days in (0, DAYS_KEPT, DAYS_KEPT + 1):
        store.add_usage({key.key_id: KeyUsage(1, 0, 0)}, NOON + days * DAY_S)
    assert len(store.days_since(0.0)) == 2


@given(st.floats(0, 4e9))
@settings(max_examples=200)
def test_a_day_ends_at_utcs_midnight(unix_s):
    left_s = until_next_day_s(unix_s)
    assert 0 < left_s <= DAY_S
    assert day_of(unix_s + left_s + 1e-3) != day_of(unix_s) == day_of(unix_s + left_s - 1e-3)


class Clock:
    now = NOON

    def __call__(self) -> float:
        return self.now


async def test_a_quota_counts_what_is_written_and_what_is_not(tmp_path, store):
    clock = Clock()
    opened = KeyStore.open(tmp_path)
    key, secret = store.create(NOON, tokens_per_day=100)
    keys = LiveKeys(opened, clock=clock)
    assert keys.find(secret) == key and keys.quota_left(key) == 100
    keys.usage(key).prompt_tokens = 30
    assert keys.quota_left(key) == 70
    await keys.settle(store)
    keys.find(secret)
    keys.usage(key).answer_tokens = 90
    assert keys.quota_left(key) == 0, "never less than nothing"
    await keys.settle(store)
    clock.now += DAY_S
    assert keys.quota_left(key) == 100
    clock.now -= DAY_S
    assert keys.quota_left(key) == 0, "a restart would read the same"
    free, _ = store.create(NOON)
    assert keys.quota_left(free) is None
    opened.close()


async def test_who_watches_is_told_of_usable_keys_by_name(tmp_path, store):
    opened = KeyStore.open(tmp_path)
    keys = LiveKeys(opened, clock=Clock())
    ben, _ = store.create(NOON, name="ben", tokens_per_day=100)
    anna, _ = store.create(NOON, name="anna")
    store.revoke(store.create(NOON, name="carl")[0].key_id, NOON)
    with store.temporary_admin(NOON):
        keys.usage(ben).answer_tokens = 30
        assert keys.reports() == (
            KeyReport(anna.key_id, "anna", 0),
            KeyReport(ben.key_id, "ben", 30, 100),
        )
    await keys.settle(store)
    assert [one.tokens_today for one in keys.reports()] == [0, 30]
    opened.close()


@pytest.mark.parametrize("tokens", [0, -1, TOKENS_PER_DAY_MAX + 1])
def test_a_quota_that_is_none_is_refused(store, tokens):
    with pytest.raises(UserError, match="--tokens-per-day"):
        store.create(NOON, tokens_per_day=tokens)
