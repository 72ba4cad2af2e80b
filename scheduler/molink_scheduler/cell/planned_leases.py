"""Leases of a plan: how long a request may be on a ring whose stages borrow within their cells,
each of one lender, as in a running cluster. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PlannedDebtor:
    """Stage of a plan, and whom it may borrow of."""

    name: str
    tokens: int
    """Tokens of KV that its device holds."""
    token_bytes: int
    lenders: Collection[str]


@dataclass(frozen=True, slots=True)
class PlannedLease:
    """Bytes that one stage would borrow."""

    debtor: str
    lender: str
    size_bytes: int


def longest_with_leases(
    stages: Sequence[PlannedDebtor], lent_bytes: Mapping[str, int], block_tokens: int
) -> tuple[int, list[PlannedLease]]:
    """Tokens of the longest request with all that can be lent, and the leases for that; without
    any those of the smallest stage. `lent_bytes`: memory of each lender;
    `block_tokens`: tokens that are lent together.

    What a stage lacks it gets of one lender. The stage that lacks most is first to choose, and
    takes the lender of which least is left over: not always the best there is, but never more than
    there is.
    """
    least = min(stage.tokens for stage in stages)
    most = max(lent_bytes.values(), default=0) // min(one.token_bytes for one in stages)
    low, high = 0, most // block_tokens
    while low < high:
        middle = (low + high + 1) // 2
        if _leases(stages, lent_bytes, least + middle * block_tokens) is None:
            high = middle - 1
        else:
            low = middle
    tokens = least + low * block_tokens
    return tokens, _leases(stages, lent_bytes, tokens) or []


def _leases(
    stages: Sequence[PlannedDebtor], lent_bytes: Mapping[str, int], tokens: int
) -> list[PlannedLease] | None:
    """Leases with which all stages hold so many tokens; None: there are none."""
    left, found = dict(lent_bytes), list[PlannedLease]()
    lacking = {one.name: max(0, tokens - one.tokens) * one.token_bytes for one in stages}
    for stage in sorted(stages, key=lambda one: -lacking[one.name]):
        if not (size := lacking[stage.name]):
            continue
        able = [one for one in stage.lenders if left.get(one, 0) >= size and one != stage.name]
        if not able:
            return None
        lender = min(able, key=lambda one: (left[one], one))
        left[lender] -= size
        found.append(PlannedLease(stage.name, lender, size))
    return found
