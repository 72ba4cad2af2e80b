"""A full card that swaps shows in decode steps alone, and nothing else is taken for it."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.engine.step import card_swapping as swapping
from molink.engine.step.card_swapping import (
    SECONDS_MIN,
    SLOWER_MIN,
    STEPS_MIN,
    SwapWatch,
    refuse_swapping,
    watch_of,
)
from molink.engine.step.step_output import StepOutput
from molink.errors import DeviceMemoryError
from molink_scheduler.batch import Batch, BatchClass, Span
from tests.engine.device.stand_in import GB, StandInCard

ROW_S, WEIGHTS = 0.02, 10**9


def first_slow(steps, watch=None):
    """(Number, time) of the first step of (seconds, KV bytes) at which decode is told slow."""
    watch, now = watch or SwapWatch(ROW_S, WEIGHTS), 100.0
    for number, (seconds, kv_bytes) in enumerate(steps, 1):
        now += seconds
        if watch.is_slow(seconds, kv_bytes, now):
            return number, now - 100.0
    return None


@given(st.lists(st.tuples(st.floats(0, SLOWER_MIN * 0.99), st.integers(0, 10**11)), max_size=200))
def test_steps_within_the_bound_are_never_slow(steps):
    expected = SwapWatch(ROW_S, WEIGHTS).expected_s
    assert first_slow([(times * expected(kv), kv) for times, kv in steps]) is None


@given(st.lists(st.integers(1, STEPS_MIN - 1), max_size=30), st.floats(5, 1000))
def test_one_good_step_begins_anew(runs, times):
    steps = [step for run in runs for step in [(times * ROW_S, 0)] * run + [(ROW_S, 0)]]
    assert first_slow(steps) is None


@given(st.floats(SLOWER_MIN * 1.001, 1000))
def test_lasting_slowness_is_told_once_both_bounds_are_met(times):
    number, after_s = first_slow([(times * ROW_S, 0)] * 1000)
    assert number >= STEPS_MIN and after_s >= SECONDS_MIN
    assert number == STEPS_MIN or after_s - times * ROW_S < SECONDS_MIN, "and no later"


@pytest.mark.parametrize(("kv_bytes", "slow"), [(0, True), (WEIGHTS, False)])
def test_long_contexts_take_longer_for_good_reasons(kv_bytes, slow):
    assert bool(first_slow([(5 * ROW_S, kv_bytes)] * 1000)) is slow


def decoded(stage, foreign, kind=BatchClass.DECODE):
    """Slow steps for a minute, beside programs that hold so much of the card."""
    stage.card.foreign = foreign
    watch, batch = SwapWatch(ROW_S, WEIGHTS), Batch(0, kind, 0, (Span(1, 40, 41, True),))
    for now in range(60):
        refuse_swapping(stage, watch, batch, 20 * ROW_S, float(now))


def test_a_full_card_ends_its_stage_with_one_sentence():
    stage = SimpleNamespace(card=StandInCard(), device="cuda:0", kv_token_bytes=1000)
    with pytest.raises(DeviceMemoryError, match="cuda:0 is full and its steps take 20 times"):
        decoded(stage, foreign=11 * GB + GB // 3)
    decoded(stage, foreign=11 * GB + GB // 3, kind=BatchClass.PREFILL)
    decoded(stage, foreign=10 * GB)


def test_what_a_step_takes_is_measured_when_a_stage_has_loaded(monkeypatch):
    times = iter([9.0, 0.03, 0.02, 0.02, 0.01])
    monkeypatch.setattr(swapping, "run_span", lambda *_: StepOutput(None, computed_s=next(times)))
    stage = SimpleNamespace(card=StandInCard(), weights_bytes=WEIGHTS)
    assert watch_of(stage) == SwapWatch(0.02, WEIGHTS)
    assert watch_of(SimpleNamespace(card=None)) is None
