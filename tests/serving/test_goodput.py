"""Goodput: answers that came whole and within all of their targets, and why others did not."""

import pytest

from molink.errors import OverloadedError, RingError
from molink.serving.goodput import OUTCOMES, Goodput, outcome_of
from molink.serving.request_log import RequestLog
from molink.serving.timeline import Arrival, RequestTimeline
from molink_scheduler.routing.admission import NO_TARGETS, Targets

ALL = Targets(ttft_s=2.0, tpot_s=0.5, tbt_s=0.6)


def answer(targets, *times_s, reason="stop"):
    """A request of 0 s whose tokens came then."""
    timeline = RequestTimeline("m", 10, 8, arrival=Arrival("r", at=0.0), targets=targets)
    timeline.submitted(0, (), 0.1)
    for at_s in times_s:
        timeline.tokens_came(1, at_s)
    timeline.finished(reason, 100.0)
    return timeline


EVEN = [1.0 + 0.4 * number for number in range(12)]
PAUSED = [*EVEN[:-1], EVEN[-2] + 0.9]
"""One of eleven gaps is 0.9 s, and the mean 0.45 s."""


@pytest.mark.parametrize(
    ("targets", "times_s", "outcome"),
    [
        (ALL, EVEN, "met"),
        (ALL, [1.0], "met"),
        (ALL, [2.5, 2.9], "ttft_missed"),
        (ALL, [1.0, 1.4, 1.8, 2.5, 3.2, 3.9], "tpot_missed"),
        (ALL, PAUSED, "tbt_missed"),
        (Targets(tpot_s=0.5), PAUSED, "met"),
        (Targets(tbt_s=0.6, tbt_percentile=90), PAUSED, "met"),
        (Targets(ttft_s=2.0), [2.0], "met"),
        (NO_TARGETS, [50.0], None),
    ],
)
def test_a_whole_answer_is_judged_by_its_targets(targets, times_s, outcome):
    assert outcome_of(answer(targets, *times_s)) == outcome


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [("length", "met"), ("deadline", "failed"), ("error", "failed"), ("cancelled", None)],
)
def test_an_answer_that_is_not_whole_is_not_good(reason, outcome):
    assert outcome_of(answer(ALL, *EVEN, reason=reason)) == outcome


def test_the_gap_between_two_rings_is_a_gap():
    timeline = RequestTimeline("m", 10, 8, arrival=Arrival("r", at=0.0), targets=Targets(tbt_s=1.0))
    timeline.submitted(0, (), 0.1)
    for at_s in (1.0, 1.5):
        timeline.tokens_came(1, at_s)
    timeline.moved("The ring has ended.", 2.0)
    timeline.submitted(1, (), 2.0)
    timeline.moved("This one, too, before its first token.", 3.0)
    timeline.submitted(2, (), 3.0)
    for at_s in (9.0, 9.5):
        timeline.tokens_came(1, at_s)
    timeline.finished("stop", 9.5)
    assert timeline.gaps_within_s(99) == pytest.approx(7.5, rel=0.06)
    assert timeline.gaps_within_s(50) == pytest.approx(0.5, rel=0.06)
    assert timeline.report(9.5).tbt_s == pytest.approx(7.5, rel=0.06)
    assert outcome_of(timeline) == "tbt_missed"


def test_the_log_counts_each_request_by_its_outcome():
    log = RequestLog(lambda: 5.0)
    for error in (OverloadedError("The forecast is late."), RingError("No ring.")):
        timeline = RequestTimeline("m", 10, 8, arrival=Arrival("r", at=0.0), targets=ALL)
        with pytest.raises(type(error)), log.following(timeline):
            raise error
    log.goodput.ended(answer(ALL, *EVEN))
    log.goodput.ended(answer(NO_TARGETS, *EVEN))
    report = log.goodput.report
    assert (report.requests, report.met, report.refused, report.failed) == (3, 1, 1, 1)
    assert set(log.goodput.counts) == set(OUTCOMES)


def test_where_nobody_has_targets_nothing_is_told():
    goodput = Goodput()
    goodput.ended(answer(NO_TARGETS, *EVEN))
    assert goodput.report is None
