"""Which path a link takes: direct when it can, never to and fro without end."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from molink.transport.paths.choose import Path, PathChooser, PathPeriods

PERIODS = PathPeriods()
DIRECT = "10.0.0.1:7000"

events = st.lists(
    st.tuples(st.sampled_from(["works", "dead", "failed"]), st.floats(0.01, 5000)), max_size=60
)


def play(chooser: PathChooser, told, *, relay_holds=False) -> list[tuple[float, Path]]:
    """Do what happened, attempting whenever that is due; every path taken, and when."""
    now, moves = 0.0, [(0.0, chooser.path)]

    def note() -> None:
        if moves[-1][1] != chooser.path:
            moves.append((now, chooser.path))

    for what, passed_s in told:
        end = now + passed_s
        while chooser.next_try_at is not None and chooser.next_try_at <= end:
            now = max(now, chooser.next_try_at)
            chooser.answered(DIRECT, now) if what != "dead" else chooser.unanswered(now)
            note()
        now = end
        if what == "failed" and not (relay_holds and chooser.path.kind == "relay"):
            chooser.failed(now)
            note()
    return moves


def test_the_first_answer_is_taken_at_once():
    chooser = PathChooser(has_relay=True)
    assert chooser.next_try_at == 0
    chooser.answered(DIRECT, 0)
    assert chooser.path == Path("direct", DIRECT)
    assert chooser.next_try_at is None


def test_silence_means_the_relay_and_an_attempt_later():
    chooser = PathChooser(has_relay=True)
    chooser.unanswered(5)
    assert chooser.path.kind == "relay"
    assert chooser.next_try_at == 5 + PERIODS.retry_first_s


def test_without_a_relay_silence_means_no_way_and_an_attempt_soon():
    chooser = PathChooser(has_relay=False)
    chooser.unanswered(5)
    assert chooser.path.kind == "none"
    assert chooser.next_try_at == 5 + PERIODS.lost_retry_s


def test_a_relayed_link_moves_after_two_answers_in_a_row():
    chooser = PathChooser(has_relay=True)
    chooser.unanswered(0)
    chooser.answered(DIRECT, 30)
    chooser.unanswered(32)
    chooser.answered(DIRECT, 100)
    assert chooser.path.kind == "relay"
    assert chooser.next_try_at == 100 + PERIODS.confirm_s
    chooser.answered(DIRECT, 102)
    assert chooser.path == Path("direct", DIRECT)


def test_a_direct_path_that_fails_is_replaced_at_once_and_left_alone_longer_each_time():
    chooser, now, pauses = PathChooser(has_relay=True), 0.0, []
    chooser.answered(DIRECT, now)
    for _ in range(7):
        now += 1
        chooser.failed(now)
        assert chooser.path.kind == "relay"
        pauses.append(chooser.next_try_at - now)
        now = chooser.next_try_at
        chooser.answered(DIRECT, now)
        now = chooser.next_try_at
        chooser.answered(DIRECT, now)
        assert chooser.path.kind == "direct"
    assert pauses == [120, 240, 480, 960, 1920, 3600, 3600]


def test_a_path_that_has_held_is_forgiven():
    chooser = PathChooser(has_relay=True)
    chooser.answered(DIRECT, 0)
    chooser.failed(1)
    for at in (121, 123):
        chooser.answered(DIRECT, at)
    chooser.failed(123 + PERIODS.steady_s)
    assert chooser.next_try_at == 123 + PERIODS.steady_s + PERIODS.cool_down_s


def test_an_answer_during_the_cool_down_moves_nothing():
    chooser = PathChooser(has_relay=True)
    chooser.answered(DIRECT, 0)
    chooser.failed(10)
    chooser.answered(DIRECT, 11)
    chooser.answered(DIRECT, 12)
    assert chooser.path.kind == "relay"
    assert chooser.next_try_at == 10 + PERIODS.cool_down_s


def test_where_the_relay_fails_too_a_direct_path_is_tried_again_at_once():
    chooser = PathChooser(has_relay=True)
    chooser.answered(DIRECT, 0)
    chooser.failed(10)
    chooser.failed(15)
    assert (chooser.path.kind, chooser.next_try_at) == ("relay", 15)
    chooser.answered(DIRECT, 15.1)
    assert chooser.path.kind == "direct"


@given(events, st.booleans())
def test_a_direct_path_is_only_taken_when_an_address_answered(told, has_relay):
    dead = [("dead", passed_s) for _, passed_s in told]
    assert all(path.kind != "direct" for _, path in play(PathChooser(has_relay), dead))


@given(events)
def test_with_a_relay_there_is_a_way_from_the_first_attempt_on(told):
    moves = play(PathChooser(has_relay=True), told)
    assert all(path.kind != "none" for _, path in moves[1:])


@given(events)
def test_a_link_does_not_flap(told):
    """Between a failure and the next direct path lies the cool-down, and it doubles."""
    failures, failed_at = 0, 0.0
    moves = play(PathChooser(has_relay=True), told, relay_holds=True)
    for (since, before), (at, after) in pairwise(moves):
        if before.kind == "direct":
            failures = 1 if at - since >= PERIODS.steady_s else failures + 1
            failed_at = at
        elif after.kind == "direct" and failures:
            least_s = PERIODS.cool_down_s * 2.0 ** (failures - 1)
            assert at - failed_at >= min(least_s, PERIODS.cool_down_max_s) - 1e-6


@given(events, st.booleans())
def test_an_address_that_answers_for_good_is_taken_in_the_end(told, has_relay):
    chooser = PathChooser(has_relay)
    play(chooser, [*told, ("works", 4 * PERIODS.cool_down_max_s)])
    assert chooser.path == Path("direct", DIRECT)


@given(events, st.booleans())
def test_attempts_become_rare_but_never_stop(told, has_relay):
    chooser = PathChooser(has_relay)
    play(chooser, [*told, ("dead", 1.0)])
    if chooser.path.kind != "direct":
        assert chooser.next_try_at is not None
    attempts, now = 0, 0.0
    alone = PathChooser(has_relay)
    while now < 24 * 3600:
        alone.unanswered(now)
        now, attempts = alone.next_try_at, attempts + 1
    assert 24 * 4 <= attempts <= 24 * 4 + 15
