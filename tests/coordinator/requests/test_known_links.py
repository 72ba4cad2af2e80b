"""What is kept of links, and what a link is told of its past."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.coordinator.requests.known_links import (
    AGE_S_MAX,
    ENTRIES_MAX,
    START_MBPS_MAX,
    KnownLink,
    KnownLinks,
)
from molink_scheduler.link.facts import LinkMemory

NOW = 2e9

SOME = KnownLinks({"a -> b": KnownLink(20.0, 60.0, NOW)})


def test_a_link_is_known_by_where_it_leads_from_and_to():
    assert SOME.memory("a", "b") == LinkMemory(2.5e6, 0.06)
    assert SOME.memory("b", "a") is None


@pytest.mark.parametrize("over_mbps, remembered", [(0, True), (1, False)])
def test_a_fast_link_starts_as_if_never_met(over_mbps, remembered):
    known = KnownLinks({"a -> b": KnownLink(START_MBPS_MAX + over_mbps, 1.0, NOW)})
    assert (known.memory("a", "b") is not None) is remembered


def test_what_json_holds_is_what_was_kept():
    assert KnownLinks.from_fields(json.loads(json.dumps(SOME.fields()))) == SOME


@pytest.mark.parametrize("age_s, known", [(0, 1), (AGE_S_MAX, 1), (AGE_S_MAX + 1, 0), (-1, 0)])
def test_what_is_too_old_or_of_the_future_is_not_used(age_s, known):
    assert len(SOME.fresh(NOW + age_s).links) == known


def test_the_newest_word_on_a_link_stands():
    later = KnownLink(5.0, 40.0, NOW + 9)
    updated = SOME.updated([("a", "b", later), ("b", "a", later)], NOW + 9)
    assert updated.links == {"a -> b": later, "b -> a": later}


def test_the_oldest_leave_when_there_are_too_many():
    seen = [(f"{n}", "x", KnownLink(1.0, 1.0, NOW + 1 + n)) for n in range(ENTRIES_MAX)]
    known = SOME.updated(seen, NOW + ENTRIES_MAX)
    assert len(known.links) == ENTRIES_MAX
    assert known.memory("a", "b") is None and known.memory("0", "x") is not None


GOOD = {"rate_mbps": 1, "rtt_ms": 1.5, "when": 3}


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {"a -> b": None},
        {"a -> b": {}},
        {"a -> b": {**GOOD, "more": 1}},
        *({"a -> b": {**GOOD, "rate_mbps": bad}} for bad in (0, -1, 1e9, "1", True, None)),
        {"a -> b": {**GOOD, "rate_mbps": float("nan")}},
        {"a -> b": {**GOOD, "rtt_ms": float("inf")}},
        {"a -> b": {**GOOD, "when": float("nan")}},
        {"a -> b": {**GOOD, "when": -1}},
    ],
)
def test_values_that_no_link_has_are_refused(fields):
    with pytest.raises((ValueError, TypeError)):
        KnownLinks.from_fields(fields)


NUMBERS = st.floats(allow_nan=True) | st.integers()
ENTRIES = st.dictionaries(
    st.text(max_size=9), st.fixed_dictionaries(dict.fromkeys(GOOD, NUMBERS)), max_size=4
)


@given(ENTRIES)
def test_whatever_is_let_in_a_link_can_start_from(fields):
    try:
        known = KnownLinks.from_fields(fields)
    except ValueError:
        return
    assert all(isinstance(one.memory, LinkMemory) for one in known.links.values())
    assert KnownLinks.from_fields(json.loads(json.dumps(known.fields()))) == known
