"""When a plan is made: for whom it waits, and for how long at most."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.control.messages.payloads import NodeWish, PathMeasured, PathReport
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.planning.readiness import (
    CHANGES_MAX,
    CHANGES_WITHIN_S,
    MEASURING_WAIT_S,
    PATHS_WAIT_S,
    SETTLE_MAX_S,
    SETTLE_S,
    Readiness,
    RestlessNodes,
)
from tests.coordinator.examples import HERE, PROFILE

UNMEASURED = PROFILE.model_copy(update={"steps": None})
IDS = {letter: letter * 16 for letter in "abcd"}


class Room:
    """Nodes a, b, c, ... that measure each other."""

    def __init__(self):
        self.book = NodeBook()
        self.readiness = Readiness(self.others)

    def others(self, node, nodes):
        return frozenset(one.node_id for one in nodes if one is not node)

    def join(self, names, profile=PROFILE, at=0.0):
        for name in names:
            self.book.take(IDS[name], HERE, at)
            self.book.take(IDS[name], profile, at)
        self.look(at)

    def told(self, name, to, kind="direct"):
        paths = tuple(PathMeasured(to=IDS[one], path=kind, rtt_ms=10, rate_mbps=20) for one in to)
        self.book.take(IDS[name], PathReport(round=1, paths=paths), 0.0)

    def look(self, now):
        self.readiness.update(list(self.book), now)

    def is_time(self, now, first=True, serving=False):
        self.look(now)
        return self.readiness.is_time(list(self.book), now, first=first, serving=serving)

    def waits_for(self, now):
        return {
            node.node_id[0] for node in self.readiness.nodes_still_measuring(list(self.book), now)
        }


def test_a_plan_waits_until_everybody_has_told_the_ways_to_the_others():
    room = Room()
    room.join("abc")
    assert not room.is_time(SETTLE_S)
    assert room.waits_for(SETTLE_S) == {"a", "b", "c"}
    room.told("a", "bc")
    room.told("b", "ac", kind="none")
    assert not room.is_time(2.0)
    assert room.waits_for(2.0) == {"c"}
    room.told("c", "ab")
    assert room.is_time(2.0)


def test_who_is_alone_waits_for_nobody():
    room = Room()
    room.join("a")
    assert not room.is_time(SETTLE_S - 0.01)
    assert room.is_time(SETTLE_S)


def test_one_silent_node_does_not_hold_the_others_beyond_the_bound():
    room = Room()
    room.join("abc")
    room.told("a", "bc")
    room.told("b", "ac")
    assert not room.is_time(PATHS_WAIT_S - 0.01)
    assert room.is_time(PATHS_WAIT_S)
    assert room.waits_for(PATHS_WAIT_S) == set()


def test_a_silent_node_is_not_waited_for_again_when_others_come():
    room = Room()
    room.join("ab")
    room.told("a", "b")
    assert room.is_time(PATHS_WAIT_S)
    room.join("c", at=PATHS_WAIT_S)
    room.told("a", "bc")
    room.told("c", "ab")
    assert room.is_time(PATHS_WAIT_S + SETTLE_S)


def test_the_wait_for_ways_begins_when_the_last_newcomer_has_timed_its_layer():
    room = Room()
    room.join("ab")
    room.join("c", UNMEASURED)
    assert not room.is_time(30.0), "c still times a layer"
    room.join("c", at=30.0)
    assert not room.is_time(30.0 + PATHS_WAIT_S - 0.01)
    assert room.is_time(30.0 + PATHS_WAIT_S)


def test_who_never_times_a_layer_is_planned_without():
    room = Room()
    room.join("ab")
    room.told("a", "b")
    room.told("b", "a")
    room.join("c", UNMEASURED)
    assert not room.is_time(MEASURING_WAIT_S - 0.01)
    assert room.is_time(MEASURING_WAIT_S)


def test_a_repair_waits_for_nobody_and_an_improvement_for_the_ways():
    room = Room()
    room.join("ab")
    room.told("a", "b")
    room.told("b", "a")
    room.join("c", at=100.0)
    at = 100.0 + SETTLE_S
    assert room.is_time(at, first=False, serving=False)
    assert not room.is_time(at, first=False, serving=True)
    room.told("a", "bc")
    room.told("b", "ac")
    room.told("c", "ab")
    assert room.is_time(at, first=False, serving=True)


def test_a_cluster_that_is_measured_already_only_settles():
    room = Room()
    for name, others in ("a", "bc"), ("b", "ac"), ("c", "ab"):
        room.told(name, others)
    room.join("abc", at=500.0)
    assert room.is_time(500.0 + SETTLE_S)


@pytest.mark.parametrize("wish", ["pause", "leave"])
def test_nobody_waits_for_who_does_not_lend(wish):
    room = Room()
    room.join("abc")
    room.told("a", "b")
    room.told("b", "a")
    room.book.take(IDS["c"], NodeWish(wish=wish), 0.0)
    room.look(0.0)
    assert room.is_time(SETTLE_S)


def test_a_member_that_changes_its_wish_all_the_time_delays_a_plan_by_seconds():
    room = Room()
    for name, others in ("a", "bc"), ("b", "ac"), ("c", "ab"):
        room.told(name, others)
    room.join("abc")
    times = []
    for count in range(200):
        now = 0.45 * count
        wish = NodeWish(wish="pause" if count % 2 else "serve")
        room.book.take(IDS["c"], wish, now)
        times += [now] * room.is_time(now)
    assert SETTLE_MAX_S <= times[0] < SETTLE_MAX_S + 0.45
    assert times[-1] == now, "it stays so, for a plan takes a moment"


def test_a_repair_does_not_even_settle():
    room = Room()
    room.join("ab")
    assert not room.is_time(0.0)
    assert room.is_time(0.0, first=False)


def test_who_changes_too_often_is_restless_and_who_does_now_and_then_is_not():
    room, watch = Room(), RestlessNodes()
    room.join("abc")
    restless = []
    for count in range(3 * CHANGES_MAX - 1):
        now = 0.45 * count
        room.book.take(IDS["a"], NodeWish(wish="pause" if count % 2 else "serve"), now)
        restless += [(one, count) for one in watch.update(list(room.book), now)]
    assert [one for one, _ in restless] == [IDS["a"]] * 2
    assert [at // CHANGES_MAX for _, at in restless] == [0, 1]
    period_s = CHANGES_WITHIN_S / (CHANGES_MAX - 2)
    for count in range(100):
        now += period_s
        room.book.take(IDS["b"], NodeWish(wish="leave" if count % 2 else "serve"), now)
        assert watch.update(list(room.book), now) == []


@given(
    st.lists(
        st.tuples(
            st.floats(0, 5), st.sampled_from("abcd"), st.sampled_from(["join", "time", "tell"])
        ),
        max_size=30,
    )
)
def test_every_wait_ends(events):
    """Whatever came, and whoever stays silent: some time after the last of it a plan is made."""
    room, now = Room(), 0.0
    for passed_s, name, what in events:
        now += passed_s
        if what == "tell":
            room.told(name, set(IDS) - {name})
        else:
            room.join(name, PROFILE if what == "time" else UNMEASURED, at=now)
        room.is_time(now)
    assert room.is_time(now + MEASURING_WAIT_S + PATHS_WAIT_S)
    assert room.waits_for(now + MEASURING_WAIT_S + PATHS_WAIT_S) == set()
