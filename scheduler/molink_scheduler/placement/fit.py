"""Fit of a ring to c users within the bound: whether it can serve them, and with which split.

With c users in K micro-batches of r = ceil(c/K) rows, and p prompt rows for each token of an
answer, within one bound T on the time per token (`round_model` has the same cycle, without
prompts):

    trip           delays + sum of steps(r) + sum of wires(r)  <= T
    each device    K step(r) + c p prefill rows                <= T
    each link      K wire(r) + c p wire rows                   <= T
    each memory    tables + n (layer + c (context kv + state)) <= what the node lends

All but the first only bound how many layers a node can take. Within these bounds the split with the
shortest trip is exact (`split`), so a ring can serve c users if and only if one K lets it. Decode
goes before prompts, but what both take must fit: where it does not, prompts wait for ever.

For the same r only the smallest K matters: more of them read the weights more often. A ring that
serves nobody within the bound may still hold the model: `fit_without_bound` is the split with the
shortest trip of a single user.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import ceil, inf
from typing import NamedTuple

from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.placement.problem import OrderCosts, Problem
from molink_scheduler.placement.split import ROUNDING, Counts, contiguous, fill

MICRO_BATCHES_PER_STAGE = 2
"""Most micro-batches per stage, as in the head's own choice: it tries 1 to twice the stages."""


class Fit(NamedTuple):
    """A split, and the micro-batches with which it serves so many users."""

    users: int
    micro_batches: int
    counts: Counts


class _Load(NamedTuple):
    """Rows on the ring in the time of one token."""

    micro_batches: int
    rows: int
    """Rows of each micro-batch."""
    prompt_rows: float


