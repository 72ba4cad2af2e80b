"""Audits never accuse who is honest, and find who is not, whoever else is there."""

import math
from dataclasses import replace
from itertools import combinations, pairwise
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from molink_scheduler.audit import (
    NUMBERS,
    AuditedRing,
    AuditedStage,
    Disagreements,
    disagreement,
    distance,
    tolerance_of,
)

LAYERS = 8
TOKENS = 50


def truth(seed):
    """Sketches of all places, as rows that have nothing to do with each other have them."""
    random = Random(seed)
    length = math.sqrt(TOKENS)
    return [[random.gauss(0, length) for _ in range(NUMBERS)] for _ in range(LAYERS + 1)]


def ring(number, cuts, exact, dtype="bfloat16", codec="raw", error=0.0, seed=0):
    """An honest ring, whose sketches are as far from the truth as its formats may be, times
    `error`."""
    random = Random(f"{number} {seed}")
    made = AuditedRing(number, TOKENS, (), (-1.0,) * (TOKENS - 1), dtype, codec)
    far = error * tolerance_of(made).rows * math.sqrt(TOKENS)

    def told(start, end):
        places = exact[start : end + 1]
        return tuple(one + far * random.choice((-1, 1)) for place in places for one in place)

    stages = [
        AuditedStage(
            f"{number}.{at}", f"pc {number}.{at}", f"node {number}.{at}", layers, told(*layers)
        )
        for at, layers in enumerate(pairwise(cuts))
    ]
    return replace(made, stages=tuple(stages))


def lying(made, layer, *, hides=False):
    """The same ring where a layer's rows are negated. Who hides reports what would have been."""
    culprit = made.holder(layer)

    def told(stage):
        spoilt = [
            place > layer and not (hides and stage is culprit)
            for place in range(stage.layers[0], stage.layers[1] + 1)
            for _ in range(NUMBERS)
        ]
        return tuple(-one if bad else one for one, bad in zip(stage.numbers, spoilt, strict=True))

    return replace(made, stages=tuple(replace(one, numbers=told(one)) for one in made.stages))


cuts = st.lists(st.integers(1, LAYERS - 1), max_size=3, unique=True).map(
    lambda inner: (0, *sorted(inner), LAYERS)
)
kinds = st.tuples(
    st.sampled_from(["float32", "float16", "bfloat16"]), st.sampled_from(["raw", "int8", "fp8"])
)


@given(st.integers(0, 10**6), cuts, cuts, kinds, kinds)
@settings(deadline=None)
def test_honest_rings_agree_wherever_they_are_cut(seed, one, other, kind, other_kind):
    exact = truth(seed)
    a, b = ring(0, one, exact, *kind, error=0.99), ring(1, other, exact, *other_kind, error=0.99)
    assert disagreement(a, b) is None


@given(st.integers(0, 10**6), cuts, cuts, st.integers(0, LAYERS - 1))
@settings(deadline=None)
def test_a_layer_that_lies_is_found_in_its_stage(seed, one, other, layer):
    exact = truth(seed)
    a, b = ring(0, one, exact), ring(1, other, exact)
    found = disagreement(lying(a, layer), b)
    assert found is not None and f"behind layer {layer}" in found.what
    assert (found.one, found.other.node_id) == (
        lying(a, layer).holder(layer),
        b.holder(layer).node_id,
    )
    assert "contradict each other" in found.sentence


@given(st.integers(0, 10**6), cuts, st.data())
@settings(deadline=None)
def test_who_lies_and_reports_the_truth_is_at_one_end_of_the_link(seed, one, data):
    exact = truth(seed)
    layer = data.draw(st.integers(0, one[-2] - 1)) if len(one) > 2 else None
    if layer is None:
        return
    a, b = ring(0, one, exact), ring(1, (0, LAYERS), exact)
    found = disagreement(lying(a, layer, hides=True), b)
    culprit = a.holder(layer)
    assert found is not None and culprit.node_id in (found.one.node_id, found.other.node_id)
    assert found.what.endswith("sent and received")


def test_a_tail_that_draws_from_other_likelihoods_is_found():
    exact = truth(1)
    a, b = ring(0, (0, 4, LAYERS), exact), ring(1, (0, 3, LAYERS), exact)
    for wrong in ((-3.0,) * (TOKENS - 1), (math.nan,) * (TOKENS - 1)):
        found = disagreement(replace(a, logprobs=wrong), b)
        assert found is not None
        assert {found.one.node_id, found.other.node_id} == {"0.1", "1.1"}


