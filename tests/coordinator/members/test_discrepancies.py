"""What is believed of what a node says: never more than it says, never more than was seen."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import (
    NodeHealth,
    PathMeasured,
    PathReport,
    RateSeen,
    RatesSeen,
)
from molink.coordinator.members.discrepancies import (
    DISCREPANCY_FACTOR,
    FORGIVEN_FACTOR,
    SLOWER_FACTOR,
    STEPS_MIN,
    UPLOAD_UNSEEN_MBPS,
    Sightings,
    StepsSeen,
    believed_rate,
    believed_upload,
    discrepancies,
    is_discrepant,
    measured_slowdown,
    slowed_steps,
)
from molink.coordinator.members.node_book import AS_REPORTED, SEEN_MAX, NodeBook, Slowdown
from tests.coordinator.examples import HERE, PROFILE, STEPS

MBPS = st.floats(0, 100_000)
SECONDS = st.floats(0, 3600)
ANNA, BERT, CARL = "a" * 16, "b" * 16, "c" * 16


@given(MBPS, st.none() | MBPS)
def test_a_link_is_no_faster_than_told_or_seen(told, seen):
    believed = believed_rate(told, seen)
    assert believed <= max(told, seen or 0.0)
    if told:
        assert believed <= told
    if seen:
        assert 0 < believed <= seen or believed == told == 0.0 or believed <= seen


@given(MBPS, MBPS, MBPS)
def test_saying_more_brings_no_more_than_was_seen(told, more, seen):
    low, high = sorted((told, told + more))
    assert believed_rate(high, seen or 1.0) <= max(seen or 1.0, 0.0)
    if low:
        assert believed_rate(low, seen or 1.0) <= believed_rate(high, seen or 1.0)


@given(MBPS, st.lists(MBPS, max_size=20))
def test_an_upload_is_above_nothing_and_bounded_by_the_best_that_was_seen(told, seen):
    believed = believed_upload(told, seen)
    assert 0 < believed <= (max(seen, default=0.0) or UPLOAD_UNSEEN_MBPS)
    if told:
        assert believed <= told
    assert is_discrepant(told, believed) == (told > DISCREPANCY_FACTOR * believed)


def test_one_honest_receiver_is_enough_for_an_upload():
    assert believed_upload(100.0, [3.0, 95.0, 0.0]) == 95.0
    assert believed_upload(0.0, []) == UPLOAD_UNSEEN_MBPS, "who says nothing gains nothing"


STEPS_SEEN = st.builds(
    StepsSeen,
    st.integers(0, 10**6),
    SECONDS | st.just(math.nan),
    SECONDS | st.just(math.nan),
)
PACES = st.builds(Slowdown, st.floats(1, 1000), st.floats(1, 1000))


@given(SECONDS, SECONDS, STEPS_SEEN, PACES)
def test_a_pace_is_never_faster_than_told_and_always_a_number(decode_s, row_s, seen, before):
    pace = measured_slowdown(decode_s, row_s, seen, before)
    assert (pace is None) == (seen.steps < STEPS_MIN)
    if pace is not None:
        assert 1 <= pace.decode <= pace.prefill < math.inf
        slower = slowed_steps(STEPS, pace)
        for key in ("decode_fixed_s", "decode_row_s", "prefill_row_s", "head_row_s"):
            assert getattr(slower, key) >= getattr(STEPS, key)


@given(st.floats(1e-4, 10), st.floats(0, SLOWER_FACTOR))
def test_who_is_within_the_factor_is_taken_at_its_word(told_s, times):
    seen = StepsSeen(STEPS_MIN, told_s * times * 0.999, told_s * times * 0.999)
    assert measured_slowdown(told_s, told_s, seen) == AS_REPORTED


def test_who_is_slow_is_planned_as_seen_and_forgiven_only_well_below():
    seen = StepsSeen(STEPS_MIN, 0.5, 0.0)
    assert measured_slowdown(0.1, 0.01, seen) == Slowdown(pytest.approx(5), pytest.approx(5))
    between = StepsSeen(STEPS_MIN, 0.1 * (FORGIVEN_FACTOR + SLOWER_FACTOR) / 2, 0.0)
    assert measured_slowdown(0.1, 0.01, between) == AS_REPORTED
    assert measured_slowdown(0.1, 0.01, between, Slowdown(5, 5)).decode == pytest.approx(2.5)
    assert (
        measured_slowdown(0.1, 0.01, StepsSeen(STEPS_MIN, 0.19, 0.0), Slowdown(5, 5)) == AS_REPORTED
    )


def test_a_short_prompt_accuses_nobody():
    """Three rows that took as long as a decode step."""
    assert measured_slowdown(0.1, 0.001, StepsSeen(STEPS_MIN, 0.1, 0.1 / 3)) == AS_REPORTED
    assert measured_slowdown(0.1, 0.001, StepsSeen(STEPS_MIN, 0.1, 0.5)) == Slowdown(
        1.0, pytest.approx(5)
    )


def cluster():
    book = NodeBook()
    for node_id, name in (ANNA, "anna"), (BERT, "bert"):
        book.take(node_id, HERE.model_copy(update={"name": name}), 0.0)
        book.take(node_id, PROFILE.model_copy(update={"upload_mbps": 500.0}), 0.0)
    path = PathMeasured(to=BERT, path="direct", rtt_ms=20, rate_mbps=900.0)
    book.take(ANNA, PathReport(round=1, paths=(path,)), 0.0)
    return book


def said_of(book, node_id):
    nodes = list(book)
    return discrepancies(book.node(node_id), Sightings.of(nodes))


def test_what_neighbours_saw_otherwise_is_said():
    book = cluster()
    book.take(BERT, RatesSeen(rates=(RateSeen(sender=ANNA, rate_mbps=19.0),)), 0.0)
    upload, link = said_of(book, ANNA)
    assert upload == (
        "It says that it uploads 500.0 Mbps, and others have seen 19.0: 19.0 are planned."
    )
    assert link == "It says that it sends 900.0 Mbps to bert, who has seen 19.0."
    book.node(ANNA).slowdown = Slowdown(4.25, 4.25)
    assert "4.2 times as long" in said_of(book, ANNA)[1]


def test_who_is_honest_is_not_spoken_of():
    book = cluster()
    book.note_rate(ANNA, 480.0)
    book.note_rate("unknown", 480.0)
    book.take(BERT, RatesSeen(rates=(RateSeen(sender=ANNA, rate_mbps=700.0),)), 0.0)
    assert said_of(book, ANNA) == []
    assert "nobody has seen it send" in said_of(book, BERT)[0]


def test_counts_outlive_an_agent_that_starts_anew_and_are_bounded():
    book = cluster()
    book.take(BERT, RatesSeen(rates=(RateSeen(sender=ANNA, rate_mbps=19.0),)), 0.0)
    book.take(BERT, RatesSeen(rates=(RateSeen(sender=CARL, rate_mbps=5.0),)), 0.0)
    assert book.node(BERT).seen == {ANNA: 19.0, CARL: 5.0}
    letters = "abcdefghijklmnop"
    ids = [first + second + "a" * 14 for first in letters for second in letters + "qr"]
    for one in ids:
        book.take(BERT, RatesSeen(rates=(RateSeen(sender=one, rate_mbps=1.0),)), 0.0)
    assert list(book.node(BERT).seen) == ids[-SEEN_MAX:]


def test_health_changes_no_pace_by_itself():
    book = cluster()
    book.take(ANNA, NodeHealth(incarnation="a" * 12, state="serving", uptime_s=1.0), 0.0)
    assert book.node(ANNA).slowdown == AS_REPORTED


def test_devices_of_a_pc_vouch_for_each_other_s_line_only_by_what_leaves_it():
    book = cluster()
    book.take(CARL, HERE, 0.0)
    book.node(BERT).pc = ANNA
    inside = RateSeen(sender=ANNA, rate_mbps=9000.0)
    book.take(BERT, RatesSeen(rates=(inside,)), 0.0)
    assert "nobody has seen it send" in said_of(book, ANNA)[0]
    book.take(CARL, RatesSeen(rates=(RateSeen(sender=BERT, rate_mbps=19.0),)), 0.0)
    assert Sightings.of(list(book)).uploads == {ANNA: [19.0]}
    assert all("others have seen 19.0" in said_of(book, one)[0] for one in (ANNA, BERT))
