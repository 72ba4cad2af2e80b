"""Rings one step away from a ring.

The order matters through three numbers: the delays on the way round, the wires that a row crosses,
and the slowest of these. `way_s` adds the first two for a row count, and lets a move be judged
without looking at the layers: most of the moves of a tour are worse by it and are dropped. Which
node is first and which is last is judged in full, because these two have tables to hold and the
last one sends no activations.
"""

from collections.abc import Iterator
from itertools import accumulate, pairwise

from molink_scheduler.placement.problem import Order, Problem

__all__ = ["Ways", "insertions", "reorders"]

SEGMENT_MAX = 3
"""Longest run of nodes that is moved as one; longer runs are what 2-opt and rotation move."""

ORDERS_MAX = 24
"""Shorter ways that are judged in full in one go; the search comes back for more."""


SHORT_RING = 8
"""Nodes of a ring of which every exchange of two is judged in full: 28."""

GAIN_MIN = 1e-9
"""Share of the way that is no gain but rounding."""


class Ways:
    """The way from node to node, in seconds, for micro-batches of so many rows."""

    __slots__ = ("delay_s", "rows", "wire_s")

    def __init__(self, problem: Problem, rows: float) -> None:
        self.delay_s, self.wire_s, self.rows = problem.delay_s, problem.wire_row_s, rows

    def hop(self, a: int, b: int) -> float:
        """One link that carries activations."""
        return self.delay_s[a][b] + self.rows * self.wire_s[a][b]

    def home(self, order: Order) -> float:
        """The link that closes the ring."""
        return self.delay_s[order[-1]][order[0]] if len(order) > 1 else 0.0

    def whole(self, order: Order) -> float:
        """All of them."""
        return sum([self.hop(a, b) for a, b in pairwise(order)]) + self.home(order)


def insertions(ways: Ways, order: Order, node: int) -> list[Order]:
    """The ring with one node more, in the places that lengthen the way least: the best inside, and
    the better one of the two ends."""
    delay_s = ways.delay_s
    inside = [
        (ways.hop(a, node) + ways.hop(node, b) - ways.hop(a, b), place)
        for place, (a, b) in enumerate(pairwise(order), start=1)
    ]
    head, tail, home = order[0], order[-1], ways.home(order)
    first = ways.hop(node, head) + delay_s[tail][node] - home
    last = ways.hop(tail, node) + delay_s[node][head] - home
    places = [min(inside)[1]] if inside else []
    places.append(0 if first < last else len(order))
    return [(*order[:place], node, *order[place:]) for place in places]


def reorders(ways: Ways, order: Order) -> Iterator[Order]:
    """The same nodes in another order: shorter ways, shortest first, and all other ends; of a short
    ring all that differ by two nodes."""
    better = sorted(_shorter(ways, order))
    for _, other in better[:ORDERS_MAX]:
        yield other
    yield from _other_ends(order)
    if len(order) <= SHORT_RING:
        yield from _swapped(order)


def _swapped(order: Order) -> Iterator[Order]:
    """Each two nodes in each other's place: the slowest link may get faster on a longer way, and
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


def _shorter(ways: Ways, order: Order) -> Iterator[tuple[float, Order]]:
    """2-opt and or-opt between fixed ends that shorten the way, each with what they save."""
    ahead = [0.0, *accumulate([ways.hop(a, b) for a, b in pairwise(order)])]
    back = [0.0, *accumulate([ways.hop(b, a) for a, b in pairwise(order)])]
    least, last = -GAIN_MIN * (ahead[-1] + ways.home(order)), len(order) - 1
    for start in range(1, last):
        for end in range(start + 1, last):  # the run order[start..end], turned round
            more = ways.hop(order[start - 1], order[end]) + back[end] - back[start]
            more += ways.hop(order[start], order[end + 1]) - ahead[end + 1] + ahead[start - 1]
            if more < least:
                run = order[start : end + 1]
                yield more, order[:start] + run[::-1] + order[end + 1 :]
        for end in range(start, min(start + SEGMENT_MAX, last)):
            yield from _moved(ways, order, (start, end), least)


def _moved(
    ways: Ways, order: Order, run: tuple[int, int], least: float
) -> Iterator[tuple[float, Order]]:
    """The run order[start..end] put between two other neighbours."""
    start, end = run
    segment, rest = order[start : end + 1], order[:start] + order[end + 1 :]
    before, after, first, last = order[start - 1], order[end + 1], segment[0], segment[-1]
    out = ways.hop(before, after) - ways.hop(before, first) - ways.hop(last, after)
    for place in range(1, len(rest)):
        a, b = rest[place - 1], rest[place]
        more = out + ways.hop(a, first) + ways.hop(last, b) - ways.hop(a, b)
        if more < least and place != start:
            yield more, rest[:place] + segment + rest[place:]
