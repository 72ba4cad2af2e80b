"""A ring that stands is found within seconds, and so is the stage at which it does."""

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.coordinator.ring.live_sequence import Served
from molink.coordinator.upkeep.ring_progress import (
    IDLE_S,
    LATE_S,
    PATIENCE_MIN_S,
    ROUNDS_MAX,
    WAKING_PATIENCE_S,
    ForecastPace,
    RingProgress,
    Stuck,
)
from molink.stage_protocol.progress import StageProgress

ROWS = 4
"""Of a micro-batch; one goes round each second."""

WITHIN_S = 15.0
"""Users' requests are to go on elsewhere by then."""


@dataclass
class SimulatedRing:
    """Ring whose stage `bad` takes rows in and puts none out from some moment on; `lie` is what it
    says then: nothing untrue, that all has gone on, or that nothing came."""

    size: int
    bad: int | None = None
    lie: str = ""
    drops: int | None = None
    """The stage that refuses one micro-batch, then goes on."""
    taken: list[int] = field(init=False)
    put: list[int] = field(init=False)
    tokens: int = 0
    dropped: int = 0
    waits_s: float = 0.0

    def __post_init__(self):
        self.taken, self.put = [0] * self.size, [0] * self.size

    def go_round(self):
        """One micro-batch, as far as it comes."""
        if self.drops is None and self.waits_s and self.bad is not None:
            self.waits_s += 1.0  # Its only slot is taken.
            return
        for stage in range(self.size):
            if stage:
                if stage == self.drops:
                    self.dropped, self.drops, self.waits_s = 1, None, 1.0
                    return
                self.taken[stage] += ROWS
            if stage == self.bad:
                self.waits_s = 1.0 if stage else 0.0
                return
            self.put[stage] += ROWS
        self.taken[0] += ROWS
        self.tokens += 1
        self.waits_s += 1.0 if self.waits_s else 0.0

    def said(self):
        found = [
            StageProgress(rows_in=i, rows_out=o) for i, o in zip(self.taken, self.put, strict=True)
        ]
        if self.bad is not None and self.lie == "gone on":
            found[self.bad] = replace(found[self.bad], rows_out=found[self.bad].rows_in)
        if self.bad is not None and self.lie == "never came":
            found[self.bad] = replace(found[self.bad], rows_in=found[self.bad].rows_out)
        found[0] = replace(found[0], round_waits_s=self.waits_s)
        return found


def looked_at(ring, progress, until, served=None, began=0.0):
    """The verdict and when it came, asked once a second."""
    now = began
    while now <= until:
        ring.go_round()
        stuck = progress.update(served or Served(ring.tokens, 1, 0, 0.1), ring.said(), now)
        if stuck is not None:
            return stuck, now
        now += 1.0
    return None, now


@settings(deadline=None)
@given(
    size=st.integers(1, 5),
    bad=st.integers(0, 4),
    lie=st.sampled_from(["", "gone on", "never came"]),
    before=st.integers(0, 40),
)
def test_who_holds_the_rows_is_found_whatever_it_says(size, bad, lie, before):
    ring, progress = SimulatedRing(size), RingProgress(ForecastPace(0.1, 0.001))
    stuck, now = looked_at(ring, progress, float(before))
    assert stuck is None
    ring.bad, ring.lie = bad % size, lie if bad % size else ""
    stuck, found_at = looked_at(ring, progress, now + 100.0, began=now)
    assert stuck is not None and found_at - now <= WITHIN_S
    assert ring.bad in (stuck.stage, stuck.about)
    if not ring.lie:
        assert stuck.about is None, "what is known for certain is not shared"


def test_rows_that_one_refuses_are_held_against_who_sent_them():
    ring = SimulatedRing(3, drops=2)
    progress = RingProgress(ForecastPace(0.1, 0.001))
    for second in range(14):
        ring.go_round()
        said = ring.said()
        said[2] = replace(said[2], dropped=ring.dropped)
        stuck = progress.update(Served(ring.tokens, 1, 0, 0.1), said, float(second))
        if stuck is not None:
            break
    assert stuck == Stuck(stuck.reason, 2, 1), "while others' tokens still come"
    assert "refused" in stuck.reason


@pytest.mark.parametrize(("at_head", "culprit"), [(True, 2), (False, 0)])
def test_where_all_counts_agree_the_ends_are_at_fault(at_head, culprit):
    """Tokens that reach the head but not us are the tail's to send; else the head sends nothing."""
    progress, rows, stuck = RingProgress(ForecastPace(0.1, 0.001)), 0, None
    for second in range(14):
        rows += ROWS if at_head else 0
        stages = [StageProgress(rows_in=rows, rows_out=rows)] * 3
        stuck = stuck or progress.update(Served(7, 1, 0, 0.1), stages, float(second))
    assert (stuck.stage, stuck.about) == (culprit, None)


