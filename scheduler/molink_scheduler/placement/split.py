"""Exact split of the layers over the nodes of a ring, in two ways.

*Equal layers* (`fill`): only how many each takes matters. Every node has a most that memory and
time allow, and a price for each layer; one to each, then the rest to the cheapest first. That is
optimal: in any other split a layer could move from a dearer node to a cheaper one that has room.

*Unequal layers* (`contiguous`): which layers matters too, since a stage takes neighbours. Dynamic
programming over (stages, layers before): the cheapest way to have given the first b layers to the
first s nodes comes from the cheapest way to have given a < b of them to one node fewer. A node's
price is its rate times the work of layers a..b, a difference of prefix sums, and the a that its
limits allow for b form a window that only moves forward; so the least over the window is kept in a
queue and all of it takes stages x layers steps. A greedy cut was rejected here: it finds a split
when there is one, not the cheapest. Where some layers stay together, a and b are only those numbers
of layers behind which a stage may end.

*Equal shares* (`even`): as equal as the layers that stay together allow.
"""

from collections import deque
from collections.abc import Sequence
from math import inf

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
    may_end: Sequence[bool] | None = None,
) -> Counts | None:
    """The cheapest split of unequal layers; None when there is none.

    Stage s pays prices[s] for each unit of its layers' work, and takes no more than works_max[s] of
    it, nor more than sizes_max[s] of their size. `work_before[n]` and `size_before[n]` are sums
    over the first n layers, and `may_end[n]` says whether a stage may end behind them (None: it
    may behind each).
    """
    layers = len(work_before) - 1
    may_end = may_end or (True,) * (layers + 1)
    cost = [0.0] + [inf] * layers
    origins: list[list[int]] = []
    for price, work_max, size_max in zip(prices, works_max, sizes_max, strict=True):
        starts = _window_starts(work_max, size_max, work_before, size_before)
        cost, origin = _one_stage(cost, price, starts, work_before)
        cost = [one if may else inf for one, may in zip(cost, may_end, strict=True)]
        origins.append(origin)
    if cost[layers] == inf:
        return None
    return _traced(origins, layers)


def even(layers: int, stages: int, may_end: Sequence[bool] | None = None) -> Counts | None:
    """The most equal split, longer stages first where that is free; None when there is none."""
    if not 1 <= stages <= layers:
        return None
    if may_end is None or all(may_end):
        least, more = divmod(layers, stages)
        return tuple(least + (place < more) for place in range(stages))
    # The sum of squares is least where the counts are most alike; ties go to the longer beginning.
    found: dict[int, tuple[int, Counts]] = {0: (0, ())}
    for _ in range(stages):
        ways = (
            (squares - (end - start) ** 2, (*counts, end - start), end)
            for start, (squares, counts) in found.items()
            for end in range(start + 1, layers + 1)
            if may_end[end]
        )
        found = {end: (squares, counts) for squares, counts, end in sorted(ways)}
    return found[layers][1] if layers in found else None


def _window_starts(
    work_max: float, size_max: float, work_before: Sequence[float], size_before: Sequence[float]
) -> list[int]:
    """First start that the limits allow, for each end (the end itself: none)."""
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