def test_what_is_no_number_is_no_agreement():
    exact = truth(1)
    a, b = ring(0, (0, LAYERS), exact), ring(1, (0, LAYERS), exact)
    (stage,) = a.stages
    silent = replace(a, stages=(replace(stage, numbers=(math.nan,) * len(stage.numbers)),))
    assert disagreement(silent, b) is not None
    assert distance((0.0,) * NUMBERS, (math.sqrt(TOKENS),) * NUMBERS, TOKENS) == pytest.approx(1)


def findings(rings):
    found = [disagreement(*pair) for pair in combinations(rings, 2)]
    return [one for one in found if one is not None]


@given(st.integers(0, 10**6), st.lists(cuts, min_size=3, max_size=5), st.integers(0, LAYERS - 1))
@settings(deadline=None)
def test_of_three_rings_the_odd_one_is_found_out_after_two_audits(seed, all_cuts, layer):
    random, judge, guilty = Random(seed), Disagreements(), []
    culprit = None
    for audit in range(100):
        exact = truth(audit)
        rings = [ring(number, cut, exact, seed=audit) for number, cut in enumerate(all_cuts)]
        rings[0] = lying(rings[0], layer)
        culprit = rings[0].holder(layer).node_id
        pair = random.sample(rings, 2)
        if disagreement(*pair):
            third = random.choice([one for one in rings if one not in pair])
            guilty = judge.add(findings([*pair, third]), float(audit))
        if guilty:
            break
    assert guilty == [culprit]
    assert judge.failures(culprit) == 2


@given(st.integers(0, 10**6), st.integers(0, LAYERS - 1), st.integers(0, LAYERS - 1))
@settings(deadline=None)
def test_two_liars_with_stories_of_their_own_do_not_bring_an_honest_ring_down(seed, one, other):
    assume(one != other)
    judge = Disagreements()
    for audit in range(10):
        exact = truth(seed + audit)
        honest = ring(0, (0, LAYERS), exact)
        liars = [lying(ring(1, (0, LAYERS), exact), one), lying(ring(2, (0, LAYERS), exact), other)]
        guilty = judge.add(findings([honest, *liars]), float(audit))
        assert "0.0" not in guilty


def test_with_two_rings_nobody_is_found_out_and_time_forgives():
    judge, exact = Disagreements(), truth(3)
    a, b = lying(ring(0, (0, LAYERS), exact), 2), ring(1, (0, LAYERS), exact)
    for audit in range(10):
        assert judge.add(findings([a, b]), float(audit)) == []
    assert judge.failures("0.0") == 10
    judge.add([], 48 * 3600.0)
    assert judge.failures("0.0") == 0


def test_who_was_found_out_is_no_witness_any_more():
    judge, exact = Disagreements(), truth(3)
    a, b, c = (ring(number, (0, LAYERS), exact) for number in range(3))
    for at in (1.0, 2.0):
        guilty = judge.add(findings([lying(a, 1), b, c]), at)
    assert guilty == ["0.0"]
    judge.forget("0.0")
    assert judge.failures("1.0") == judge.failures("2.0") == 0
    judge.forget("nobody")


def test_devices_of_one_pc_do_not_bear_witness_against_each_other():
    judge, exact = Disagreements(), truth(3)
    a, b, c = (ring(number, (0, LAYERS), exact) for number in range(3))
    here = [replace(one, stages=(replace(one.stages[0], pc="one pc"),)) for one in (b, c)]
    for at in range(5):
        guilty = judge.add(findings([lying(a, 1), *here]), float(at))
        assert guilty == [], "two devices of a PC are one witness"


def test_silence_is_forgiven_once_and_then_weighs_as_much_as_a_failed_audit():
    held, stage = Disagreements(), AuditedStage("a", "pc a", "anna", (0, 2), ())
    assert [held.silent([stage], float(at)) for at in range(3)] == [[], [], ["a"]]
    assert held.failures("a") == 2
    calm = Disagreements()
    for at in range(9):
        assert calm.silent([stage], at * 13 * 3600.0) == [], "a day without is forgotten"
