"""The number of micro-batches in use: near the best for who is there now, whatever was before."""

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.head.micro_batch_choice import HOLD_S, MicroBatchChoice
from molink_scheduler.timing.round_model import HopCost, RoundModel, StageCost

STAGES = 10
LONG_RING = RoundModel((StageCost(2.4e-3, 5e-5),) * STAGES, (HopCost(0.033, 0.66e-3),) * STAGES)
"""Ten fast devices, 100 Mbps and 30 ms: with 80 users one micro-batch makes rounds of 0.9 s, ten
make them of 0.4 s."""

TRIPS_UNTIL_JUDGED = 64
"""Enough for one change and its judgement to begin."""


def a_choice(count=1) -> MicroBatchChoice:
    return MicroBatchChoice(range(1, 2 * STAGES + 1), count=count)


def live(choice, users, trips, *, ring=LONG_RING, model=LONG_RING, now=0.0, share=0.0) -> float:
    """Let trips end on a ring that takes what `ring` says, where the head believes `model`; the
    time afterwards."""
    for _ in range(trips):
        round_s = ring.cycle_s(users, min(users, choice.count))
        now += round_s / choice.count
        choice.round_completed(round_s, users, lambda: model, now, share)
    return now


def times_the_best(count, users, ring=LONG_RING) -> float:
    best_s = min(ring.cycle_s(users, some) for some in range(1, min(users, 2 * STAGES) + 1))
    return ring.cycle_s(users, min(users, count)) / best_s


def test_an_end_of_prompts_is_no_return_to_the_count_of_a_few_users():
    choice = a_choice(count=1)
    for users in (1, 5, 20, 80):
        live(choice, users, 10, share=0.1)
    live(choice, 80, 1)
    assert times_the_best(choice.count, 80) < 1.1


def test_an_end_of_prompts_brings_back_what_was_measured_for_as_many_users():
    """Of one and six, one is best here, though the model says six."""
    alone, believed = ring_of(fixed_s=0.02), ring_of(fixed_s=0.001)
    choice = MicroBatchChoice((1, 6), count=1)
    live(choice, 6, TRIPS_UNTIL_JUDGED, ring=alone, model=believed)
    assert choice.count == 1, "six were tried and took longer"
    later = 2 * HOLD_S
    live(choice, 6, 5, ring=alone, model=believed, now=later, share=0.1)
    live(choice, 6, 1, ring=alone, model=believed, now=later)
    assert choice.count == 1, "the model would have six"


def test_a_count_that_disappoints_is_left_alone_for_a_while():
    alone, believed = ring_of(fixed_s=0.02), ring_of(fixed_s=0.001)
    choice = MicroBatchChoice((1, 6), count=1)
    now = live(choice, 6, TRIPS_UNTIL_JUDGED, ring=alone, model=believed)
    assert choice.count == 1, "six were tried and took longer"
    for _ in range(100):
        now = live(choice, 6, 1, ring=alone, model=believed, now=now)
        assert choice.count == 1
    live(choice, 6, TRIPS_UNTIL_JUDGED // 2, ring=alone, model=believed, now=now + HOLD_S)
    assert choice.count == 6, "and are tried again"


def ring_of(fixed_s: float) -> RoundModel:
    return RoundModel((StageCost(fixed_s, 0.002),) * 3, (HopCost(0.01, 0.0),) * 3)


def test_users_who_leave_do_not_make_a_good_count_look_bad():
    choice = a_choice(count=5)
    now = live(choice, 127, 40)
    tried = choice.count
    assert tried > 5
    live(choice, 66, TRIPS_UNTIL_JUDGED, now=now)
    assert choice.count == tried


@given(st.lists(st.integers(1, 150), min_size=1, max_size=6), st.sampled_from((0.0, 0.01, 0.03)))
def test_who_stays_for_a_while_has_nearly_the_best_count(crowds, delay_s):
    ring = RoundModel(LONG_RING.stages, (HopCost(delay_s, 0.66e-3),) * STAGES)
    choice, now = a_choice(), 0.0
    for users in crowds:
        now = live(choice, users, 3 * TRIPS_UNTIL_JUDGED, ring=ring, model=ring, now=now)
        assert times_the_best(choice.count, users, ring) < 1.1
