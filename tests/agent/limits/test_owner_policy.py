"""May the PC be used now? Every rule, and that it does not flap."""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_agent.limits.hours import LendingHours, is_open
from molink_agent.limits.limits import OwnerLimits
from molink_agent.limits.owner_policy import (
    GPU_FREE_BELOW_PERCENT,
    GPU_USED_FROM_PERCENT,
    IDLE_KEEP_SHARE,
    INPUT_POLL_S,
    UNKNOWN_AFTER_S,
    IdleTime,
    UseFacts,
    UseWatch,
    verdict,
)
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.input_idle import input_sources
from tests.agent.probe.fake_nvml import FakeCard, FakeNvml

NOON = datetime(2026, 3, 2, 12)
NIGHT = LendingHours.parse("22:00-06:00")

HOURS = st.sampled_from([(), (NIGHT,), (LendingHours.parse("sat-sun 10:00-24:00"), NIGHT)])
MOMENTS = st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31))
LIMITS = st.builds(
    OwnerLimits,
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
    answer = verdict(OwnerLimits(), UseFacts(), NOON)
    assert (answer.allowed, answer.until) == (True, None)


def test_hours_close_and_open():
    closed = verdict(OwnerLimits(hours=(NIGHT,)), UseFacts(), NOON)
    assert (closed.allowed, closed.until) == (False, NOON.replace(hour=22))
    opened = verdict(OwnerLimits(hours=(NIGHT,)), UseFacts(), NOON.replace(hour=23))
    assert (opened.allowed, opened.until) == (True, datetime(2026, 3, 3, 6))


@pytest.mark.parametrize("on_battery, allowed", [(True, False), (False, True), (None, True)])
def test_a_battery_pauses(on_battery, allowed):
    facts = UseFacts(on_battery=on_battery)
    assert verdict(OwnerLimits(), facts, NOON).allowed is allowed
    assert verdict(OwnerLimits(pause_on_battery=False), facts, NOON).allowed


def test_a_pause_without_end_names_the_way_out():
    answer = verdict(OwnerLimits(), UseFacts(paused=True), NOON)
    assert not answer.allowed
    assert answer.until is None
    assert "molink agent resume" in answer.reason


def test_a_game_pauses_at_once_unless_its_owner_does_not_mind():
    answer = verdict(OwnerLimits(), UseFacts(game="A program fills the screen."), NOON)
    assert (answer.allowed, answer.reason) == (False, "A program fills the screen.")
    assert answer.is_urgent and answer.until is None
    assert verdict(OwnerLimits(pause_on_game=False), UseFacts(game="A game."), NOON).allowed
    battery = verdict(OwnerLimits(), UseFacts(on_battery=True), NOON)
    assert not battery.is_urgent


def test_two_hindrances_end_with_the_later():
    limits, facts = OwnerLimits(hours=(NIGHT,), only_when_idle_minutes=10), UseFacts(idle_s=240)
    assert verdict(limits, facts, NOON).until == NOON.replace(hour=22)
    assert verdict(limits, replace(facts, on_battery=True), NOON).until is None


def test_idle_says_when_it_would_be_lent():
    answer = verdict(OwnerLimits(only_when_idle_minutes=10), UseFacts(idle_s=240), NOON)
    assert (answer.allowed, answer.until) == (False, NOON + timedelta(minutes=6))


def test_nobody_knows_is_not_idle():
    answer = verdict(OwnerLimits(only_when_idle_minutes=10), UseFacts(lending=True), NOON)
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
    limits = OwnerLimits(only_when_idle_minutes=minutes)
    kept = lending
    for share in jitter:
        between = minutes * 60 * (IDLE_KEEP_SHARE + share * (1 - IDLE_KEEP_SHARE) * 0.999)
        kept = verdict(limits, UseFacts(lending=kept, idle_s=between), NOON).allowed
    assert kept == lending


@given(st.floats(1, 60), st.lists(st.floats(0, 0.99), min_size=1, max_size=40))
def test_who_touches_it_often_enough_keeps_it(minutes, gaps):
    """However often somebody comes back, it is given back once and not taken in between."""
    limits, lending, changes = OwnerLimits(only_when_idle_minutes=minutes), True, 0
    for share in gaps:
        for idle_s in (0.0, minutes * 60 * share):
            allowed = verdict(limits, UseFacts(lending=lending, idle_s=idle_s), NOON).allowed
            changes += allowed != lending
            lending = allowed
    assert changes == 1


CARES = OwnerLimits(only_when_idle_minutes=5)


@dataclass
class FakeDesktop:
    idle_ms: int = 600_000
    asked: list[float] = field(default_factory=list)

    async def ask(self, *command: str, timeout_s: float = 0) -> str | None:
        self.asked.append(timeout_s)
        return f"{self.idle_ms}\n"


def watching(desktop: FakeDesktop, card: FakeCard) -> UseWatch:
    sources = input_sources({"DISPLAY": ":0"}, wsl=False)
    return UseWatch(sources, GpuProbe(FakeNvml([card])), ask=desktop.ask)


async def test_without_the_limit_nobody_is_asked():
    desktop = FakeDesktop()
    watch = watching(desktop, FakeCard())
    assert await watch.poll(OwnerLimits(), 0) is None
    assert desktop.asked == []


async def test_it_is_asked_now_and_then():
    desktop = FakeDesktop()
    watch = watching(desktop, FakeCard())
    for now_s in range(int(2 * INPUT_POLL_S)):
        idle_s = await watch.poll(CARES, now_s)
    assert len(desktop.asked) == 2
    assert idle_s == 600 + INPUT_POLL_S - 1


async def test_another_s_game_counts_and_our_stage_does_not():
    desktop = FakeDesktop()
    card = FakeCard(running={100: 1, 7: 1}, samples=[(100, 95, 1)])
    watch = watching(desktop, card)
    assert await watch.poll(CARES, 0, frozenset({100})) == 600
    card.samples = [(7, 60, 2)]
    assert await watch.poll(CARES, INPUT_POLL_S, frozenset({100})) == 0


ANSWERS = st.lists(
    st.tuples(
        st.floats(0.1, 60),
        st.one_of(st.none(), st.floats(0, 1e6)),
        st.one_of(st.none(), st.floats(0, 100)),
    ),
    max_size=30,
)


def test_before_any_answer_nobody_knows():
    watch = IdleTime()
    watch.observe(5, None, 0)
    assert watch.idle_s(5) is None


def test_idle_time_grows_between_answers():
    watch = IdleTime()
    watch.observe(100, 30)
    assert watch.idle_s(110) == 40


def test_a_film_counts_as_use():
    watch = IdleTime()
    watch.observe(100, 5000, GPU_USED_FROM_PERCENT)
    assert watch.idle_s(160) == 60


def test_a_load_about_the_threshold_does_not_flap():
    watch = IdleTime()
    between = (GPU_FREE_BELOW_PERCENT + GPU_USED_FROM_PERCENT) / 2
    watch.observe(100, 5000, between)
    assert watch.idle_s(100) == 5000
    watch.observe(120, 5000, GPU_USED_FROM_PERCENT)
    watch.observe(140, 5000, between)
    assert watch.idle_s(140) == 0
    watch.observe(160, 5000, 0)
    watch.observe(180, 5000, between)
    assert watch.idle_s(180) == 40


def test_missing_answers_are_borne_for_a_while():
    watch = IdleTime()
    watch.observe(0, 600)
    watch.observe(UNKNOWN_AFTER_S, None)
    assert watch.idle_s(UNKNOWN_AFTER_S) == 600 + UNKNOWN_AFTER_S
    assert watch.idle_s(UNKNOWN_AFTER_S + 1) is None


@given(ANSWERS)
def test_idle_time_is_never_longer_than_the_input_says(answers):
    watch, now_s, told = IdleTime(), 0.0, None
    for step_s, input_idle_s, percent in answers:
        now_s += step_s
        watch.observe(now_s, input_idle_s, percent)
        told = told if input_idle_s is None else (now_s, input_idle_s)
        idle_s = watch.idle_s(now_s)
        if idle_s is not None:
            assert told is not None
            assert 0 <= idle_s <= now_s - told[0] + told[1] + 1e-6
