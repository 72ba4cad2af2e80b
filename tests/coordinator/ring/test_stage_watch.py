"""Deadlines of one member: while it loads, and while its stage serves."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import StageFact
from molink.coordinator.ring.stage_watch import (
    REPORT_AGE_MAX_S,
    REPORTS_MISSED_S,
    STALL_MAX_S,
    STALL_MIN_S,
    LoadLimits,
    LoadWatch,
    ReportWatch,
    StageSeen,
    silences_s,
    stall_max_s,
)
from molink.stage_protocol.progress import StageProgress
from tests.coordinator.examples import PROFILE, STEPS
from tests.coordinator.upkeep.world import REPORT

LIMITS = LoadLimits()


def fact(kind, fraction):
    return StageFact(revision=1, kind=kind, fraction=fraction)


def health(reports, stalled_s=0.0):
    return replace(REPORT, progress=StageProgress(reports=reports, stalled_s=stalled_s))


def test_a_download_of_an_hour_that_goes_on_is_never_overdue():
    watch = LoadWatch(LIMITS, 0.0)
    for second in range(0, 3600, 5):
        watch.update(fact("downloading", second / 3600), float(second))
        assert second < watch.due_at()
        assert not watch.is_lagging(float(second))


@pytest.mark.parametrize(("kind", "within_s"), [("downloading", 60.0), ("loading", 120.0)])
def test_who_makes_no_progress_is_overdue(kind, within_s):
    watch = LoadWatch(LIMITS, 0.0)
    watch.update(fact(kind, 0.01), 7.0)
    watch.update(fact(kind, 0.01), 50.0)
    assert watch.due_at() == 7.0 + within_s
    assert watch.is_lagging(17.0)
    assert "nothing for 93 s" in watch.sentence(100.0)


def test_who_says_nothing_at_all_is_overdue():
    assert LoadWatch(LIMITS, 100.0).due_at() == 100.0 + LIMITS.load_s


def test_devices_of_one_pc_download_one_after_the_other():
    watch = LoadWatch(LIMITS, 0.0)
    watch.update(fact("downloading", 0.02), 1.0)
    watch.excuse(500.0)
    assert watch.due_at() == 500.0 + LIMITS.download_s
    assert watch.is_lagging(500.0), "others need not wait for it"


@pytest.mark.parametrize("told", [None, fact("downloading", 0.3)])
def test_who_waits_for_the_coordinator_is_neither_overdue_nor_lagging(told):
    watch = LoadWatch(LIMITS, 0.0)
    watch.update(told, 1.0)
    for second in range(0, 1800, 35):  # In line for 30 s, then away for 5.
        watch.made_wait(float(second))
        assert second + 35 < watch.due_at()
        assert not watch.is_lagging(second + 35.0)
    assert watch.due_at() <= 1800 + LIMITS.load_s
    assert watch.is_lagging(1900.0) == (told is not None), "it waits no more"


@pytest.mark.parametrize("told", [None, fact("downloading", 0.0), fact("downloading", 1.0)])
def test_who_has_not_begun_to_rise_does_not_lag(told):
    """It verifies what is there, or starts torch."""
    watch = LoadWatch(LIMITS, 0.0)
    watch.update(told, 1.0)
    assert not watch.is_lagging(59.0)
    assert watch.due_at() <= 1.0 + LIMITS.load_s


def test_who_loads_waits_for_nobody():
    watch = LoadWatch(LIMITS, 0.0)
    watch.update(fact("loading", 0.3), 0.0)
    watch.made_wait(100.0)
    assert watch.due_at() == LIMITS.load_s
    assert watch.is_lagging(100.0)


def test_a_trickle_that_takes_longer_than_the_hour_is_overdue():
    watch = LoadWatch(LIMITS, 0.0)
    for second in range(60):
        watch.update(fact("downloading", second / 7200), float(second))
    assert watch.due_at() == LIMITS.download_s


@pytest.mark.parametrize(
    ("each_s", "expected_s"), [(0.011 / 50, 4500.0), (1 / 600, 570.0), (0.1, 0.0), (0.0, math.inf)]
)
def test_how_much_longer_it_takes_is_told_by_the_rate_that_was_shown(each_s, expected_s):
    watch = LoadWatch(LIMITS, 0.0)
    watch.update(fact("downloading", 0.01), 5.0)
    for second in range(5, 30):
        if second < 15:
            assert watch.needs_s(float(second)) == 0.0, "nothing is known yet"
        watch.update(fact("downloading", min(1.0, 0.01 + (second - 4) * each_s)), float(second))
    assert watch.needs_s(29.0) == pytest.approx(expected_s, rel=0.1)
    watch.made_wait(29.0)
    assert watch.needs_s(30.0) == 0.0, "it has not the whole of the coordinator's line"


def test_what_was_there_already_is_no_rate():
    """Its first files lay on the disk; then it creeps."""
    watch = LoadWatch(LIMITS, 0.0)
    watch.update(fact("downloading", 0.0), 0.0)
    for second in range(1, 40):
        watch.update(fact("downloading", 0.5 + second * 1e-4), float(second))
    assert watch.needs_s(39.0) > 3600.0


def test_each_new_report_of_a_stage_counts_from_its_heartbeat():
    watch = ReportWatch(STALL_MIN_S)
    for heard_at, reports in (0.0, 0), (5.0, 1), (14.0, 1), (15.0, 1):
        assert watch.trouble(health(reports), heard_at) == ""
    assert watch.trouble(health(1), 5.0 + REPORT_AGE_MAX_S + 1) != ""


def test_while_no_heartbeat_arrives_no_report_ages():
    watch = ReportWatch(STALL_MIN_S)
    for _ in range(10):
        assert watch.trouble(health(3), 0.0) == ""
    assert watch.trouble(health(90), 1000.0) == "", "the broker was away"


def test_what_stood_still_while_the_stage_joined_is_not_counted():
    watch = ReportWatch(STALL_MIN_S)
    assert watch.trouble(health(3, stalled_s=8.0), 0.0) == ""
    assert watch.trouble(health(3, stalled_s=8.0), 1.0) == ""
    assert watch.trouble(health(4, stalled_s=8.0), 2.0) != ""


def seen(*silences):
    """Stages whose report came at `now` = 10.0, unless said otherwise: (reported_at, previous,
    next)."""
    return [StageSeen(*one) for one in silences]


HERE_AND_WELL = (10.0, 0.0, 0.0)


def test_a_stage_is_silent_when_a_neighbour_and_the_coordinator_miss_it():
    gone, misses_next, misses_previous = (8.5, 0.0, 0.0), (9.8, 0.0, 1.3), (9.9, 1.3, 0.0)
    for stages in ((misses_next, gone, HERE_AND_WELL), (HERE_AND_WELL, gone, misses_previous)):
        first, found, last = silences_s(seen(*stages), 10.0)
        assert (first, last) == (0.0, 0.0) and 1.2 < found <= 1.5
    two = silences_s(seen((9.9, 1.3, 1.3), gone), 10.0)
    assert two[0] == 0.0 and two[1] > 0


def test_two_stages_that_vanish_at_once_are_both_found():
    stages = seen((10.0, 0.0, 1.5), (8.5, 0.0, 0.0), (8.5, 0.0, 0.0), (10.0, 1.5, 0.0))
    assert [one > 0 for one in silences_s(stages, 10.0)] == [False, True, True, False]


def test_a_coordinator_that_gets_nothing_at_all_holds_nobody_silent():
    """The broker is away: what it was told before is no longer believed."""
    stages = seen((8.5, 9.0, 9.0), (8.5, 9.0, 9.0), (8.4, 9.0, 9.0))
    assert silences_s(stages, 10.0) == [0.0, 0.0, 0.0]


ages_s, missed_s = st.floats(0.0, 30.0), st.sampled_from([0.0, 1.2, 5.0, 1e6])


@given(st.lists(st.tuples(ages_s, missed_s, missed_s), min_size=1, max_size=6))
def test_whoever_reports_is_not_ended_by_what_neighbours_say(stages):
    """However they lie, and however dead their links are."""
    found = silences_s([StageSeen(100.0 - age_s, *missed) for age_s, *missed in stages], 100.0)
    for (age_s, *_), silent_s in zip(stages, found, strict=True):
        assert silent_s <= age_s + 1e-9
        assert silent_s == 0 or age_s >= REPORTS_MISSED_S


@given(st.lists(ages_s, min_size=1, max_size=6))
def test_nobody_is_silent_whom_no_neighbour_misses(ages):
    assert not any(silences_s([StageSeen(100.0 - age_s) for age_s in ages], 100.0))


def test_a_stage_that_reports_nothing_of_itself_is_found_too():
    watch = ReportWatch(STALL_MIN_S)
    assert watch.trouble(None, 0.0) == ""
    assert "reported nothing for 11 s" in watch.trouble(None, 11.0)


@pytest.mark.parametrize(
    ("row_s", "expected"), [(1e-5, STALL_MIN_S), (0.02, 8 * 128 * 0.02), (1.0, STALL_MAX_S)]
)
def test_a_slow_pc_has_more_time_for_a_layer(row_s, expected):
    slow = PROFILE.model_copy(update={"steps": STEPS.model_copy(update={"prefill_row_s": row_s})})
    assert stall_max_s(slow, None) == pytest.approx(expected)
    assert stall_max_s(None, None) == STALL_MAX_S
