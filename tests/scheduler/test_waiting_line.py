"""A ring's line is as long as it begins answers for within a time, whatever its pace is."""

import pytest

from molink_scheduler.waiting_line import (
    BEGINS_MEASURED,
    LINE_MIN,
    LINE_UNMEASURED_MAX,
    WAIT_S,
    WaitingLine,
)


def begun(line: WaitingLine, count: int, every_s: float, now: float = 0.0) -> float:
    """So many begin in turn while others wait; the time afterwards."""
    line.joined(now)
    for _ in range(count):
        line.joined(now)
        now += every_s
        line.began(now)
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
        line.joined(now)
        line.began(now + 0.1)
        now += 3600.0
    assert flooded(line, now) == pytest.approx(WAIT_S / 0.1, abs=2)


def test_the_pace_follows_the_ring():
    line = WaitingLine()
    now = begun(line, 100, 0.02)
    now = begun(line, 100, 0.4, now)
    assert flooded(line, now) == pytest.approx(WAIT_S / 0.4, rel=0.3)


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
