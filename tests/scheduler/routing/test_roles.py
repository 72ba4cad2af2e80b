"""Roles that an operator may give rings, and which ring hands over to which."""

import pytest

from molink_scheduler.routing.roles import (
    HAND_OVER_TOKENS_MIN,
    RINGS_MAX,
    Role,
    is_handed_over,
    pairs_of,
    roles_of,
)

PREFILL, DECODE, BOTH = Role.PREFILL, Role.DECODE, Role.BOTH


@pytest.mark.parametrize(
    ("text", "roles"),
    [
        ("", (BOTH,)),
        ("prefill,decode", (PREFILL, DECODE)),
        ("decode, prefill", (DECODE, PREFILL)),
        ("prefill,both", (PREFILL, BOTH)),
        ("both,both", (BOTH, BOTH)),
    ],
)
def test_roles_are_typed_for_each_ring(text, roles):
    assert roles_of(text) == roles


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prefill", "leaves no ring that answers"),
        ("prefill,prefill", "leaves no ring that answers"),
        ("decode", "none that computes prompts"),
        ("decode,both", "none that computes prompts"),
        ("prefill,decoder", "got 'decoder'"),
        ("prefill,,decode", "got ''"),
        ("prefill;decode", "for each ring"),
        (",".join(["both"] * (RINGS_MAX + 1)), f"at most {RINGS_MAX} rings"),
    ],
)
def test_roles_that_serve_nobody_are_refused(text, why):
    with pytest.raises(ValueError, match=why):
        roles_of(text)


@pytest.mark.parametrize(
    ("roles", "pairs"),
    [
        ((BOTH,), {}),
        ((PREFILL, DECODE), {0: 1}),
        ((DECODE, PREFILL), {1: 0}),
        ((PREFILL, BOTH), {0: 1}),
        ((PREFILL, BOTH, DECODE), {0: 2}),
        ((PREFILL, PREFILL, DECODE), {0: 2, 1: 2}),
        ((PREFILL, DECODE, PREFILL, DECODE, PREFILL), {0: 1, 2: 3, 4: 1}),
    ],
)
def test_each_prefill_ring_has_one_that_answers(roles, pairs):
    assert pairs_of(roles) == pairs


def test_all_but_prefill_rings_answer():
    assert [role.answers for role in (PREFILL, DECODE, BOTH)] == [False, True, True]


def test_what_is_short_or_cached_is_computed_where_it_is_answered():
    assert is_handed_over(HAND_OVER_TOKENS_MIN, 0)
    assert not is_handed_over(HAND_OVER_TOKENS_MIN - 1, 0)
    assert not is_handed_over(8000, 8000 - HAND_OVER_TOKENS_MIN + 1)
