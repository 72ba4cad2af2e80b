"""No placement of these nodes can serve more users than this: a flow with a toll.

Think of users as a flow that has to pass all layers, once for each of them. A node that holds n
layers for c users lets n x c layer-users through, and memory and time bound n for every c (`fit`).
The edge from the source to a node has that as its capacity, edges lead on from each node to every
layer that it could hold, and from every layer to the sink. Since any node may hold any layer, the
least cut is either the sources' or the sinks' side, and the maximum flow is

    users <= sum over nodes of max over c of c n(c) / layers

This is what Helix calls the upper bound of a cluster, and it is loose here, because a flow has no
length: the bound T on the time per token is a length that every ring has to keep. So the trip pays
a toll. A ring of c users in K micro-batches gives each layer once and takes no more than T, hence
for any toll m >= 0

    c <= sum over its stages of c ((1 + m) n / layers - m t / T)

with t the stage's step and its shortest hop. Upload bounds c on every stage but the last, whose
link carries no activations. Every ring has one last stage, so that place is sold too: whoever takes
it pays f, and each ring gets f back, which divides the sum by 1 - f. (Where the output matrix is a
burden and upload is none, f is below 0.)

Whatever rings there are, a node is in one of them at most, so the sum over all nodes of the most
that each can bring to any ring bounds all users together. Tolls of 0 give the plain flow; of some
others the best bound is returned.

It stays a bound and no plan: each node picks the c that suits it best, rings must agree.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from typing import NamedTuple

from molink_scheduler.head.prompt_queue import SPAN_TOKENS
from molink_scheduler.placement.fit import MICRO_BATCHES_PER_STAGE
from molink_scheduler.placement.grow import USERS_MAX
from molink_scheduler.placement.problem import Problem
from molink_scheduler.placement.split import ROUNDING

__all__ = ["users_bound"]

TRIP_TOLLS = (0.0, 0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0)
"""Each gives a bound; where time is scarce the higher ones are better."""

TAIL_TOLLS = (0.0, -0.1, -0.05, -0.02, 0.02, 0.05, 0.08, 0.12, 0.16, 0.2, 0.25, 0.3, 0.4)


class _Load(NamedTuple):
    """What circles in a ring."""

    users: int
    micro_batches: int
    rows: int


def users_bound(problem: Problem, *, tolls: bool = True) -> float:
    """Users that no set of disjoint rings exceeds; without `tolls` the plain flow. For equal
    layers; those that differ count as the smallest and the quickest of them."""
    offers = [_offers(problem, node) for node in range(len(problem.nodes))]
    if not tolls:
        return _bound(offers, 0.0, 0.0)
    trip = min(TRIP_TOLLS, key=lambda toll: _bound(offers, toll, 0.0))
    tail = min(TAIL_TOLLS, key=lambda toll: _bound(offers, trip, toll))
    return min(_bound(offers, toll, tail) for toll in TRIP_TOLLS)


Offer = tuple[int, float, float, bool]
"""What a node could bring: users, the share of the layers, that of the bound, whether as tail."""


def _bound(offers: Sequence[Sequence[Offer]], trip: float, tail: float) -> float:
    most = 0.0
    for of_node in offers:
        brought = [
            users * ((1 + trip) * layers - trip * time - tail * is_tail)
            for users, layers, time, is_tail in of_node
        ]
        most += max(0.0, max(brought, default=0.0))
    return most / (1 - tail)


def _offers(problem: Problem, node: int) -> list[Offer]:
    """For each load the most and the fewest layers, as the last stage and as another one."""
    others = [other for other in range(len(problem.nodes)) if other != node]
    hop_s = min([problem.delay_s[node][other] for other in others], default=0.0)
    wire_s = min([problem.wire_row_s[node][other] for other in others], default=inf)
    bound_s, layers = problem.goal.tpot_s, problem.layers
    offers = []
    for load, is_tail in product(_loads(problem), (False, True)):
        price_s = _least_work(problem) * (problem.fixed_s[node] + load.rows * problem.row_s[node])
        room = _room(problem, node, load, is_tail, price_s)
        sent = load.micro_batches * load.rows + load.users * problem.goal.prompt_rows_per_token
        if room < 1 or (not is_tail and sent * wire_s > bound_s * (1 + ROUNDING)):
            continue
        for n in {1, room if is_tail else min(room, layers - 1)} - {0}:
            once_s = problem.nodes[node].step_fixed_s + (hop_s if n < layers else 0.0)
            once_s += 0.0 if is_tail else load.rows * wire_s
            offers.append((load.users, n / layers, (n * price_s + once_s) / bound_s, is_tail))
    return offers


def _loads(problem: Problem) -> Iterator[_Load]:
    """All that a ring can have; of the same rows with the fewest micro-batches only."""
    stages_max = min(problem.layers, len(problem.nodes))
    for users in range(1, min(USERS_MAX, problem.goal.users_max) + 1):
        seen = 0
        for count in range(1, min(users, MICRO_BATCHES_PER_STAGE * stages_max) + 1):
            rows = -(-users // count)
            if rows != seen:
                yield _Load(users, count, rows)
            seen = rows


def _room(problem: Problem, node: int, load: _Load, is_tail: bool, price_s: float) -> int:
    """Most layers that the node can hold and step through under such a load."""
    facts, model = problem.nodes[node], problem.model
    each = min(model.layer_bytes) + load.users * problem.goal.context_tokens * model.kv_bytes
    prompt_rows = load.users * problem.goal.prompt_rows_per_token
    starts = load.micro_batches + prompt_rows / SPAN_TOKENS
    free_s = problem.goal.tpot_s * (1 + ROUNDING) - starts * facts.step_fixed_s
    layer_s = load.micro_batches * price_s
    layer_s += prompt_rows * _least_work(problem) * problem.prefill_s[node]
    by_memory = (facts.memory_bytes - model.ends_bytes(False, is_tail)) // each
    by_memory = max(0, min(problem.layers, by_memory))
    by_time = free_s / layer_s
    return by_memory if by_time >= by_memory else max(0, int(by_time))


def _least_work(problem: Problem) -> float:
    return min(problem.model.layer_work, default=1.0)
