"""Deadlines of one member: while it loads, and while its stage serves."""

from dataclasses import replace

import pytest

from molink.control.messages.payloads import StageFact
from molink.coordinator.members.stage_watch import (
    REPORT_AGE_MAX_S,
    STALL_MAX_S,
    STALL_MIN_S,
    LoadLimits,
    LoadWatch,
    ReportWatch,
    stall_max_s,
)
from molink.stage_protocol.messages import StageProgress
from tests.coordinator.examples import PROFILE, STEPS
from tests.coordinator.rings.world import REPORT

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
    watch.update(fact("downloading", 0.0), 1.0)
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
    assert watch.is_lagging(1900.0), "it waits no more"


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
