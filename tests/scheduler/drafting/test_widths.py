"""How much is drafted: against the figures of a measured ring, and within its bounds anywhere."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.drafting import widths as widths_module
from molink_scheduler.drafting.acceptance import FIRST_MEAN, Acceptance, DraftKind
from molink_scheduler.drafting.proposals import COPY, GRAMMAR, TAIL
from molink_scheduler.drafting.widths import (
    LONGER_MAX,
    LONGER_MAX_FULL,
    PROBE_ROUNDS,
    PROBE_ROUNDS_MAX,
    DraftLoad,
    DraftWidths,
    wanted_widths,
)
from molink_scheduler.timing.round_model import HopCost, RoundModel, StageCost

MODEL = DraftKind("a model")

ALONE_SHARE = 0.94
"""Share of the model's tokens that several users of a ring were measured to get."""


def home_ring(mbps=100.0, row_bytes=1536, one_way_s=0.030, micro_batches=3, step_s=0.9e-3):
    """Three stages of the 88M model that were measured: two links carry rows, the last tokens."""
    wire_s = row_bytes * 8 / (mbps * 1e6)
    delay_s = one_way_s + 0.0077 / 3
    hops = (HopCost(delay_s, wire_s), HopCost(delay_s, wire_s), HopCost(delay_s, 0.0))
    return DraftLoad(
        RoundModel((StageCost(2.6e-3, 0.2e-3),) * 3, hops), micro_batches, step_s=step_s
    )


def round_s(load, users, width):
    """One cycle where each user has so many drafts, by the arithmetic of the round's model."""
    rows = users * (1 + width) / max(1, min(load.micro_batch_count, users))
    trip_s = sum(one.fixed_s + rows * one.row_s for one in (*load.costs.stages, *load.costs.hops))
    return trip_s + width * load.step_s


def tokens(chance, width):
    """Tokens of a round of so many drafts."""
    return sum(chance**depth for depth in range(width + 1))


def tokens_per_s(load, users, width, chance=0.88):
    share = ALONE_SHARE if users > 1 else 1.0
    return share * users * tokens(chance, width) / round_s(load, users, width)


@pytest.mark.parametrize(
    ("width", "users", "figure"),
    [
        *((0, 1, 9.1), (0, 4, 35), (0, 8, 69), (0, 16, 135)),
        *((4, 1, 34), (4, 4, 128), (4, 8, 243), (4, 16, 442)),
        *((6, 1, 42), (6, 4, 154), (6, 8, 288), (6, 16, 509)),
    ],
)
def test_the_costs_are_those_of_the_ring_that_was_reckoned(width, users, figure):
    assert tokens_per_s(home_ring(), users, width) == pytest.approx(figure, rel=0.05)


@pytest.mark.parametrize(
    ("users", "mbps", "row_bytes"),
    [(u, m, b) for u in (1, 4, 8, 16) for m, b in ((100, 1536), (20, 1536), (20, 8192))],
)
def test_the_widths_make_as_many_tokens_as_the_best_that_is_within_the_bounds(
    users, mbps, row_bytes
):
    load = home_ring(mbps, row_bytes)
    chosen = wanted_widths(dict.fromkeys(range(users), 0.88), load, 16)
    least, most = min(chosen.values()), max(chosen.values())
    assert most - least <= 2
    within = [
        k for k in range(17) if round_s(load, users, k) <= LONGER_MAX * round_s(load, users, 0)
    ]
    best = max(tokens_per_s(load, users, k) for k in within)
    assert tokens_per_s(load, users, most) >= 0.9 * best


def test_one_user_over_home_links_gets_four_times_the_tokens():
    load = home_ring()
    (width,) = wanted_widths({1: 0.88}, load, 16).values()
    assert tokens_per_s(load, 1, width) >= 36


