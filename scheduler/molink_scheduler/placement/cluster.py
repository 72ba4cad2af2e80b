"""Rings side by side, the nodes left over, and moves that change one or two rings.

Which moves between rings are tried is left to `DeterministicRandom`: the core draws no random
numbers of its own, and a placement must not depend on the moment at which it is asked for.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import TypeVar

from molink_scheduler.placement.neighbourhood import PairCosts, insertions, reorders
from molink_scheduler.placement.objective import WORST, Objective, PlacedRing, Score
from molink_scheduler.placement.problem import Order

__all__ = ["Cluster", "DeterministicRandom", "best_of", "total_score"]

T = TypeVar("T")

PAIR_TRIES = 30
"""Moves between a ring and others that are tried in one pass; with ten rings of ten nodes there are
thousands, of which few help."""

MULTIPLIER, INCREMENT, MODULUS = 6364136223846793005, 1442695040888963407, 2**64
"""Knuth's, for 64 bits; the low bits are poor and not used."""


class DeterministicRandom:
    """Linear congruential generator: the same numbers from the same seed, everywhere."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = seed % MODULUS

    def below(self, limit: int) -> int:
        """Draw a number from 0 to limit - 1; `limit` is at least 1."""
        self._state = (self._state * MULTIPLIER + INCREMENT) % MODULUS
        return (self._state >> 32) * limit >> 32

    def choice(self, values: Sequence[T]) -> T:
        """Draw one of the values."""
        return values[self.below(len(values))]

    def two_below(self, limit: int) -> tuple[int, int]:
        """Draw two different numbers from 0 to limit - 1; `limit` is at least 2."""
        first, second = self.below(limit), self.below(limit - 1)
        return first, second + (second >= first)


def total_score(rings: Iterable[PlacedRing]) -> Score:
    """Score of all rings together: all users, and the mean cost that they feel."""
    scores = [ring.score for ring in rings]
    users = sum([score.users for score in scores])
    if users > 0:
        return Score(users, sum([score.users * score.cost for score in scores]) / users)
    return max(scores, key=lambda score: -score.cost, default=WORST)


def best_of(objective: Objective, orders: Iterable[Order], above: Score) -> PlacedRing | None:
    """The best of these rings that beats `above`."""
    best: PlacedRing | None = None
    for order in orders:
        placed = objective.best(order, above)
        if placed is not None:
            best, above = placed, placed.score
    return best


class Cluster:
    """State of the search: disjoint rings, and the nodes that none of them has."""

    __slots__ = ("_spent", "objective", "pool", "rings")

    def __init__(
        self,
        objective: Objective,
        rings: Sequence[PlacedRing],
        nodes: Iterable[int],
        spent: Callable[[], bool],
    ) -> None:
        """`nodes` are all that may be used; `spent` answers whether the effort has run out."""
        self.objective, self.rings, self._spent = objective, list(rings), spent
        used = {node for ring in rings for node in ring.order}
        self.pool = [node for node in nodes if node not in used]

    def polish(self, number: int) -> None:
        """Change one ring, with the nodes left over, until no move makes it better."""
        while not self._spent() and self._step(number):
            pass

    def _step(self, number: int) -> bool:
        ring = self.rings[number]
        costs = PairCosts(self.objective.problem, ring.rows)
        for orders in (
            reorders(costs, ring.order),
            (other for node in self.pool for other in insertions(costs, ring.order, node)),
            _without_one(ring.order),
            self._replacements(ring.order),
        ):
            better = best_of(self.objective, orders, ring.score)
            if better is not None:
                self._replace(number, better)
                return True
            if self._spent():
                return False
        return False

    def exchange(self, random: DeterministicRandom, numbers: Sequence[int]) -> bool:
        """Try random moves between these rings and others; True when one helped."""
        helped = False
        for _ in range(PAIR_TRIES * len(numbers) if len(self.rings) > 1 else 0):
            if self._spent():
                break
            a, b = random.two_below(len(self.rings))
            a = random.choice(numbers)
            if a == b:
                continue
            i = random.choice(self.rings[a].order)
            j = random.choice(self.rings[b].order)
            helped |= self._hand_over(a, b, i) or self._exchange(a, b, i, j)
        return helped

    def _hand_over(self, a: int, b: int, node: int) -> bool:
        """A node of ring a goes over to ring b."""
        source, target = self.rings[a], self.rings[b]
        rest = tuple(other for other in source.order if other != node)
        if not rest:
            return False
        costs = PairCosts(self.objective.problem, target.rows)
        larger = best_of(self.objective, insertions(costs, target.order, node), target.score)
        return larger is not None and self._accept(b, larger, a, [rest])

    def _exchange(self, a: int, b: int, i: int, j: int) -> bool:
        """Node i of ring a and node j of ring b change places: one of the rings must gain."""
        with_j = [tuple(j if node == i else node for node in self.rings[a].order)]
        with_i = [tuple(i if node == j else node for node in self.rings[b].order)]
        better = best_of(self.objective, with_j, self.rings[a].score)
        if better is not None:
            return self._accept(a, better, b, with_i)
        better = best_of(self.objective, with_i, self.rings[b].score)
        return better is not None and self._accept(b, better, a, with_j)

    def _accept(self, gains: int, better: PlacedRing, loses: int, others: list[Order]) -> bool:
        """Take both changes if they are better together."""
        before = (self.rings[gains], self.rings[loses])
        users = before[0].score.users + before[1].score.users - better.score.users
        worse = best_of(self.objective, others, Score(users, inf))
        if worse is None or not total_score((better, worse)).beats(total_score(before)):
            return False
        self.rings[gains], self.rings[loses] = better, worse
        return True

    def _replace(self, number: int, ring: PlacedRing) -> None:
        old, new = set(self.rings[number].order), set(ring.order)
        self.pool = sorted((set(self.pool) | old) - new)
        self.rings[number] = ring

    def _replacements(self, order: Order) -> Iterator[Order]:
        for place in range(len(order)):
            for node in self.pool:
                yield (*order[:place], node, *order[place + 1 :])


def _without_one(order: Order) -> Iterator[Order]:
    """The ring without each of its nodes in turn."""
    if len(order) > 1:
        for place in range(len(order)):
            yield order[:place] + order[place + 1 :]
