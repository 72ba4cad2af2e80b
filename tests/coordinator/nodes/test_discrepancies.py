"""What is believed of what a node says: never more than it says, never more than was seen."""

from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import (
    NodeHealth,
    PathMeasured,
    PathReport,
    RateSeen,
    RatesSeen,
)
from molink.coordinator.nodes.discrepancies import (
    DISCREPANCY_FACTOR,
    UPLOAD_UNSEEN_MBPS,
    Sightings,
    believed_rate,
    believed_upload,
    discrepancies,
    is_discrepant,
)
from molink.coordinator.nodes.node_book import SEEN_MAX, NodeBook
from molink.coordinator.nodes.slowdown import AS_REPORTED, Slowdown
from tests.coordinator.examples import HERE, PROFILE

MBPS = st.floats(0, 100_000)
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
    book.node(ANNA).slowdown = Slowdown(link_mbps=3.0)
    assert "carries 3.0 Mbps" in said_of(book, ANNA)[1]


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