def test_rows_that_cost_a_seventh_of_a_round_are_drafted_where_they_pay():
    """As of gpt-oss-120b on four cards that unpack their experts: 147 ms, and 21 for each row."""
    stages = (StageCost(1.3e-3, 4.9e-3),) * 4
    hops = (*(HopCost(0.03, 0.46e-3),) * 3, HopCost(0.03, 0.0))
    (width,) = wanted_widths({1: 0.74}, DraftLoad(RoundModel(stages, hops), 1, 1e-3), 16).values()
    assert width == 3


def test_a_round_gets_longer_only_as_far_as_who_gains_least_gets_more_of_it():
    """A row costs a seventh of a round; one user's text cannot be guessed."""
    stages = (StageCost(1.3e-3, 4.9e-3),) * 4
    load = DraftLoad(RoundModel(stages, (HopCost(0.0225, 0.0),) * 4), 2)
    assert set(wanted_widths({1: 0.87, 2: 0.87}, load, 16).values()) == {2, 3}
    assert wanted_widths({1: 0.87, 2: 0.0}, load, 16) == {1: 1, 2: 0}


def test_sixteen_users_of_a_wide_model_on_a_slow_link_get_few_drafts_or_none():
    load = home_ring(20, 8192)
    widths = wanted_widths(dict.fromkeys(range(16), 0.88), load, 16)
    assert max(widths.values()) <= 2


def test_a_full_link_gets_none():
    load = home_ring(5, 8192)
    assert set(wanted_widths(dict.fromkeys(range(16), 0.88), load, 16).values()) == {0}


def test_a_step_that_none_would_pay_alone_is_paid_by_all():
    load = home_ring(step_s=4e-3)
    together = wanted_widths(dict.fromkeys(range(8), 0.3), load, 16)
    alone = widths_module._Cycle(load, 8)
    price_per_s = 1.1 * 8 / alone.cycle_s(8, 0)
    assert price_per_s * (alone.cost_s(9, 1) - alone.cost_s(8, 0)) > 0.3
    assert min(together.values()) >= 1


def test_what_rows_take_from_prompts_counts():
    quiet = home_ring(step_s=0.0)
    busy = DraftLoad(quiet.costs, quiet.micro_batch_count, prefill_share=0.5)
    users = dict.fromkeys(range(16), 0.25)
    assert sum(wanted_widths(users, busy, 16).values()) < sum(
        wanted_widths(users, quiet, 16).values()
    )


chances = st.dictionaries(st.integers(0, 40), st.floats(0, 1), min_size=1, max_size=20)
costs = st.floats(0, 0.02)
stages = st.lists(st.builds(StageCost, costs, costs), min_size=1, max_size=4)
hops = st.lists(st.builds(HopCost, costs, costs), min_size=1, max_size=4)
loads = st.builds(
    lambda stages, hops, *rest: DraftLoad(RoundModel(tuple(stages), tuple(hops)), *rest),
    *(stages, hops, st.integers(1, 6), costs, st.floats(0, 1)),
)


@given(chances, loads, st.integers(0, 16))
def test_widths_keep_their_bounds_and_never_cost_tokens(users, load, most):
    widths = wanted_widths(users, load, most)
    assert widths.keys() == users.keys()
    assert all(0 <= width <= most for width in widths.values())
    cycle = widths_module._Cycle(load, len(users))
    rows, depths = len(users) + sum(widths.values()), max(widths.values())
    without_s, with_s = cycle.cycle_s(len(users), 0), cycle.cycle_s(rows, depths)
    assert with_s <= LONGER_MAX * without_s + 1e-12
    wire_s = rows * max(hop.row_s for hop in load.costs.hops)
    if depths and wire_s > 0.5 * with_s:
        assert with_s <= LONGER_MAX_FULL * without_s + 1e-12
    made = sum(tokens(chance, widths[user]) for user, chance in users.items())
    assert made * without_s >= len(users) * with_s * (1 - 1e-9)


@given(chances, loads)
def test_who_is_guessed_better_gets_no_fewer(users, load):
    widths = wanted_widths(users, load, 16)
    ordered = sorted(users, key=users.__getitem__)
    assert all(
        widths[worse] <= widths[better]
        for worse, better in pairwise(ordered)
        if users[worse] < users[better]
    )