def fit(problem: Problem, ring: OrderCosts, users: int) -> Fit | None:
    """A split that serves `users` within the bound, with the fewest micro-batches that do; None
    when there is none."""
    if not 1 <= users <= problem.goal.users_max or len(ring.order) > problem.stages_max:
        return None
    bound_s = problem.goal.tpot_s * (1 + ROUNDING)
    prompt_rows = users * problem.goal.prompt_rows_per_token
    rooms = _rooms(problem, ring, users)
    if rooms is None:
        return None
    rows = 0
    for count in _counts(problem, ring, users, bound_s):
        if rows == -(-users // count):
            continue
        rows = -(-users // count)
        if (count * rows + prompt_rows) * ring.wire_max_s <= bound_s:
            load = _Load(count, rows, prompt_rows)
            counts = _split(problem, ring, load, bound_s, rooms)
            if counts is not None:
                return Fit(users, count, counts)
    return None


def fit_without_bound(problem: Problem, ring: OrderCosts) -> Fit | None:
    """The split with the shortest trip of one user, whatever the bound; None when the ring cannot
    hold the model and one user's KV."""
    rooms = _rooms(problem, ring, 1)
    if rooms is None or len(ring.order) > problem.stages_max:
        return None
    prices = [problem.fixed_s[i] + problem.row_s[i] for i in ring.order]
    counts = _cheapest(problem, prices, [inf] * len(prices), rooms)
    return None if counts is None else Fit(0, 1, counts)


def _counts(problem: Problem, ring: OrderCosts, users: int, bound_s: float) -> range:
    """Numbers of micro-batches that may do."""
    fixed = problem.goal.micro_batches
    if fixed is not None:
        return range(min(fixed, users), min(fixed, users) + 1)
    most = min(users, MICRO_BATCHES_PER_STAGE * len(ring.order))
    return range(_fewest(problem, ring, users, bound_s), most + 1)


def _fewest(problem: Problem, ring: OrderCosts, users: int, bound_s: float) -> int:
    """Fewest micro-batches whose trip is not too long even if the fastest device had all layers."""
    # The trip of r rows is fixed_s + r row_s at least, so the bound gives the most rows of a
    # micro-batch, and users over rows the fewest micro-batches.
    order, work = ring.order, problem.work_before[-1]
    fixed_s = ring.delay_s + ring.step_s + work * min([problem.fixed_s[i] for i in order])
    row_s = ring.wire_s + problem.nodes[order[-1]].head_row_s
    row_s += work * min([problem.row_s[i] for i in order])
    rows = int(max(0.0, bound_s - fixed_s) / row_s)
    return -(-users // rows) if rows else users + 1


class _Rooms(NamedTuple):
    """Layers or bytes that memory allows each node beside what it keeps of the users."""

    layers: list[int]
    """Most layers of each node, where all are alike; else empty."""
    bytes_max: Sequence[int]
    bytes_before: Sequence[int]
    """Bytes of the first n layers with KV and states, where they differ; else empty."""


def _rooms(problem: Problem, ring: OrderCosts, users: int) -> _Rooms | None:
    """Rooms of the nodes; None when one has no room for a layer, or all together not for all."""
    if problem.uniform:
        layer = problem.model.layer_bytes[0]
        kept = [users * problem.user_bytes[i] for i in ring.order]
        layers = [room // (layer + own) for room, own in zip(ring.memory_bytes, kept, strict=True)]
        holds = min(layers) >= 1 and sum(layers) >= problem.layers
        return _Rooms(layers, (), ()) if holds else None
    # Of layers that differ, the split knows one size on all nodes: that where users take most.
    most = max(ring.order, key=problem.user_bytes.__getitem__)
    own = problem.user_bytes_before[most]
    before = [size + users * kept for size, kept in zip(problem.bytes_before, own, strict=True)]
    holds = min(ring.memory_bytes) > 0 and sum(ring.memory_bytes) >= before[-1]
    return _Rooms([], ring.memory_bytes, before) if holds else None


def _split(
    problem: Problem, ring: OrderCosts, load: _Load, bound_s: float, rooms: _Rooms
) -> Counts | None:
    """The split with the shortest trip, if that is within the bound."""
    count, rows, prompt_rows = load
    order, fixed_s, row_s, prefill_s = ring.order, problem.fixed_s, problem.row_s, problem.prefill_s
    # Seconds of one micro-batch in a layer: the price that the split minimizes.
    prices = [fixed_s[i] + rows * row_s[i] for i in order]
    output_s = rows * problem.nodes[order[-1]].head_row_s
    # Each device starts a step for every micro-batch and every span of a prompt. What these starts,
    # and on the tail the logits, leave of the bound is its time for layers.
    starts = count + prompt_rows / SPAN_TOKENS
    free_s = [bound_s - starts * step_s for step_s in ring.steps_s]
    free_s[-1] -= count * output_s
    works = [
        free / (count * price + prompt_rows * prefill_s[i])
        for i, free, price in zip(order, free_s, prices, strict=True)
    ]
    counts = _cheapest(problem, prices, works, rooms)
    if counts is None:
        return None
    # Within these limits no split has a shorter trip, so if this one is too long, all are.
    trip_s = ring.delay_s + ring.step_s + output_s + rows * ring.wire_s
    trip_s += total_s(problem, prices, counts)
    return counts if trip_s <= bound_s else None


def _cheapest(
    problem: Problem, prices: list[float], works: list[float], rooms: _Rooms
) -> Counts | None:
    """The cheapest split within `works` of each node and its memory."""
    if min(works) <= 0:
        return None
    if not problem.uniform:
        before = (problem.work_before, rooms.bytes_before)
        return contiguous(prices, works, rooms.bytes_max, *before, problem.may_end)
    most = [
        room if room <= work else int(work) for room, work in zip(rooms.layers, works, strict=True)
    ]
    return fill(prices, most, problem.layers)


def total_s(problem: Problem, prices: Sequence[float], counts: Counts) -> float:
    """Sum over the stages of price x work of their layers."""
    if problem.uniform:
        return sum([price * n for price, n in zip(prices, counts, strict=True)])
    works = stage_works(problem, counts)
    return sum([price * work for price, work in zip(prices, works, strict=True)])


def stage_works(problem: Problem, counts: Counts) -> list[float]:
    """Work of each stage, in that of a measured layer."""
    ends = [0, *accumulate(counts)]
    return [problem.work_before[end] - problem.work_before[start] for start, end in pairwise(ends)]


def ttft_s(problem: Problem, ring: OrderCosts, counts: Counts) -> float:
    """Seconds from the head's first step to the first token's return, alone on the ring.

    A typical prompt goes in spans of `SPAN_TOKENS` rows (fewer if it is shorter), one behind the
    other: the first passes all stages and links, and each that follows ends a step of the slowest
    stage or link later. Then one token returns to the head.
    """
    order, tokens = ring.order, max(1, problem.goal.prompt_tokens)
    spans = ceil(tokens / SPAN_TOKENS)
    rows = tokens / spans
    steps = [
        start_s + rows * problem.prefill_s[i] * work
        for i, start_s, work in zip(order, ring.steps_s, stage_works(problem, counts), strict=True)
    ]
    wires = [rows * problem.wire_row_s[a][b] for a, b in pairwise(order)]
    output_s = problem.nodes[order[-1]].head_row_s
    trip_s = sum(steps) + sum(wires) + ring.delay_s + output_s
    return trip_s + (spans - 1) * max(steps + wires)
