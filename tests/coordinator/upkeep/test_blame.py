"""Who rests for a failure, for how long, and when it is forgiven."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from molink.coordinator.ring.stage_watch import StageFailure
from molink.coordinator.upkeep.blame import (
    CALM_S,
    EXCUSED_MAX,
    HOUR_S,
    INNOCENT_RESTS_MAX,
    REST_FIRST_S,
    REST_MAX_S,
    SUSPECT_SHARE,
    Blame,
)

SUSPECT_S = SUSPECT_SHARE * REST_FIRST_S


def own(node):
    return StageFailure(node, "Its disk is full.")


def between(node, about):
    return StageFailure(node, f"{node} got no answer.", about)


def rest_s(blame, node, now):
    """How long a node rests from now on."""
    step_s, rested_s = 1.0, 0.0
    while blame.is_resting(node, now + rested_s):
        rested_s += step_s
    return rested_s


def test_each_failure_of_its_own_doubles_a_nodes_rest_up_to_an_hour():
    blame, now, rests = Blame(), 0.0, []
    for _ in range(8):
        assert blame.failed(own("a"), now) == "a"
        rests.append(rest_s(blame, "a", now))
        now += rests[-1]
    assert rests == [60, 120, 240, 480, 960, 1920, 3600, REST_MAX_S]
    assert not blame.is_resting("b", 0.0)


def test_who_is_lost_again_and_again_rests_longer_each_time_but_not_the_first():
    blame, now, rests = Blame(), 0.0, []
    for _ in range(5):
        blame.left("a", "anna", now)
        rests.append(rest_s(blame, "a", now))
        now += rests[-1] + 60.0
    assert rests == [0, 30, 60, 120, 240]
    assert "anna was lost from a ring" in blame.reasons(now - 61.0)["a"]
    blame.left("a", "anna", now + HOUR_S)
    assert not blame.is_resting("a", now + HOUR_S), "an hour without is forgiven"


def test_who_says_that_it_ends_is_not_blamed_unless_it_does_so_all_the_time():
    blame, now = Blame(), 0.0
    for _ in range(10 * EXCUSED_MAX):
        blame.left("a", "anna", now, announced=True)
        assert not blame.is_resting("a", now) and not blame.failed_lately("a", now)
        now += HOUR_S / EXCUSED_MAX + 1.0
    for _ in range(EXCUSED_MAX + 2):
        blame.left("a", "anna", now, announced=True)
        now += 60.0
    assert blame.is_resting("a", now - 60.0)


def test_whoever_is_only_suspected_is_pardoned_where_nobody_else_can_serve():
    blame = Blame()
    blame.failed(own("a"), 0.0)
    suspected = blame.failed(between("b", "c"), 0.0)
    assert blame.is_resting(suspected, 1.0)
    assert blame.pardon(1.0) and not blame.is_resting(suspected, 1.0)
    assert blame.is_resting("a", 1.0), "it has failed by itself"
    assert not blame.pardon(1.0)
    assert blame.failed_lately(suspected, 2.0), "the failure counts"


def test_a_failure_that_its_ring_got_over_costs_nothing_yet():
    blame = Blame()
    blame.mended("a", 0.0)
    assert not blame.is_resting("a", 0.0) and blame.failed_lately("a", 1.0)
    blame.failed(own("a"), 10.0)
    assert rest_s(blame, "a", 10.0) == 2 * REST_FIRST_S


def test_the_reason_is_told_while_it_rests():
    blame = Blame()
    blame.failed(own("a"), 100.0)
    for now in (100.0, 159.0):
        assert blame.reasons(now) == {"a": "It rests for 60 s: Its disk is full."}
    assert blame.reasons(160.0) == {}


def test_an_hour_of_service_forgives_one_failure():
    blame, now = Blame(), 0.0
    for _ in range(3):
        blame.failed(own("a"), now)
        now += REST_MAX_S
    blame.served("a", HOUR_S, now)
    blame.failed(own("a"), now)
    assert rest_s(blame, "a", now) == 4 * REST_FIRST_S, "as for the third"
    for _ in range(3):
        blame.served("a", HOUR_S, now)
    blame.failed(own("a"), now)
    assert rest_s(blame, "a", now) == REST_FIRST_S


def test_failures_a_week_apart_rest_as_the_first():
    blame = Blame()
    for week in range(9):
        now = week * 7 * CALM_S
        blame.served("xyz", 1.0, now)
        blame.failed(own("a"), now)
        assert rest_s(blame, "a", now) == REST_FIRST_S


def test_a_listener_that_does_not_answer_rests_and_those_who_call_it_do_not():
    blame, now = Blame(), 0.0
    for caller in ("anna", "carl", "dora", "carl"):
        assert blame.failed(between(caller, "ben"), now) == "ben"
        now += rest_s(blame, "ben", now)
        blame.served(("anna", "carl", "dora"), 1.0, now)
        assert not any(blame.is_resting(one, now) for one in ("anna", "carl", "dora"))


def test_who_complains_of_one_after_another_rests_and_the_first_is_let_go():
    blame = Blame()
    assert blame.failed(between("evil", "anna"), 0.0) == "anna"
    assert rest_s(blame, "anna", 0.0) == SUSPECT_S
    assert blame.failed(between("evil", "carl"), 1.0) == "evil"
    assert not blame.is_resting("anna", 1.0)
    assert not blame.is_resting("carl", 1.0)
    assert blame.failed(between("anna", "evil"), 100.0) == "evil"
    assert rest_s(blame, "evil", 100.0) == 2 * SUSPECT_S


def test_of_two_that_are_alone_one_rests_after_the_other():
    blame, now, rested = Blame(), 0.0, []
    for _ in range(6):
        rested.append(blame.failed(between("a", "b"), now))
        now += 100.0
    assert Counter(rested) == {"a": 3, "b": 3}


def test_what_was_forgiven_is_not_taken_back_a_second_time():
    blame, now = Blame(), 0.0
    for _ in range(4):
        blame.failed(between("anna", "evil"), now)
        now += REST_MAX_S
    blame.served(("anna",), HOUR_S, now)
    assert blame.failed(between("carl", "evil"), now) == "evil"
    blame.failed(own("anna"), now)
    assert rest_s(blame, "anna", now) == REST_FIRST_S


NODES = ("evil", "a", "b", "c", "d")

FAULTS = st.lists(
    st.tuples(st.integers(0, 3), st.booleans(), st.floats(0.0, 300.0)), min_size=2, max_size=40
)
"""Of each: which neighbour it was with, who complained, and the time until the next."""


@settings(deadline=None)
@given(count=st.integers(3, 5), faults=FAULTS)
def test_one_bad_node_rests_and_has_others_rest_hardly_ever(count, faults):
    """Every ring that it is in fails with some neighbour; the others serve whenever it rests."""
    blame, now, rested = Blame(), 0.0, []
    for neighbour, complains, pause_s in faults:
        ready = [one for one in NODES[1:count] if not blame.is_resting(one, now)]
        other = ready[neighbour % len(ready)]
        pair = ("evil", other) if complains else (other, "evil")
        rested.append(blame.failed(between(*pair), now))
        if rest := rest_s(blame, "evil", now):
            blame.served([one for one in ready if not blame.is_resting(one, now)], rest, now)
        now += rest + pause_s
    assert "evil" in rested[:2]
    assert sum(one != "evil" for one in rested) <= INNOCENT_RESTS_MAX


@settings(deadline=None)
@given(FAULTS)
def test_whatever_happened_a_calm_day_forgets_it(faults):
    blame, now = Blame(), 0.0
    for neighbour, complains, pause_s in faults:
        other = NODES[1 + neighbour]
        blame.failed(own(other) if complains else between("evil", other), now)
        blame.served(NODES[:3], pause_s, now)
        now += pause_s
    now += 2 * CALM_S
    blame.served((), 1.0, now)
    assert not blame._records
    assert not any(blame._partners.values())


def test_a_complaint_alone_rests_nobody_and_the_second_ring_finds_the_sender():
    blame = Blame()
    assert not blame.complained(between("b", "bad"), 0.0)
    assert not blame.complained(between("b", "bad"), 1.0), "the same pair again says nothing new"
    assert not any(blame.is_resting(one, 2.0) for one in ("b", "bad"))
    assert blame.complained(between("c", "bad"), 100.0), "it has spoilt another one's rows too"
    assert blame.failed(between("c", "bad"), 100.0) == "bad"
    assert not any(blame.is_resting(one, 100.0) for one in ("b", "c"))