def test_a_ring_for_which_nobody_waits_may_stand():
    progress, idle = RingProgress(ForecastPace(0.1, 0.001)), [StageProgress()]
    for second in range(1000):
        assert progress.update(Served(5, 0, 0, 0.1), idle, float(second)) is None
    for second in range(1000, 999 + int(PATIENCE_MIN_S)):
        assert progress.update(Served(5, 1, 0, 0.1), idle, float(second)) is None


@pytest.mark.parametrize(
    ("idle_s", "patience_s"),
    [(IDLE_S, PATIENCE_MIN_S), (IDLE_S + 1, WAKING_PATIENCE_S), (9 * IDLE_S, WAKING_PATIENCE_S)],
)
def test_the_first_request_after_long_idleness_is_waited_for_longer(idle_s, patience_s):
    progress, second = RingProgress(ForecastPace(0.1, 0.0)), 0.0
    while second < idle_s:
        assert progress.update(Served(5, 0, 0, 0.1), [StageProgress()], second) is None
        second += 1.0
    waits = Served(5, 0, 100, 0.1)
    while progress.update(waits, [StageProgress()], second) is None:
        second += 1.0
    assert second == idle_s - 1 + patience_s


def test_once_a_token_has_come_the_ring_is_awake():
    progress, second = RingProgress(ForecastPace(0.1, 0.0)), 0.0
    while second < 2 * IDLE_S:
        assert progress.update(Served(5, 0, 0, 0.1), [StageProgress()], second) is None
        second += 1.0
    assert progress.update(Served(5, 0, 100, 0.1), [StageProgress()], second) is None
    while progress.update(Served(6, 1, 0, 0.1), [StageProgress()], second + 1) is None:
        second += 1.0
    assert second == 2 * IDLE_S + PATIENCE_MIN_S


def test_a_slow_ring_is_waited_for_in_proportion():
    progress, silent_s = RingProgress(ForecastPace(0.1, 0.001)), 0.0
    while progress.update(Served(5, 1, 0, 2.0), [StageProgress()], silent_s) is None:
        silent_s += 1.0
    assert silent_s == ROUNDS_MAX * 2.0


def test_a_long_prompt_is_waited_for_as_long_as_it_may_take():
    progress, silent_s = RingProgress(ForecastPace(0.1, 0.01)), 0.0
    while progress.update(Served(5, 0, 4000, 0.1), [StageProgress()], silent_s) is None:
        silent_s += 1.0
    assert silent_s == PATIENCE_MIN_S + 3 * 4000 * 0.01


def test_a_coordinator_that_was_suspended_blames_nobody():
    progress, stage = RingProgress(ForecastPace(0.1, 0.001)), [StageProgress(round_waits_s=1e4)]
    for at in range(100):
        assert progress.update(Served(5, 1, 0, 0.1), stage, at * (LATE_S + 0.1)) is None


SPAN = 128
"""Rows of a prompt that leave together."""


def prompt_goes_round(progress, served, span_s, until, at_head=True, at_tail=True):
    """The verdict and when it came, asked once a second while a span comes round each `span_s`."""
    for second in range(until):
        rows = SPAN * int(second / span_s)
        head = StageProgress(rows_in=rows * at_head, rows_out=rows + SPAN, prompt_waits_s=1.0)
        tail = StageProgress(rows_in=rows + SPAN, rows_out=rows * at_tail)
        stuck = progress.update(served, [head, tail], float(second))
        if stuck is not None:
            return stuck, second
    return None, until


@pytest.mark.parametrize(
    "served",
    [
        pytest.param(Served(5, 1, 0, 0.1), id="preempted and computed again alone"),
        pytest.param(Served(5, 0, 10_000, 0.1), id="behind a longer one that was cancelled"),
        pytest.param(Served(5, 0, 131_072, 0.1), id="whose attention is long"),
    ],
)
def test_a_prompt_is_waited_for_while_its_rows_go_round(served):
    progress = RingProgress(ForecastPace(0.1, 0.001))
    assert prompt_goes_round(progress, served, 6.5, 3600) == (None, 3600)


@pytest.mark.parametrize(("at_head", "at_tail"), [(True, False), (False, True)])
def test_that_rows_of_a_prompt_go_round_takes_more_than_one_who_says_so(at_head, at_tail):
    progress = RingProgress(ForecastPace(0.1, 0.001))
    stuck, at = prompt_goes_round(progress, Served(5, 1, 0, 0.1), 1.0, 100, at_head, at_tail)
    assert stuck is not None and at <= WITHIN_S