def widths_on(load, most=16):
    """Widths on a ring that is busy so."""
    widths = DraftWidths(most)
    widths.drafted(load.step_s)
    widths.round_completed(
        SimpleNamespace(model=lambda: load.costs), load.micro_batch_count, load.prefill_share
    )
    return widths


def drafted(widths, request_id, rounds, right, kind=MODEL):
    """Drafts that are made in some rounds, also if only to compare them, of which so many come true
    each."""
    seen = []
    for _ in range(rounds):
        width = widths.width(request_id, kind)
        tried = width or int(widths.probes(request_id, kind))
        seen.append(tried)
        if tried:
            widths.judged(request_id, kind, tried, min(tried, right))
    return seen


def test_widths_open_as_drafts_come_true():
    seen = drafted(widths_on(home_ring()), 1, 60, right=16)
    assert seen[0] == 1
    assert seen[1] <= 3
    assert seen[-1] >= 5


def test_a_drafter_that_is_always_wrong_is_asked_ever_more_seldom():
    widths = widths_on(home_ring(20, 8192))
    for other in range(2, 17):
        widths.width(other, MODEL)
    seen = drafted(widths, 1, 4000, right=0)
    asked = [at for at, width in enumerate(seen) if width][-6:]
    assert {later - sooner for sooner, later in pairwise(asked)} == {PROBE_ROUNDS_MAX}
    assert sum(map(bool, seen[:500])) > 500 // PROBE_ROUNDS_MAX


def test_none_is_tried_where_not_even_a_right_one_would_pay():
    widths = widths_on(home_ring(5, 8192))
    for other in range(2, 17):
        widths.width(other, MODEL)
    drafted(widths, 1, 100, right=0)
    assert drafted(widths, 1, 1000, right=16) == [0] * 1000


def test_one_right_draft_has_the_next_asked_soon_again():
    widths = widths_on(home_ring(20, 8192))
    for other in range(2, 17):
        widths.width(other, MODEL)
    drafted(widths, 1, 2000, right=0)
    seen = drafted(widths, 1, 2 * PROBE_ROUNDS_MAX, right=16)
    first = next(at for at, width in enumerate(seen) if width)
    later = next(at for at, width in enumerate(seen) if width and at > first)
    assert later - first <= PROBE_ROUNDS


def test_a_text_that_can_be_guessed_again_is_found_out():
    widths = widths_on(home_ring(20, 1536))
    drafted(widths, 1, 200, right=0)
    assert max(drafted(widths, 1, 1000, right=16)[-10:]) >= 3


def test_nothing_is_drafted_before_a_round_was_measured():
    unmeasured = DraftWidths()
    unmeasured.round_completed(SimpleNamespace(model=lambda: None), 1, 0.0)
    for widths in (DraftWidths(), unmeasured):
        assert drafted(widths, 1, PROBE_ROUNDS - 1, right=1) == [0] * (PROBE_ROUNDS - 1)


def test_what_the_drafters_steps_take_is_heard():
    quick, slow = widths_on(home_ring()), widths_on(home_ring())
    slow.drafted(0.03)
    assert drafted(slow, 1, 50, right=16)[-2] < drafted(quick, 1, 50, right=16)[-2]


def test_no_more_is_drafted_than_the_operator_lets():
    widths = widths_on(home_ring(), 2)
    assert max(drafted(widths, 1, 50, right=16)) == 2
    none = widths_on(home_ring(), 0)
    assert set(drafted(none, 1, 3 * PROBE_ROUNDS, right=16)) == {0}


def test_a_request_that_has_gone_is_not_reckoned_with():
    widths = widths_on(home_ring(20, 1536))
    for one in range(24):
        drafted(widths, one, 3, right=16)
    for one in range(1, 24):
        widths.forget(one)
    widths.forget(99)
    assert drafted(widths, 0, 30, right=16)[-1] > 2


