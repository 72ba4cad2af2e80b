"""Objective of a placement: the score that makes one ring better than another.

A search compares rings by a `Score`: users first, then a cost. As many users as possible within the
bound on the time per token is what a cluster is for, and then the shortest time to first token.

Most rings that a search looks at are no better than the one it has. So the objective is always
asked for a ring *above* a score, and one test of the users that would be needed mostly suffices.
"""

from math import inf
from typing import NamedTuple

from molink_scheduler.placement.fit import Fit, fit, fit_without_bound, total_s, ttft_s
from molink_scheduler.placement.problem import Order, OrderCosts, Problem
from molink_scheduler.placement.split import Counts

STAGE_TOLL = 0.01
"""Share of the time to first token that a further node must save: each of them can fail."""

SLOW_S = 1e6
"""Added to the cost of a ring that serves nobody within the bound: any that does is better."""

GAIN_MIN = 1e-9
"""Share of a cost that is no gain but rounding; without it a search could go in circles."""

MEMO_MAX = 50_000
"""Rings that an objective remembers, some 10 MB; then it forgets them all."""


class Score(NamedTuple):
    """Value of a ring: more users are better, then a lower cost."""

    users: int
    cost: float

    def beats(self, other: "Score") -> bool:
        """Whether this is better by more than rounding."""
        if self.users != other.users:
            return self.users > other.users
        return self.cost < other.cost * (1 - GAIN_MIN)


WORST = Score(-1, inf)


class PlacedRing(NamedTuple):
    """A ring with its best split and the score of that."""

    order: Order
    score: Score
    micro_batches: int
    counts: Counts

    @property
    def rows(self) -> int:
        """Rows of a micro-batch at full load."""
        return max(1, -(-self.score.users // self.micro_batches))


class Objective:
    """Judge of rings by users within the bound, then by the time to first token.

    It keeps what it found, because moves come back to the same rings again and again.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.effort = 0
        """Stages judged so far, and rings asked for: what a search may spend is counted in these,
        not in seconds."""
        self._found: dict[Order, PlacedRing] = {}
        self._not_above: dict[Order, Score] = {}
        """Scores that a ring is known not to beat."""
        self._effort_of_stage = 1 if problem.uniform else max(1, problem.layers // 2)

    def best(self, order: Order, above: Score = WORST) -> PlacedRing | None:
        """The best split of a ring, if it beats `above`."""
        self.effort += 1
        known = self._found.get(order)
        if known is not None:
            return known if known.score.beats(above) else None
        refused = self._not_above.get(order)
        if refused is not None and not refused.beats(above):
            return None
        placed = self.judge(order, above)
        self._remember(order, above, placed)
        return placed

    def _remember(self, order: Order, above: Score, placed: PlacedRing | None) -> None:
        if len(self._found) + len(self._not_above) > MEMO_MAX:
            self._found.clear()
            self._not_above.clear()
        if placed is None:
            self._not_above[order] = above
        else:
            self._found[order] = placed

    def judge(self, order: Order, above: Score) -> PlacedRing | None:
        """Compute the answer of `best`, which remembers it."""
        ring = OrderCosts(self.problem, order)
        # One test mostly decides: does this ring serve one user more than the one to beat?
        found = self._fit(ring, above.users + 1) if above.users >= 0 else None
        if found is not None:
            return self._placed(ring, self._most(ring, found))
        # Else it may serve as many at a lower cost.
        found = self._fit(ring, above.users) if above.users >= 1 else None
        if above.users < 0 and (first := self._fit(ring, 1)) is not None:
            return self._placed(ring, self._most(ring, first))
        if found is None and above.users < 1:
            # Nobody within the bound: rings are then compared by one user's round trip.
            found = self._count(ring, fit_without_bound(self.problem, ring))
        if found is None:
            return None
        placed = self._placed(ring, found)
        return placed if placed.score.beats(above) else None

    def _most(self, ring: OrderCosts, found: Fit) -> Fit:
        """The most users, from a number that can be served, by steps doubled and then halved."""
        step = 1
        while (more := self._fit(ring, found.users + step)) is not None:
            found, step = more, 2 * step
        while step > 1:
            step //= 2
            found = self._fit(ring, found.users + step) or found
        return found

    def _fit(self, ring: OrderCosts, users: int) -> Fit | None:
        return self._count(ring, fit(self.problem, ring, users))

    def _count(self, ring: OrderCosts, found: Fit | None) -> Fit | None:
        self.effort += len(ring.order) * self._effort_of_stage
        return found

    def _placed(self, ring: OrderCosts, found: Fit) -> PlacedRing:
        if found.users:
            cost = ttft_s(self.problem, ring, found.counts)
        else:
            cost = SLOW_S + _round_s(self.problem, ring, found.counts)
        cost *= 1 + STAGE_TOLL * len(ring.order)
        return PlacedRing(ring.order, Score(found.users, cost), found.micro_batches, found.counts)


def _round_s(problem: Problem, ring: OrderCosts, counts: Counts) -> float:
    """Seconds of one user's round trip."""
    prices = [problem.fixed_s[i] + problem.row_s[i] for i in ring.order]
    output_s = problem.nodes[ring.order[-1]].head_row_s
    rest_s = ring.delay_s + ring.wire_s + ring.step_s + output_s
    return rest_s + total_s(problem, prices, counts)
