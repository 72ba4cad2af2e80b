"""Rings one step away from a ring.

The order matters through three numbers: the delays of a round, the wires that a row crosses, and
the slowest of these wires. `PairCosts` adds the first two for a row count, and lets a move be
judged without splitting the layers: most of the moves of a tour are worse by it and are dropped.
Which node is first and which is last is judged in full, because these two have tables to hold and
the last one sends no activations.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise

from molink_scheduler.placement.problem import Order, Problem

SEGMENT_MAX = 3
"""Longest run of nodes that is moved as one; longer runs are what 2-opt and rotation move."""

ORDERS_MAX = 24
"""Shorter rounds that are judged in full in one go; the search comes back for more."""

SHORT_RING = 8
"""Nodes of a ring of which every exchange of two is judged in full: 28."""

GAIN_MIN = 1e-9
"""Share of a round that is no gain but rounding."""


class PairCosts:
    """Seconds from one node to another, for micro-batches of so many rows."""

    __slots__ = ("delay_s", "rows", "wire_s")

    def __init__(self, problem: Problem, rows: float) -> None:
        self.delay_s, self.wire_s, self.rows = problem.delay_s, problem.wire_row_s, rows

    def hop_s(self, a: int, b: int) -> float:
        """Seconds of one link that carries activations."""
        return self.delay_s[a][b] + self.rows * self.wire_s[a][b]

    def return_s(self, order: Order) -> float:
        """Delay of the link that closes the ring."""
        return self.delay_s[order[-1]][order[0]] if len(order) > 1 else 0.0

    def round_s(self, order: Order) -> float:
        """Seconds of all links of a ring."""
        return sum([self.hop_s(a, b) for a, b in pairwise(order)]) + self.return_s(order)


def insertions(costs: PairCosts, order: Order, node: int) -> list[Order]:
    """The ring with one node more, in the places that lengthen a round least: the best inside, and
    the better one of the two ends."""
    delay_s = costs.delay_s
    inside = [
        (costs.hop_s(a, node) + costs.hop_s(node, b) - costs.hop_s(a, b), place)
        for place, (a, b) in enumerate(pairwise(order), start=1)
    ]
    # At an end the node also takes over a side of the link that closes the ring.
    head, tail, return_s = order[0], order[-1], costs.return_s(order)
    first = costs.hop_s(node, head) + delay_s[tail][node] - return_s
    last = costs.hop_s(tail, node) + delay_s[node][head] - return_s
    places = [min(inside)[1]] if inside else []
    places.append(0 if first < last else len(order))
    return [(*order[:place], node, *order[place:]) for place in places]


def reorders(costs: PairCosts, order: Order) -> Iterator[Order]:
    """Other orders of the same nodes: shorter rounds, shortest first, and all other ends; of a
    short ring all that differ by two nodes."""
    better = sorted(_shorter(costs, order))
    for _, other in better[:ORDERS_MAX]:
        yield other
    yield from _other_ends(order)
    if len(order) <= SHORT_RING:
        yield from _swapped(order)


def _swapped(order: Order) -> Iterator[Order]:
    """Each two nodes in each other's place: the slowest link may get faster on a longer round, and
    with unequal layers the nodes' sizes must match what comes where."""
    for b in range(1, len(order)):
        for a in range(b):
            yield (*order[:a], order[b], *order[a + 1 : b], order[a], *order[b + 1 :])


def _other_ends(order: Order) -> Iterator[Order]:
    """Rotations, and every node moved to an end of the ring."""
    for place in range(1, len(order)):
        yield order[place:] + order[:place]
    for place in range(1, len(order) - 1):
        rest = order[:place] + order[place + 1 :]
        yield (order[place], *rest)
        yield (*rest, order[place])


def _shorter(costs: PairCosts, order: Order) -> Iterator[tuple[float, Order]]:
    """2-opt and or-opt between fixed ends that shorten the round, each with what they save."""
    # Seconds up to each place, and the same with every link crossed the other way: links need not
    # be alike in both directions, so a run that is turned round costs the second of the two.
    ahead = [0.0, *accumulate([costs.hop_s(a, b) for a, b in pairwise(order)])]
    back = [0.0, *accumulate([costs.hop_s(b, a) for a, b in pairwise(order)])]
    least, last = -GAIN_MIN * (ahead[-1] + costs.return_s(order)), len(order) - 1
    for start in range(1, last):
        for end in range(start + 1, last):  # the run order[start..end], turned round
            more = costs.hop_s(order[start - 1], order[end]) + back[end] - back[start]
            more += costs.hop_s(order[start], order[end + 1]) - ahead[end + 1] + ahead[start - 1]
            if more < least:
                run = order[start : end + 1]
                yield more, order[:start] + run[::-1] + order[end + 1 :]
        for end in range(start, min(start + SEGMENT_MAX, last)):
            yield from _moved(costs, order, (start, end), least)


def _moved(
    costs: PairCosts, order: Order, run: tuple[int, int], least: float
) -> Iterator[tuple[float, Order]]:
    """The run order[start..end] put between two other neighbours."""
    start, end = run
    segment, rest = order[start : end + 1], order[:start] + order[end + 1 :]
    before, after, first, last = order[start - 1], order[end + 1], segment[0], segment[-1]
    out = costs.hop_s(before, after) - costs.hop_s(before, first) - costs.hop_s(last, after)
    for place in range(1, len(rest)):
        a, b = rest[place - 1], rest[place]
        more = out + costs.hop_s(a, first) + costs.hop_s(last, b) - costs.hop_s(a, b)
        if more < least and place != start:
            yield more, rest[:place] + segment + rest[place:]
