"""Whether a lender is near enough, by its echoes."""

import pytest

from molink.coordinator.cell.echo_links import (
    ANSWER_WITHIN_S,
    CALM_S,
    MEASURE_EVERY_S,
    STEADY_MOST_S,
    EchoLink,
)
from molink_scheduler.cell.ledger import STEADY_S


def of_ms(fast: int, slow_ms: float, fast_ms: float = 0.3) -> list[float]:
    return [fast_ms / 1e3] * fast + [slow_ms / 1e3] * (20 - fast)


@pytest.mark.parametrize(
    ("echoes", "is_in"),
    [
        (of_ms(20, 0), True),
        (of_ms(19, 9), True),
        (of_ms(18, 9), False),
        (of_ms(0, 1.0), False),
        (of_ms(0, 0.999), True),
        ([], False),
    ],
)
def test_nearly_all_echoes_have_to_be_fast(echoes, is_in):
    link = EchoLink()
    link.judge(echoes, 0.0)
    assert (link.is_in, link.is_judged) == (is_in, True)


def test_between_both_bounds_nothing_changes():
    link = EchoLink()
    link.judge(of_ms(0, 1.2), 0.0)
    assert not link.is_in and link.near_s == pytest.approx(1.2e-3)
    link.judge(of_ms(20, 0), 60.0)
    link.judge(of_ms(0, 1.4), 120.0)
    assert link.is_in
    link.judge(of_ms(0, 1.5), 180.0)
    assert not link.is_in


def test_a_link_that_fell_out_has_to_be_steady():
    link = EchoLink()
    link.judge(of_ms(20, 0), 0.0)
    link.judge([], 60.0)
    link.judge(of_ms(20, 0), 60.0 + STEADY_S - 1)
    assert not link.is_in and link.near_s == pytest.approx(3e-4)
    link.judge(of_ms(20, 0), 60.0 + STEADY_S)
    assert link.is_in


def times_in(link: EchoLink, fast, start: float, minutes: int) -> tuple[int, float]:
    """How often a link that is measured each minute comes in, and when it did last."""
    came, at = 0, start
    for minute in range(minutes):
        was_in, now = link.is_in, start + 60.0 * minute
        link.judge(of_ms(20, 0) if fast(minute) else [], now)
        came, at = (came + 1, now) if link.is_in and not was_in else (came, at)
    return came, at


def test_a_link_that_falls_out_again_and_again_has_to_be_steady_for_longer_each_time():
    link = EchoLink()
    came, _ = times_in(link, lambda minute: minute % 5, 0.0, 600)
    assert came == 3, "at first, after 2 minutes, after 4"
    _, at = times_in(link, lambda minute: True, 36_000.0, 70)
    assert link.is_in and at - 36_000.0 < STEADY_MOST_S
    link.judge([], 36_000.0 + CALM_S + STEADY_MOST_S)
    came, at = times_in(link, lambda minute: True, 41_580.0, 5)
    assert came == 1 and at == 41_580.0 + STEADY_S - 60.0, "it was calm for an hour"


def test_a_measurement_is_due_each_minute_and_overdue_without_an_answer():
    link = EchoLink()
    assert link.is_due(0.0)
    link.ask(7, "k", 0.0)
    assert not link.is_due(ANSWER_WITHIN_S) and link.is_overdue(ANSWER_WITHIN_S)
    link.judge((), 30.0)
    assert not link.is_overdue(1e9) and not link.is_due(30.0 + MEASURE_EVERY_S - 1)
    assert link.is_due(30.0 + MEASURE_EVERY_S) and link.round == 1
