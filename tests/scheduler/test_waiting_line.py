"""A ring's line is as long as it begins answers for within a time, whatever its pace is."""

import pytest

from molink_scheduler.waiting_line import (
    BEGINS_MEASURED,
    LINE_MIN,
    LINE_UNMEASURED_MAX,
    LONGER_MAX,
    RUNNING_MIN,
    SLOWER_MAX,
    WAIT_S,
    Wait,
    WaitingLine,
)


def begun(line: WaitingLine, count: int, every_s: float, now: float = 0.0) -> float:
    """So many begin in turn while others wait; the time afterwards."""
    line.joined(now)
    for _ in range(count):
        wait = line.joined(now)
        now += every_s
        line.began(wait, now)
    line.left(now)
    return now


def flooded(line: WaitingLine, now: float) -> int:
    """How many a flood leaves waiting."""
    while not line.is_full(WAIT_S, now):
        line.joined(now)
    return line.waiting


@pytest.mark.parametrize("every_s", [0.02, 0.1, 0.4])
def test_a_flood_fills_it_as_far_as_the_pace_allows(every_s):
    line = WaitingLine()
    now = begun(line, 100, every_s)
    assert flooded(line, now) == pytest.approx(WAIT_S / every_s, abs=2)
    assert line.wait_s(now) == pytest.approx(WAIT_S, rel=0.1)


def test_a_short_line_is_never_full():
    line = WaitingLine()
    now = begun(line, 100, 60.0)
    assert flooded(line, now) == LINE_MIN


def test_before_its_pace_is_known_a_burst_is_taken_up_to_a_number():
    assert flooded(WaitingLine(), 5.0) == LINE_UNMEASURED_MAX
    line = WaitingLine()
    begun(line, BEGINS_MEASURED - 1, 10.0)
    assert line.wait_s(100.0) is None


def test_time_without_a_line_does_not_count():
    """A request an hour, begun after 0.1 s: the next burst is judged by the 0.1 s."""
    line, now = WaitingLine(), 0.0
    for _ in range(100):
        line.began(line.joined(now), now + 0.1)
        now += 3600.0
    assert flooded(line, now) == pytest.approx(WAIT_S / 0.1, abs=2)


def test_the_pace_follows_the_ring():
    line = WaitingLine()
    now = begun(line, 100, 0.02)
    now = begun(line, 100, 0.4, now)
    assert flooded(line, now) == pytest.approx(WAIT_S / 0.4, rel=0.3)


@pytest.mark.parametrize(("came", "longer"), [(0.5, 1.0), (1.5, 1.5), (9.0, LONGER_MAX)])
def test_forecasts_that_came_too_short_make_the_next_ones_longer(came, longer):
    line = WaitingLine()
    now = begun(line, 100, 0.1)
    for _ in range(100):
        line.joined(now)
        now += 0.1
        line.began(Wait(now - 4.0 * came, 4.0), now)
    assert flooded(line, now) == pytest.approx(WAIT_S / 0.1 / longer, rel=0.1)


def test_while_nothing_begins_the_wait_grows():
    line = WaitingLine()
    now = begun(line, 100, 0.1)
    for _ in range(20):
        line.joined(now)
    before_s = line.wait_s(now)
    assert line.wait_s(now + 30.0) > 3 * before_s


def test_who_gives_up_makes_room():
    line = WaitingLine()
    now = begun(line, 100, 0.1)
    flooded(line, now)
    for _ in range(5):
        line.left(now)
    assert not line.is_full(WAIT_S, now)


def running(line: WaitingLine, users: int, gap_s: float, rounds: int) -> WaitingLine:
    """So many users decode for some rounds."""
    for _ in range(users - line.running):
        line.began(line.joined(0.0), 0.0)
    for _ in range(rounds * users):
        line.round_came(gap_s)
    return line


def test_who_would_make_all_slower_is_refused():
    line = running(WaitingLine(), 8, 0.1, 100)
    assert not running(line, 64, 0.1 * SLOWER_MAX, 50).is_full(WAIT_S, 0.0)
    assert running(line, 80, 0.11 * SLOWER_MAX, 50).is_full(WAIT_S, 0.0)
    for _ in range(80 - RUNNING_MIN + 1):
        line.ended()
    assert not line.is_full(WAIT_S, 0.0)


def test_a_ring_that_was_always_slow_takes_users():
    assert not running(WaitingLine(), 100, 3.0, 100).is_slow


def test_a_stall_whose_tokens_come_at_once_is_neither_fast_nor_slow():
    """Every 2 s the coordinator stands still for half a second, and 5 rounds come together."""
    line = running(WaitingLine(), 20, 0.1, 100)
    for _ in range(50):
        running(line, 20, 0.1, 15)
        running(line, 20, 0.5, 1)
        running(line, 20, 0.0, 4)
        assert not line.is_slow
    assert not running(line, 20, 0.1, 100).is_slow
