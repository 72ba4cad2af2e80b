"""Leases of a plan: what is lent is there, and no more of it is to be had by trying."""

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.cell import planned_leases
from molink_scheduler.cell.planned_leases import PlannedDebtor
from molink_scheduler.kv.blocks import BLOCK_TOKENS

NAMES = "abcd"

longest_with_leases = partial(planned_leases.longest_with_leases, block_tokens=BLOCK_TOKENS)


def debtor(name: str, tokens: int, lenders: str, token_bytes: int = 10) -> PlannedDebtor:
    return PlannedDebtor(name, tokens, token_bytes, lenders)


def test_the_smallest_stage_borrows_up_to_what_the_next_one_holds():
    stages = [debtor("a", 320, "b"), debtor("b", 640, "")]
    tokens, (lease,) = longest_with_leases(stages, {"b": 10**6})
    assert tokens == 640
    assert (lease.debtor, lease.lender, lease.size_bytes) == ("a", "b", 3200)


def test_two_stages_share_what_one_lends():
    stages = [debtor("a", 320, "c"), debtor("b", 320, "c")]
    tokens, leases = longest_with_leases(stages, {"c": 16_000})
    assert tokens == 320 + 800 and sum(one.size_bytes for one in leases) == 16_000


def test_a_stage_has_one_lender_and_is_never_its_own():
    stages = [debtor("a", 320, "abc")]
    assert longest_with_leases(stages, {"a": 10**9, "b": 3200, "c": 1600})[0] == 640
    assert longest_with_leases([debtor("a", 320, "a")], {"a": 10**9}) == (320, [])


def test_a_ring_with_a_stage_that_nobody_lends_to_has_its_room():
    stages = [debtor("a", 320, "b"), debtor("b", 400, ""), debtor("c", 352, "")]
    tokens, leases = longest_with_leases(stages, {"b": 10**6})
    assert tokens == 352 and [one.debtor for one in leases] == ["a"]


@given(
    st.lists(
        st.tuples(st.integers(16, 2000), st.sets(st.sampled_from(NAMES)), st.integers(1, 9)),
        min_size=1,
        max_size=4,
    ),
    st.dictionaries(st.sampled_from(NAMES), st.integers(0, 9000)),
)
def test_nobody_lends_more_than_there_is(drawn, lent):
    stages = [
        PlannedDebtor(name, tokens, size, lenders)
        for name, (tokens, lenders, size) in zip(NAMES, drawn, strict=False)
    ]
    tokens, leases = longest_with_leases(stages, lent)
    assert tokens >= min(one.tokens for one in stages)
    for name in NAMES:
        assert sum(one.size_bytes for one in leases if one.lender == name) <= lent.get(name, 0)
    had = {one.debtor: one.size_bytes for one in leases}
    for stage in stages:
        assert stage.tokens + had.get(stage.name, 0) // stage.token_bytes >= tokens
        assert all(one.lender in stage.lenders for one in leases if one.debtor == stage.name)
    assert BLOCK_TOKENS * ((tokens - min(one.tokens for one in stages)) // BLOCK_TOKENS) == (
        tokens - min(one.tokens for one in stages)
    )
