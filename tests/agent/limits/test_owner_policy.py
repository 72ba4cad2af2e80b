"""May the PC be used now? Every rule, and that it does not flap."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_agent.limits.hours import LendingHours, is_open
from molink_agent.limits.limits import Limits
from molink_agent.limits.owner_policy import IDLE_KEEP_SHARE, UseFacts, verdict

NOON = datetime(2026, 3, 2, 12)
NIGHT = LendingHours.parse("22:00-06:00")

HOURS = st.sampled_from([(), (NIGHT,), (LendingHours.parse("sat-sun 10:00-24:00"), NIGHT)])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31))
LIMITS = st.builds(
    Limits,
    hours=HOURS,
    only_when_idle_minutes=st.one_of(st.none(), st.floats(1, 60)),
    pause_on_battery=st.booleans(),
)
FACTS = st.builds(
    UseFacts,
    lending=st.booleans(),
    idle_s=st.one_of(st.none(), st.floats(0, 7200)),
    on_battery=st.sampled_from([None, True, False]),
    paused=st.booleans(),
)


def test_without_limits_it_is_lent():
    answer = verdict(Limits(), UseFacts(), NOON)
    assert (answer.allowed, answer.until) == (True, None)


def test_hours_close_and_open():
    closed = verdict(Limits(hours=(NIGHT,)), UseFacts(), NOON)
    assert (closed.allowed, closed.until) == (False, NOON.replace(hour=22))
    opened = verdict(Limits(hours=(NIGHT,)), UseFacts(), NOON.replace(hour=23))
    assert (opened.allowed, opened.until) == (True, datetime(2026, 3, 3, 6))


@pytest.mark.parametrize("on_battery, allowed", [(True, False), (False, True), (None, True)])
def test_a_battery_pauses(on_battery, allowed):
    facts = UseFacts(on_battery=on_battery)
    assert verdict(Limits(), facts, NOON).allowed is allowed
    assert verdict(Limits(pause_on_battery=False), facts, NOON).allowed


def test_a_pause_without_end_names_the_way_out():
    answer = verdict(Limits(), UseFacts(paused=True), NOON)
    assert not answer.allowed
    assert answer.until is None
    assert "molink agent resume" in answer.reason


def test_two_hindrances_end_with_the_later():
    limits, facts = Limits(hours=(NIGHT,), only_when_idle_minutes=10), UseFacts(idle_s=240)
    assert verdict(limits, facts, NOON).until == NOON.replace(hour=22)
    assert verdict(limits, replace(facts, on_battery=True), NOON).until is None


def test_idle_says_when_it_would_be_lent():
    answer = verdict(Limits(only_when_idle_minutes=10), UseFacts(idle_s=240), NOON)
    assert (answer.allowed, answer.until) == (False, NOON + timedelta(minutes=6))


def test_nobody_knows_is_not_idle():
    answer = verdict(Limits(only_when_idle_minutes=10), UseFacts(lending=True), NOON)
    assert not answer.allowed
    assert "cannot be told" in answer.reason


@given(LIMITS, FACTS, MOMENTS)
def test_it_is_lent_exactly_when_nothing_hinders(limits, facts, now):
    answer = verdict(limits, facts, now)
    battery = limits.pause_on_battery and facts.on_battery is True
    wanted = limits.only_when_idle_minutes
    share = IDLE_KEEP_SHARE if facts.lending else 1
    idle = wanted is None or (facts.idle_s is not None and facts.idle_s >= wanted * 60 * share)
    assert answer.allowed == (
        not facts.paused and not battery and idle and is_open(limits.hours, now)
    )
    assert answer.reason.endswith(".") or not answer.allowed
    assert answer.until is None or answer.until > now


@given(LIMITS, FACTS, MOMENTS)
def test_whoever_did_not_lend_is_not_judged_more_mildly(limits, facts, now):
    lending = verdict(limits, replace(facts, lending=True), now).allowed
    waiting = verdict(limits, replace(facts, lending=False), now).allowed
    assert waiting <= lending


@given(st.floats(1, 60), st.booleans(), st.lists(st.floats(0, 1), max_size=40))
def test_a_jittering_idle_time_changes_nothing(minutes, lending, jitter):
    limits = Limits(only_when_idle_minutes=minutes)
    kept = lending
    for share in jitter:
        between = minutes * 60 * (IDLE_KEEP_SHARE + share * (1 - IDLE_KEEP_SHARE) * 0.999)
        kept = verdict(limits, UseFacts(lending=kept, idle_s=between), NOON).allowed
    assert kept == lending


@given(st.floats(1, 60), st.lists(st.floats(0, 0.99), min_size=1, max_size=40))
def test_who_touches_it_often_enough_keeps_it(minutes, gaps):
    """However often somebody comes back, it is given back once and not taken in between."""
    limits, lending, changes = Limits(only_when_idle_minutes=minutes), True, 0
    for share in gaps:
        for idle_s in (0.0, minutes * 60 * share):
            allowed = verdict(limits, UseFacts(lending=lending, idle_s=idle_s), NOON).allowed
            changes += allowed != lending
            lending = allowed
    assert changes == 1
