"""How many layers does each node of a ring take? Exactly, in two ways.

*Equal layers* (`fill`): only how many each takes matters. Every node has a most that memory and
time allow, and a price for each layer; one to each, then the rest to the cheapest first. That is
optimal: in any other split a layer could move from a dearer node to a cheaper one that has room.

*Unequal layers* (`contiguous`): which layers matters too, since a stage takes neighbours. Dynamic
programming over (stages, layers before): the cheapest way to have given the first b layers to the
first s nodes comes from the cheapest way to have given a < b of them to one node fewer. A node's
price is its rate times the work of layers a..b, a difference of prefix sums, and the a that its
limits allow for b form a window that only moves forward; so the least over the window is kept in a
queue and all of it takes stages x layers steps. A greedy cut was rejected here: it finds a split
when there is one, not the cheapest.
"""

from collections import deque
from collections.abc import Sequence
from math import inf

__all__ = ["ROUNDING", "Counts", "contiguous", "fill"]

Counts = tuple[int, ...]
"""Layers of each stage, in order of the ring; each at least 1."""

ROUNDING = 1e-9
"""Share by which a limit may be passed: sums of floats are not exact."""


def fill(prices: Sequence[float], rooms: Sequence[int], layers: int) -> Counts | None:
    """The cheapest split of equal layers; None when there is none."""
    # One layer to each stage, then the rest to the cheapest stages, each as far as it has room.
    left = layers - len(prices)
    if left < 0 or sum(rooms) < layers or min(rooms) < 1:
        return None
    counts = [1] * len(prices)
    for place in sorted(range(len(prices)), key=prices.__getitem__):
        if left == 0:
            break
        more = min(left, rooms[place] - 1)
        counts[place] += more
        left -= more
    return tuple(counts) if left == 0 else None


def contiguous(
    prices: Sequence[float],
    works_max: Sequence[float],
    sizes_max: Sequence[float],
    work_before: Sequence[float],
    size_before: Sequence[float],
) -> Counts | None:
    """The cheapest split of unequal layers; None when there is none.

    Stage s pays prices[s] for each unit of its layers' work, and takes no more than works_max[s] of
    it, nor more than sizes_max[s] of their size. `work_before[n]` and `size_before[n]` are sums
    over the first n layers.
    """
    layers = len(work_before) - 1
    cost = [0.0] + [inf] * layers
    origins: list[list[int]] = []
    for price, work_max, size_max in zip(prices, works_max, sizes_max, strict=True):
        starts = _window_starts(work_max, size_max, work_before, size_before)
        cost, origin = _one_stage(cost, price, starts, work_before)
        origins.append(origin)
    if cost[layers] == inf:
        return None
    return _traced(origins, layers)


def _window_starts(
    work_max: float, size_max: float, work_before: Sequence[float], size_before: Sequence[float]
) -> list[int]:
    """For each end, the first start that the limits allow (the end itself: none)."""
    starts, start = [], 0
    for end in range(len(work_before)):
        while start < end and (
            work_before[end] - work_before[start] > work_max * (1 + ROUNDING)
            or size_before[end] - size_before[start] > size_max
        ):
            start += 1
        starts.append(start)
    return starts


def _one_stage(
    before: Sequence[float], price: float, starts: Sequence[int], work_before: Sequence[float]
) -> tuple[list[float], list[int]]:
    """Cheapest cost of each end with one stage more, and where that stage begins."""
    cost, origin = [inf] * len(before), [0] * len(before)
    # A stage of layers a..b costs price x (work_before[b] - work_before[a]). So the best start for
    # every end b is the one with the least before[a] - price x work_before[a] (its offer) among
    # those that the limits allow: starts[b] <= a < b. Both edges of that window only move forward.
    window: deque[tuple[float, int]] = deque()
    for end in range(1, len(before)):
        if before[end - 1] < inf:
            offer = before[end - 1] - price * work_before[end - 1]
            while window and window[-1][0] >= offer:  # An earlier, dearer start never wins again.
                window.pop()
            window.append((offer, end - 1))
        while window and window[0][1] < starts[end]:
            window.popleft()
        if window:
            cost[end] = window[0][0] + price * work_before[end]
            origin[end] = window[0][1]
    return cost, origin


def _traced(origins: Sequence[Sequence[int]], layers: int) -> Counts:
    counts, end = [], layers
    for origin in reversed(origins):
        counts.append(end - origin[end])
        end = origin[end]
    return tuple(reversed(counts))
