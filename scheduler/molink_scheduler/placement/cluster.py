"""Rings side by side, the nodes left over, and moves that change one or two rings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf

from molink_scheduler.placement.chance import Chance
from molink_scheduler.placement.neighbourhood import Ways, insertions, reorders
from molink_scheduler.placement.objective import WORST, Objective, Placed, Score
from molink_scheduler.placement.problem import Order

__all__ = ["Cluster", "best_of", "merit"]

PAIR_TRIES = 30
"""Moves between a ring and others that are looked at in one round; with ten rings of ten nodes
there are thousands, of which few help."""


def merit(rings: Iterable[Placed]) -> Score:
    """Of all rings together: all users, and the mean cost that they feel."""
    scores = [ring.score for ring in rings]
    users = sum([score.users for score in scores])
    if users > 0:
        return Score(users, sum([score.users * score.cost for score in scores]) / users)
    return max(scores, key=lambda score: -score.cost, default=WORST)


def best_of(objective: Objective, orders: Iterable[Order], above: Score) -> Placed | None:
    """The best of these rings that beats `above`."""
    best: Placed | None = None
    for order in orders:
        placed = objective.best(order, above)
        if placed is not None:
            best, above = placed, placed.score
    return best


class Cluster:
    """A state of the search."""

    __slots__ = ("_spent", "objective", "pool", "rings")

    def __init__(
        self,
        objective: Objective,
        rings: Sequence[Placed],
        nodes: Iterable[int],
        spent: Callable[[], bool],
    ) -> None:
        """`nodes` are all that may be used; `spent` tells when the effort has run out."""
        self.objective, self.rings, self._spent = objective, list(rings), spent
        used = {node for ring in rings for node in ring.order}
        self.pool = [node for node in nodes if node not in used]

    @property
    def merit(self) -> Score:
        """How good it is."""
        return merit(self.rings)

    def polish(self, number: int) -> None:
        """Change one ring, with the nodes left over, until no move makes it better."""
        while not self._spent() and self._step(number):
            pass

    def _step(self, number: int) -> bool:
        ring = self.rings[number]
        ways = Ways(self.objective.problem, self._rows(ring))
        for orders in (
            reorders(ways, ring.order),
            (other for node in self.pool for other in insertions(ways, ring.order, node)),
            without_one(ring.order),
            self._replacements(ring.order),
        ):
            better = best_of(self.objective, orders, ring.score)
            if better is not None:
                self._replace(number, better)
                return True
            if self._spent():
                return False
        return False

    def exchange(self, chance: Chance, numbers: Sequence[int]) -> bool:
        """Try moves between these rings and others, left to chance; True when one helped."""
        helped = False
        for _ in range(PAIR_TRIES * len(numbers) if len(self.rings) > 1 else 0):
            if self._spent():
                break
            a, b = chance.two_of(len(self.rings))
            a = chance.of(numbers)
            if a == b:
                continue
            i = chance.of(self.rings[a].order)
            j = chance.of(self.rings[b].order)
            helped |= self._hand_over(a, b, i) or self._exchange(a, b, i, j)
        return helped

    def _hand_over(self, a: int, b: int, node: int) -> bool:
        """A node of ring a goes over to ring b."""
        giver, taker = self.rings[a], self.rings[b]
        rest = tuple(other for other in giver.order if other != node)
        if not rest:
            return False
        ways = Ways(self.objective.problem, self._rows(taker))
        larger = best_of(self.objective, insertions(ways, taker.order, node), taker.score)
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

    def _accept(self, gains: int, better: Placed, loses: int, others: list[Order]) -> bool:
        """Take both changes if they are better together."""
        before = (self.rings[gains], self.rings[loses])
        users = before[0].score.users + before[1].score.users - better.score.users
        worse = best_of(self.objective, others, Score(users, inf))
        if worse is None or not merit((better, worse)).beats(merit(before)):
            return False
        self.rings[gains], self.rings[loses] = better, worse
        return True

    def _replace(self, number: int, ring: Placed) -> None:
        old, new = set(self.rings[number].order), set(ring.order)
        self.pool = sorted((set(self.pool) | old) - new)
        self.rings[number] = ring

    def _replacements(self, order: Order) -> Iterator[Order]:
        for place in range(len(order)):
            for node in self.pool:
                yield (*order[:place], node, *order[place + 1 :])

    def _rows(self, ring: Placed) -> int:
        return max(1, -(-ring.score.users // ring.micro_batches))


def without_one(order: Order) -> Iterator[Order]:
    """The ring without each of its nodes in turn."""
    if len(order) > 1:
        for place in range(len(order)):
            yield order[:place] + order[place + 1 :]
