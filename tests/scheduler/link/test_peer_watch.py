"""When the far end of a link counts as silent: in virtual time, from when its frames come."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.link.peer_watch import BEAT_PERIOD_S, SILENT_MAX_S, SILENT_MIN_S, PeerWatch

TICK_S = 0.05
TCP_CUT_S = 1.1
"""A cut of 0.5 s as the receiver sees it: TCP repeats after 0.25 s and 0.5 s more, and the frame
before it left a beat earlier."""


def silent_at(arrivals, until, looks=None):
    """When the watch first says that nothing comes any more; None: never."""
    watch, due = PeerWatch(), sorted(arrivals)
    for now in looks or (tick * TICK_S for tick in range(int(until / TICK_S))):
        while due and due[0] <= now:
            watch.arrived(due.pop(0))
        if watch.look(now):
            return now
    return None


def beats(*pauses_s):
    return list(itertools.accumulate(pauses_s))


def steady(until):
    return [n * BEAT_PERIOD_S for n in range(int(until / BEAT_PERIOD_S) + 1)]


@given(st.lists(st.floats(0.0, 0.2), min_size=100, max_size=100))
def test_jitter_of_a_fifth_of_a_second_is_no_silence(delays_s):
    """Frames keep their order, as on one connection."""
    arrivals = list(itertools.accumulate(map(sum, zip(steady(19.9), delays_s, strict=True)), max))
    assert silent_at(arrivals, until=19.0) is None


@given(st.lists(st.floats(0.0, TCP_CUT_S), min_size=1, max_size=60))
def test_a_cut_of_half_a_second_is_no_silence_however_often_it_comes(pauses_s):
    assert silent_at(beats(*pauses_s), until=sum(pauses_s)) is None


@given(st.floats(0.0, 0.2), st.integers(1, 200))
def test_whoever_vanishes_is_missed_within_a_second_and_a_half(jitter_s, count):
    arrivals = [n * BEAT_PERIOD_S + (jitter_s if n % 2 else 0.0) for n in range(count)]
    found = silent_at(arrivals, until=arrivals[-1] + 10)
    assert SILENT_MIN_S <= found - arrivals[-1] <= 1.5


@given(st.floats(SILENT_MIN_S, SILENT_MAX_S), st.floats(0.0, 1.0))
def test_a_restless_line_has_more_time_but_not_more_than_a_node(pause_s, share):
    """It has stood still for so long before, and came back."""
    calm = steady(10.0)
    again = calm[-1] + pause_s
    arrivals = [*calm, *(again + at for at in calm)]
    watch = PeerWatch()
    for at in arrivals:
        watch.arrived(at)
    assert watch.silent_s(arrivals[-1] + share * min(SILENT_MAX_S, 1.5 * pause_s) - 1e-6) == 0
    assert watch.silent_s(arrivals[-1] + SILENT_MAX_S) == pytest.approx(SILENT_MAX_S)


def test_what_a_line_did_minutes_ago_is_forgotten():
    watch = PeerWatch()
    for at in [*steady(10.0), *(13.0 + at for at in steady(300.0))]:
        watch.arrived(at)
    assert watch.silent_s(313.01 + SILENT_MIN_S) > 0


def test_nothing_is_missed_before_anything_has_come():
    assert silent_at([], until=60.0) is None


def test_it_falls_silent_once_and_comes_back():
    watch = PeerWatch()
    watch.arrived(0.0)
    looks = [watch.look(tick / 10) for tick in range(30)]
    assert looks.count(True) == 1 and watch.silent_s(2.9) == pytest.approx(2.9)
    watch.arrived(3.0)
    assert watch.silent_s(3.1) == 0 and not watch.look(3.1)


@pytest.mark.parametrize("away_s", [0.7, 3.0, 60.0])
def test_who_was_away_itself_begins_to_count_anew(away_s):
    """A suspended process reads its sockets after it has looked at the clock."""
    before = [tick * TICK_S for tick in range(200)]
    after = [10.0 + away_s + tick * TICK_S for tick in range(200)]
    found = silent_at(steady(10.0), until=0.0, looks=[*before, *after])
    assert found is not None and found >= 10.0 + away_s + SILENT_MIN_S - TICK_S


def test_who_reads_nothing_misses_nobody():
    watch = PeerWatch()
    watch.arrived(0.0)
    for tick in range(100):
        watch.excuse(tick / 10)
        assert not watch.look(tick / 10)
