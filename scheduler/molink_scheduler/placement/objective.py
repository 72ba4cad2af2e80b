"""What makes one ring better than another.

A search compares rings by a `Score`: users first, then a cost. Two objectives are known. *Users*
is what a cluster is for: as many users as possible within the bound on the time per token, then
the shortest time to first token. *Round* is a round trip and a weight on the slowest stage; it is
linear, so a solver can be asked for its optimum, and it lets the very same search be judged.

Most rings that a search looks at are no better than the one it has. So an objective is always
asked for a ring *above* a score, and one look at the users that would be needed mostly suffices.
What was found is kept: moves come back to the same rings again and again.
"""

from math import inf
from typing import NamedTuple, Protocol

from molink_scheduler.placement.fit import Fit, fit, hold, total_s
from molink_scheduler.placement.problem import Order, Path, Problem
from molink_scheduler.placement.split import Counts, slowest_weighed
from molink_scheduler.placement.timing import ttft_s

__all__ = ["WORST", "Objective", "Placed", "RoundObjective", "Score", "UsersObjective"]

STAGE_TOLL = 0.01
"""Share of the time to first token that a further node must save: each of them can fail."""

SLOW_S = 1e6
"""Added to the cost of a ring that serves nobody within the bound: any that does is better."""

GAIN_MIN = 1e-9
"""Share of a cost that is no gain but rounding; without it a search could go in circles."""

MEMO_MAX = 50_000
"""Rings that an objective remembers, some 10 MB; then it forgets them all."""


class Score(NamedTuple):
    """How good a ring is."""

    users: int
    cost: float

    def beats(self, other: "Score") -> bool:
        """Whether this is better by more than rounding."""
        if self.users != other.users:
            return self.users > other.users
        return self.cost < other.cost * (1 - GAIN_MIN)


WORST = Score(-1, inf)


class Placed(NamedTuple):
    """A ring with its layers."""

    order: Order
    score: Score
    micro_batches: int
    counts: Counts


class Objective(Protocol):
    """Judges rings."""

    problem: Problem
    effort: int
    """Stages looked at so far, and rings asked for: what a search may spend is counted in these,
    not in seconds."""

    def best(self, order: Order, above: Score = WORST) -> Placed | None:
        """The best split of a ring, if it beats `above`."""
        ...


class _Memo:
    """Rings found, and scores that a ring is known not to beat."""

    __slots__ = ("found", "not_above")

    def __init__(self) -> None:
        self.found: dict[Order, Placed] = {}
        self.not_above: dict[Order, Score] = {}

    def known(self, order: Order, above: Score) -> tuple[bool, Placed | None]:
        """Whether the answer is known, and the answer."""
        if order in self.found:
            placed = self.found[order]
            return True, placed if placed.score.beats(above) else None
        refused = self.not_above.get(order)
        return refused is not None and not refused.beats(above), None

    def keep(self, order: Order, above: Score, placed: Placed | None) -> Placed | None:
        if len(self.found) + len(self.not_above) > MEMO_MAX:
            self.found.clear()
            self.not_above.clear()
        if placed is None:
            self.not_above[order] = above
        else:
            self.found[order] = placed
        return placed


class UsersObjective:
    """Users within the bound, then the time to first token."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.effort = 0
        self._memo = _Memo()
        self._effort_of_stage = 1 if problem.uniform else max(1, problem.layers // 2)

    def best(self, order: Order, above: Score = WORST) -> Placed | None:
        """See `Objective`."""
        self.effort += 1
        known, placed = self._memo.known(order, above)
        return placed if known else self._memo.keep(order, above, self._search(order, above))

    def _search(self, order: Order, above: Score) -> Placed | None:
        path = Path(self.problem, order)
        found = self._fit(path, above.users + 1) if above.users >= 0 else None
        if found is not None:
            return self._placed(path, self._most(path, found))
        found = self._fit(path, above.users) if above.users >= 1 else None
        if above.users < 0 and (first := self._fit(path, 1)) is not None:
            return self._placed(path, self._most(path, first))
        if found is None and above.users < 1:
            found = self._count(path, hold(self.problem, path))
        if found is None:
            return None
        placed = self._placed(path, found)
        return placed if placed.score.beats(above) else None

    def _most(self, path: Path, found: Fit) -> Fit:
        """From a number of users that can be served, by doubling steps and then halving them."""
        step = 1
        while (more := self._fit(path, found.users + step)) is not None:
            found, step = more, 2 * step
        while step > 1:
            step //= 2
            found = self._fit(path, found.users + step) or found
        return found

    def _fit(self, path: Path, users: int) -> Fit | None:
        return self._count(path, fit(self.problem, path, users))

    def _count(self, path: Path, found: Fit | None) -> Fit | None:
        self.effort += len(path.order) * self._effort_of_stage
        return found

    def _placed(self, path: Path, found: Fit) -> Placed:
        if found.users:
            cost = ttft_s(self.problem, path, found.counts)
        else:
            cost = SLOW_S + _round_s(self.problem, path, found.counts)
        cost *= 1 + STAGE_TOLL * len(path.order)
        return Placed(path.order, Score(found.users, cost), found.micro_batches, found.counts)


class RoundObjective:
    """One user's round trip, and the slowest stage's step times a weight. Equal layers only."""

    def __init__(self, problem: Problem, weight: float) -> None:
        """Raises ValueError for a model whose layers differ."""
        if not problem.uniform:
            raise ValueError("the round objective takes layers that are all alike")
        self.problem, self.weight = problem, weight
        self.effort = 0
        self._memo = _Memo()

    def best(self, order: Order, above: Score = WORST) -> Placed | None:
        """See `Objective`."""
        self.effort += 1
        known, placed = self._memo.known(order, above)
        return placed if known else self._memo.keep(order, above, self._search(order, above))

    def _search(self, order: Order, above: Score) -> Placed | None:
        problem, path = self.problem, Path(self.problem, order)
        self.effort += len(order)
        kv_bytes = problem.goal.context_tokens * problem.model.kv_bytes
        each = problem.model.layer_bytes[0] + kv_bytes
        rooms = [min(problem.layers, memory // each) for memory in path.memory_bytes]
        prices = [problem.fixed_s[i] + problem.row_s[i] for i in order]
        rest_s = path.delay_s + path.wire_s + path.step_s
        below = inf if above.users < 0 else above.cost * (1 - GAIN_MIN) - rest_s
        split = slowest_weighed(prices, rooms, problem.layers, self.weight, below)
        if split is None:
            return None
        return Placed(order, Score(0, rest_s + split[0]), 1, split[1])


def _round_s(problem: Problem, path: Path, counts: Counts) -> float:
    """Of one user."""
    prices = [problem.fixed_s[i] + problem.row_s[i] for i in path.order]
    output_s = problem.nodes[path.order[-1]].head_row_s
    rest_s = path.delay_s + path.wire_s + path.step_s + output_s
    return rest_s + total_s(problem, prices, counts)
