"""The cost model of a round, its arithmetic and its search; the step profile that feeds it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.head.micro_batch_choice import MicroBatchChoice
from molink_scheduler.timing.round_model import (
    HopCost,
    RoundModel,
    StageCost,
    best_beside_prefill,
    best_micro_batch_count,
)
from molink_scheduler.timing.round_tracker import RoundTracker, StageStamp
from molink_scheduler.timing.steps import PrefillLoad, StepProfile


def ring_of(fixed_ms, row_ms, one_way_ms, wire_row_ms=0.0, stages=3) -> RoundModel:
    stage = StageCost(fixed_ms / 1e3, row_ms / 1e3)
    hop = HopCost(one_way_ms / 1e3, wire_row_ms / 1e3)
    return RoundModel((stage,) * stages, (hop,) * stages)


def test_one_micro_batch_makes_one_trip():
    model = ring_of(fixed_ms=6, row_ms=0.1, one_way_ms=30)
    assert model.cycle_s(8, 1) == pytest.approx(3 * (0.006 + 0.0008) + 0.09)


def test_where_weights_dominate_one_micro_batch_is_best():
    model = ring_of(fixed_ms=6.3, row_ms=0.14, one_way_ms=30)
    assert best_micro_batch_count(model, 8, range(1, 7), present=1) == 1


def test_where_rows_dominate_more_than_the_stages_pay():
    model = ring_of(fixed_ms=1, row_ms=2, one_way_ms=30, wire_row_ms=0.6)
    count = best_micro_batch_count(model, 64, range(1, 7), present=1)
    assert count > 3
    assert model.cycle_s(64, count) < 0.7 * model.cycle_s(64, 1)


def test_a_change_that_gains_little_is_not_made():
    model = ring_of(fixed_ms=6, row_ms=0.5, one_way_ms=30)
    best = min(range(1, 7), key=lambda count: model.cycle_s(8, count))
    near = next(
        c for c in range(1, 7) if c != best and model.cycle_s(8, c) < 1.04 * model.cycle_s(8, best)
    )
    assert best_micro_batch_count(model, 8, range(1, 7), present=near) == near


@given(
    st.floats(0.1, 20), st.floats(0.01, 5), st.floats(0, 100), st.floats(0, 5), st.integers(1, 100)
)
def test_the_choice_is_within_the_margin_of_the_best(fixed, row, delay, wire, running):
    model = ring_of(fixed, row, delay, wire)
    candidates = range(1, 7)
    count = best_micro_batch_count(model, running, candidates, present=3)
    cycles = [model.cycle_s(running, c) for c in candidates if c <= running]
    assert 1 <= count <= max(running, 3)
    assert model.cycle_s(running, min(count, running)) <= min(cycles) / 0.95 + 1e-9


@given(st.floats(0.001, 0.05), st.floats(0.0001, 0.005), st.permutations(list(range(1, 20))))
def test_the_profile_finds_the_line(fixed_s, row_s, row_counts):
    profile = StepProfile()
    for rows in row_counts:
        profile.observe(rows, fixed_s + rows * row_s)
    assert profile.fixed_s == pytest.approx(fixed_s, rel=1e-6, abs=1e-9)
    assert profile.row_s == pytest.approx(row_s, rel=1e-6)
    assert profile.rows_within(fixed_s + 10.5 * row_s) == 10
    assert profile.rows_within(fixed_s / 2) == 0


def test_steps_of_one_size_have_no_slope():
    profile = StepProfile()
    for _ in range(5):
        profile.observe(8, 0.007)
    assert profile.row_s == 0.0
    assert profile.step_s(8) == pytest.approx(0.007)
    assert profile.rows_within(0.001) == 0


def test_nothing_known_predicts_nothing():
    assert StepProfile().step_s(100) == 0.0
    assert not StepProfile().known


def test_the_profile_follows_a_stage_that_slows_down():
    profile = StepProfile()
    for slowdown in (1, 3):
        for step in range(200):
            rows = 1 + step % 8
            profile.observe(rows, slowdown * (0.006 + 0.001 * rows))
    assert profile.step_s(4) == pytest.approx(3 * 0.010, rel=0.05)


def a_trip(tracker, circling, trip_s, steps_s, rows=4) -> float:
    """As many micro-batches leave, the first comes back; the delay that is believed then."""
    for place in range(circling):
        tracker.departed(place, rows, now=1.0)
    tracker.returned(0, [StageStamp(step_s, 0.0) for step_s in steps_s], now=1.0 + trip_s)
    model = tracker.model()
    return sum(hop.fixed_s for hop in model.hops)


def test_waiting_for_one_another_is_no_delay():
    steps_s = (0.05, 0.01, 0.01)
    tracker = RoundTracker(row_bytes=8192)
    assert a_trip(tracker, 1, 0.11, steps_s) == pytest.approx(0.04)
    for _ in range(50):
        delay_s = a_trip(tracker, 6, 0.3, steps_s)
    assert delay_s == pytest.approx(0.04)
    once_s = a_trip(tracker, 6, 0.3, (0.25, 0.01, 0.01))
    assert 0.03 < once_s < 0.04, "one trip with too slow a stamp is no proof"
    for _ in range(100):
        delay_s = a_trip(tracker, 6, 0.3, (0.25, 0.01, 0.01))
    assert delay_s == pytest.approx(0.03, rel=0.01), "it may be less"


def test_a_longer_way_is_believed_where_nothing_is_full():
    tracker = RoundTracker(row_bytes=8192)
    a_trip(tracker, 1, 0.11, (0.05, 0.01, 0.01))
    for _ in range(50):
        delay_s = a_trip(tracker, 2, 0.27, (0.05, 0.01, 0.01))
    assert delay_s == pytest.approx(0.2, rel=0.02)


def test_beside_prompts_fewer_micro_batches_are_better():
    """The ring of the first benchmark at 20 Mbps and 30 ms, six users."""
    ring = RoundModel((StageCost(4.2e-3, 0.35e-3),) * 3, (HopCost(0.03, 0.6e-3),) * 2)
    counts = range(1, 7)
    assert best_beside_prefill(ring, 6, counts, 0.0, present=1) == 6
    assert best_beside_prefill(ring, 6, counts, 1.0, present=7) == 2
    assert best_beside_prefill(ring, 6, (), 0.3, present=4) == 4


def test_beside_prompts_the_count_does_not_flap():
    """Costs of 1, 2 and 3 are nearly alike: whichever is in use stays."""
    ring = RoundModel((StageCost(4.2e-3, 0.35e-3),) * 3, (HopCost(0.03, 0.6e-3),) * 2)
    for present in (1, 2, 3):
        assert best_beside_prefill(ring, 6, range(1, 7), 0.3, present) == present


def test_a_load_of_prompts_lowers_the_count_and_an_end_of_it_raises_it_again():
    ring = RoundModel((StageCost(4.2e-3, 0.35e-3),) * 3, (HopCost(0.03, 0.6e-3),) * 2)
    choice = MicroBatchChoice(range(1, 7), count=6)
    beside = choice.round_completed(0.1, 6, lambda: ring, 0.0, prefill_share=0.3)
    assert beside < 6
    assert choice.round_completed(0.1, 6, lambda: ring, 0.1, prefill_share=0.2) == beside
    assert choice.round_completed(0.1, 6, lambda: ring, 0.2, prefill_share=0.0) == 6


@given(st.lists(st.floats(0.001, 0.5), max_size=20))
def test_the_load_of_prompts_is_forgotten(steps):
    load = PrefillLoad()
    for seconds in steps:
        load.computed(seconds, now=1.0)
    assert load.share(1.0) == pytest.approx(sum(steps) / 5.0)
    assert load.share(31.0) <= 0.003 * load.share(1.0)


def test_drafts_are_rows_of_a_round_and_no_users():
    """Four users of five rows each: the model predicts their rounds, and no count of micro-batches
    beyond the users."""
    tracker = RoundTracker(row_bytes=8192)
    for trip in range(60):
        rows = 4 + 2 * (trip % 2)
        tracker.departed(0, 5 * rows, float(trip), requests=rows)
        tracker.returned(0, [StageStamp(0.01 + 0.001 * 5 * rows, 0.0)] * 2, trip + 0.5)
    model = tracker.model()
    assert model.rows_each == pytest.approx(5, rel=0.01)
    assert model.device_s(4, 1) == pytest.approx(0.01 + 0.001 * 20, rel=0.02)
    assert best_micro_batch_count(model, 4, range(1, 20), 1) <= 4


def passes_of(trip: int) -> int:
    """Widths as they open, then for long the same."""
    return (1, 3, 7, 6, 5)[trip % 5] if trip < 60 else 6


@pytest.mark.parametrize("trips", [60, 400])
def test_a_pass_of_the_tails_drafter_is_told_from_its_rows(trips):
    """Seven drafts wanted with one span are rows of the next."""
    tracker, before = RoundTracker(row_bytes=8192), 0
    for trip in range(trips):
        passes, rows = passes_of(trip), 4 * (1 + before)
        before = passes
        tracker.departed(0, rows, float(trip), 4, passes)
        step_s = 0.01 + 0.001 * rows
        stamps = [StageStamp(step_s, 0.0), StageStamp(step_s + 0.003 * passes, 0.0)]
        tracker.returned(0, stamps, trip + 0.5)
    model = tracker.model()
    assert model.pass_s == pytest.approx(0.003, rel=0.1)
    head, tail = model.stages
    assert (tail.fixed_s, tail.row_s) == pytest.approx((head.fixed_s, head.row_s), rel=0.15)
    rows_s = 0.001 * 4 * model.rows_each
    assert model.device_s(4, 1) == pytest.approx(0.01 + rows_s + 0.003 * model.passes, rel=0.1)


def test_without_passes_a_ring_is_as_before():
    tracker = RoundTracker(row_bytes=8192)
    for trip in range(20):
        tracker.departed(0, 4, float(trip))
        tracker.returned(0, [StageStamp(0.01, 0.0)], trip + 0.5)
    assert (tracker.model().pass_s, tracker.model().passes) == (0.0, 0.0)