def test_drafts_behind_the_first_wrong_one_say_nothing():
    acceptance = Acceptance()
    for _ in range(500):
        acceptance.judged(1, MODEL, 16, 3)
    assert acceptance.chance(1, MODEL) == pytest.approx(0.75, abs=0.01)


def test_a_request_begins_with_the_mean_of_all_and_goes_its_own_way():
    acceptance = Acceptance()
    assert acceptance.chance(1, MODEL) == FIRST_MEAN
    for _ in range(300):
        acceptance.judged(1, MODEL, 4, 4)
    assert acceptance.chance(2, MODEL) > 0.95
    acceptance.judged(2, MODEL, 4, 0)
    assert 0.7 < acceptance.chance(2, MODEL) < 0.9
    acceptance.forget(2)
    acceptance.forget(7)
    assert acceptance.chance(2, MODEL) > 0.95


def test_chances_are_apart_by_who_drafts_and_how_the_request_draws():
    acceptance, drawn = Acceptance(), DraftKind(TAIL, is_drawn=True)
    for _ in range(300):
        acceptance.judged(1, DraftKind(TAIL), 4, 4)
        acceptance.judged(1, drawn, 4, 1)
    assert acceptance.chance(2, DraftKind(TAIL)) > 0.95
    assert acceptance.chance(2, drawn) == pytest.approx(0.5, abs=0.01)
    assert acceptance.chance(1, DraftKind(COPY)) == FIRST_MEAN


def tail_ring(pass_s):
    """The ring of three stages, whose tail takes so long for a draft of all."""
    load = home_ring(step_s=0.02)
    return replace(load, costs=replace(load.costs, pass_s=pass_s), step_s=0.02)


def test_each_drafter_has_widths_of_its_own():
    """What a small model on the head takes, neither the tail nor a copy pays."""
    widths = widths_on(tail_ring(pass_s=0.001))
    for _ in range(60):
        for by, right in ((COPY, 16), (TAIL, 1), (GRAMMAR, 16)):
            kind = DraftKind(by)
            width = widths.width(1, kind)
            widths.judged(1, kind, width, min(width, right))
    copied, tail, forced = (widths.width(1, DraftKind(by)) for by in (COPY, TAIL, GRAMMAR))
    assert tail < min(copied, forced)
    assert widths.width(1, MODEL) < copied


def test_what_the_tails_passes_take_is_a_part_of_the_price():
    quick, slow = widths_on(tail_ring(0.0005)), widths_on(tail_ring(0.02))
    seen = [drafted(one, 1, 60, right=16, kind=DraftKind(TAIL)) for one in (quick, slow)]
    assert max(seen[1]) < max(seen[0])


def test_a_pass_counts_at_the_tails_device():
    """Where the head's device is the slowest, drafts of the tail delay nobody there."""
    costs = RoundModel((StageCost(0.03, 0.0), StageCost(0.001, 0.0)), (HopCost(0.001, 0.0),) * 2)
    at_head, at_tail = (
        widths_module._Cycle(DraftLoad(costs, 4, 0.002, at_tail=where), 8)
        for where in (False, True)
    )
    assert at_head.device_s(8, 2) == pytest.approx(4 * 0.034)
    assert at_tail.device_s(8, 2) == pytest.approx(4 * 0.03)


def test_those_for_whom_a_drafter_does_not_draft_share_the_ring(monkeypatch):
    """One user has a grammar among others, whose rows and tokens count, too."""
    seen, real = [], widths_module.wanted_widths

    def watched(chances, load, most):
        seen.append(dict(chances))
        return real(chances, load, most)

    monkeypatch.setattr(widths_module, "wanted_widths", watched)
    widths = widths_on(home_ring())
    for one in (2, 3):
        widths.width(one, MODEL)
    drafted(widths, 1, 2, right=16, kind=DraftKind(GRAMMAR))
    *_, chances, surely = seen
    assert chances[1] > 0.7 and (chances[2], chances[3]) == (0.0, 0.0)
    assert surely == {1: 1.0, 2: 0.0, 3: 0.0}, "whether a right one would pay"
