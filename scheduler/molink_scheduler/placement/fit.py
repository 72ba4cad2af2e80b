"""Can this ring serve c users within the bound, and how are its layers best split for that?

With c users in K micro-batches of r = ceil(c/K) rows, and p prompt rows for each token of an
answer, within one bound T on the time per token (`round_model` has the same cycle, without
prompts):

    trip           delays + sum of steps(r) + sum of wires(r)  <= T
    each device    K step(r) + c p prefill rows                <= T
    each link      K wire(r) + c p wire rows                   <= T
    each memory    tables + n (layer + c context kv)           <= what the node lends

All but the first only bound how many layers a node can take. Within these bounds the split with the
shortest trip is exact (`split`), so a ring can serve c users if and only if one K lets it. Decode
goes before prompts, but what both take must fit: where it does not, prompts wait for ever.

For the same r only the smallest K matters: more of them read the weights more often. A ring that
serves nobody within the bound may still hold the model: `hold` is the split with the shortest trip
of a lonely user.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.placement.problem import Path, Problem
from molink_scheduler.placement.split import ROUNDING, Counts, contiguous, fill

__all__ = ["MICRO_BATCHES_PER_STAGE", "Fit", "fit", "hold", "stage_works", "total_s"]

MICRO_BATCHES_PER_STAGE = 2
"""As the head's own choice: it tries from 1 to twice the stages."""


class Fit(NamedTuple):
    """A way to serve so many users."""

    users: int
    micro_batches: int
    counts: Counts


class _Load(NamedTuple):
    """What circles."""

    micro_batches: int
    rows: int
    """Of each."""
    prompt_rows: float
    """In the time of one token."""


def fit(problem: Problem, path: Path, users: int) -> Fit | None:
    """A split that serves `users` within the bound, with the fewest micro-batches that do; None
    when there is none."""
    if not 1 <= users <= problem.goal.users_max or len(path.order) > problem.layers:
        return None
    bound_s = problem.goal.tpot_s * (1 + ROUNDING)
    prompt_rows = users * problem.goal.prompt_rows_per_token
    rooms = _rooms(problem, path, users)
    if rooms is None:
        return None
    rows = 0
    for count in _counts(problem, path, users, bound_s):
        if rows == -(-users // count):
            continue
        rows = -(-users // count)
        if (count * rows + prompt_rows) * path.wire_max_s <= bound_s:
            load = _Load(count, rows, prompt_rows)
            counts = _split(problem, path, load, bound_s, rooms)
            if counts is not None:
                return Fit(users, count, counts)
    return None


def hold(problem: Problem, path: Path) -> Fit | None:
    """The split with the shortest trip of one user, whatever the bound; None when the ring cannot
    hold the model and one user's KV."""
    rooms = _rooms(problem, path, 1)
    if rooms is None or len(path.order) > problem.layers:
        return None
    prices = [problem.fixed_s[i] + problem.row_s[i] for i in path.order]
    counts = _cheapest(problem, prices, [inf] * len(prices), rooms)
    return None if counts is None else Fit(0, 1, counts)


def _counts(problem: Problem, path: Path, users: int, bound_s: float) -> range:
    """Numbers of micro-batches that may do."""
    told = problem.goal.micro_batches
    if told is not None:
        return range(min(told, users), min(told, users) + 1)
    most = min(users, MICRO_BATCHES_PER_STAGE * len(path.order))
    return range(_fewest(problem, path, users, bound_s), most + 1)


def _fewest(problem: Problem, path: Path, users: int, bound_s: float) -> int:
    """With fewer micro-batches a trip would be too long even if the fastest device had all."""
    order, work = path.order, problem.work_before[-1]
    fixed_s = path.delay_s + path.step_s + work * min([problem.fixed_s[i] for i in order])
    row_s = path.wire_s + problem.nodes[order[-1]].head_row_s
    row_s += work * min([problem.row_s[i] for i in order])
    rows = int(max(0.0, bound_s - fixed_s) / row_s)
    return -(-users // rows) if rows else users + 1


class _Rooms(NamedTuple):
    """What memory allows beside the users' KV."""

    layers: list[int]
    """Of each node, where all layers are alike; else empty."""
    bytes_max: Sequence[int]
    bytes_before: Sequence[int]
    """Of the first n layers with KV, where they differ; else empty."""


def _rooms(problem: Problem, path: Path, users: int) -> _Rooms | None:
    """None when a node has no room for one layer, or all together not for all."""
    kv_bytes = users * problem.goal.context_tokens * problem.model.kv_bytes
    if problem.uniform:
        each = problem.model.layer_bytes[0] + kv_bytes
        layers = [memory // each for memory in path.memory_bytes]
        holds = min(layers) >= 1 and sum(layers) >= problem.layers
        return _Rooms(layers, (), ()) if holds else None
    before = [size + n * kv_bytes for n, size in enumerate(problem.bytes_before)]
    holds = min(path.memory_bytes) > kv_bytes and sum(path.memory_bytes) >= before[-1]
    return _Rooms([], path.memory_bytes, before) if holds else None


def _split(
    problem: Problem, path: Path, load: _Load, bound_s: float, rooms: _Rooms
) -> Counts | None:
    """The split with the shortest trip, if that is within the bound."""
    count, rows, prompt_rows = load
    order, fixed_s, row_s, prefill_s = path.order, problem.fixed_s, problem.row_s, problem.prefill_s
    prices = [fixed_s[i] + rows * row_s[i] for i in order]
    output_s = rows * problem.nodes[order[-1]].head_row_s
    starts_s = count + prompt_rows / SPAN_TOKENS
    free_s = [bound_s - starts_s * step_s for step_s in path.steps_s]
    free_s[-1] -= count * output_s
    works = [
        free / (count * price + prompt_rows * prefill_s[i])
        for i, free, price in zip(order, free_s, prices, strict=True)
    ]
    counts = _cheapest(problem, prices, works, rooms)
    if counts is None:
        return None
    trip_s = path.delay_s + path.step_s + output_s + rows * path.wire_s
    trip_s += total_s(problem, prices, counts)
    return counts if trip_s <= bound_s else None


def _cheapest(
    problem: Problem, prices: list[float], works: list[float], rooms: _Rooms
) -> Counts | None:
    """The cheapest split within `works` of each node and its memory."""
    if min(works) <= 0:
        return None
    if not problem.uniform:
        return contiguous(prices, works, rooms.bytes_max, problem.work_before, rooms.bytes_before)
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
