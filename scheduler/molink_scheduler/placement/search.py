"""Local search over several starts for the nodes and the order of each ring.

Every move changes one or two rings, and each changed ring is judged exactly: its best split, then
the users that it can serve. Moves are: another order (2-opt, or-opt, other ends), a node more, a
node less, a node in place of another one (from those left over, or from another ring), a node that
goes over to another ring. The best move of a kind is taken, until none helps. Then some rings are
taken apart and grown anew from other recipes, as often as the effort allows: that is what changes
how many rings there are.

Exact methods were rejected: HiGHS needs up to 11 s for 30 nodes, one ring and a linear objective,
and users within a bound are not linear (docs/decisions, 10). What is spent is counted in stages
judged, so the same facts give the same plan on every machine.

Of a handful of nodes every ring is tried instead: most clusters begin with a handful, and there a
search that is stuck is seen at once. Six nodes make 1,956 rings, each judged with its best split;
then the best set of disjoint ones is put together from the best ring of each set of nodes (63 of
them).
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations

from molink_scheduler.placement.cluster import Cluster, DeterministicRandom, best_of, total_score
from molink_scheduler.placement.grow import Recipe, grow
from molink_scheduler.placement.neighbourhood import PairCosts, reorders
from molink_scheduler.placement.objective import WORST, Objective, PlacedRing
from molink_scheduler.placement.problem import Order
from molink_scheduler.placement.shortage import fullest_order

NODES_TRIED_ALL = 7
"""Most nodes of which every ring is tried; seven make 13,699 rings and take seconds."""

EFFORT_MAX = 300_000
"""Stages judged: about a second of CPython 3.11 on a slow server core (docs/placement.md)."""

STARTS = 3
"""Grown starts that are polished; more took effort from what follows."""

STARTS_SHARE = 0.4
"""Share of the effort that all starts together may take."""

FREED_MAX = 3
"""Rings taken apart at once."""

TOURNAMENT = 2
"""Rings drawn, of which the one that makes the least of its nodes is taken apart."""

RECIPES_TRIED = 8
"""Recipes tried for each ring that is grown anew."""

SLACK = 0.005
"""Share of the best's users that a state may lack for the search to go on from it."""

IDLE_ROUNDS_MAX = 200
"""Rounds without a gain after which no more is expected."""

SEEDS = 3
"""First nodes tried for each recipe where there is to be one ring only: the others follow from
it."""

_Nodes = frozenset[int]


def search(
    objective: Objective,
    recipes: Sequence[Recipe],
    rings_max: int | None = None,
    effort_max: int = EFFORT_MAX,
    seed: int = 1,
) -> list[PlacedRing]:
    """The best rings found, at most `rings_max` of them (None: as many as pay); none when the nodes
    cannot hold the model."""
    if len(objective.problem.nodes) <= NODES_TRIED_ALL:
        return _try_all(objective, rings_max or NODES_TRIED_ALL)
    return local_search(objective, recipes, rings_max, effort_max, seed)


def local_search(
    objective: Objective,
    recipes: Sequence[Recipe],
    rings_max: int | None = None,
    effort_max: int = EFFORT_MAX,
    seed: int = 1,
) -> list[PlacedRing]:
    """Search locally, as `search` does, however few nodes there are."""
    return _Search(objective, recipes, rings_max, effort_max, DeterministicRandom(seed)).run()


def _try_all(objective: Objective, rings_max: int) -> list[PlacedRing]:
    """The best set of at most `rings_max` disjoint rings; none when no ring holds the model."""
    nodes = range(len(objective.problem.nodes))
    best_of_set: dict[_Nodes, PlacedRing] = {}
    for size in range(1, min(len(nodes), objective.problem.stages_max) + 1):
        for members in combinations(nodes, size):
            ring = best_of(objective, permutations(members), WORST)
            if ring is not None:
                best_of_set[frozenset(members)] = ring
    # A ring that serves nobody within the bound is worth having only alone.
    serving = {members: ring for members, ring in best_of_set.items() if ring.score.users}
    best: list[PlacedRing] = []
    for rings in (
        *([ring] for ring in best_of_set.values()),
        *_disjoint_sets(serving, frozenset(nodes), rings_max),
    ):
        if total_score(rings).beats(total_score(best)):
            best = rings
    return best


def _disjoint_sets(
    rings: dict[_Nodes, PlacedRing], free: _Nodes, rings_max: int
) -> Iterable[list[PlacedRing]]:
    """All sets of disjoint rings of free nodes, each set once: by their smallest nodes, rising."""
    if rings_max < 1:
        return
    for members, ring in rings.items():
        if members <= free:
            yield [ring]
            later = frozenset(node for node in free - members if node > min(members))
            for others in _disjoint_sets(rings, later, rings_max - 1):
                yield [ring, *others]


class _Search:
    """Local search: polished starts, then rounds of ruin and recreate."""

    def __init__(
        self,
        objective: Objective,
        recipes: Sequence[Recipe],
        rings_max: int | None,
        effort_max: int,
        random: DeterministicRandom,
    ) -> None:
        self._objective, self._recipes, self._random = objective, recipes, random
        self._nodes = range(len(objective.problem.nodes))
        layers = objective.problem.layers
        self._worth = [
            max([1e-6, *(recipe.users * recipe.rooms[node] / layers for recipe in recipes)])
            for node in self._nodes
        ]
        """Users that a node could bring to the ring that suits it best."""
        self._rings_max = rings_max or len(self._nodes)
        self._effort_max = self._limit = effort_max

    def run(self) -> list[PlacedRing]:
        starts = self._starts()
        best: list[PlacedRing] = []
        # Each start is polished with an equal share of the effort that starts may take together.
        for number, rings in enumerate(starts[:STARTS]):
            share = STARTS_SHARE * (number + 1) / STARTS
            self._limit = max(self._objective.effort, int(share * self._effort_max))
            polished = self._polished(rings)
            if total_score(polished).beats(total_score(best)):
                best = polished
        self._limit = self._effort_max
        return self._ruin_and_recreate(best) if best else []

    def _spent(self) -> bool:
        return self._objective.effort >= self._limit

    def _starts(self) -> list[list[PlacedRing]]:
        """Sets of rings to begin with, best first."""
        self._limit = int(self._effort_max * STARTS_SHARE / 2)
        seeds = SEEDS if self._rings_max == 1 else 1
        starts = [
            self._grown(list(self._nodes), recipe, self._rings_max, seed)
            for seed in range(seeds)
            for recipe in self._recipes
            if not self._spent()
        ]
        if self._rings_max > 1 and self._recipes:
            starts.append(self._regrown(list(self._nodes), self._rings_max))
        starts = [rings for rings in starts if rings]
        if not starts:
            fullest = fullest_order(self._objective.problem)
            placed = fullest and self._placed(fullest, rows=1)
            starts = [[placed]] if placed else []
        starts.sort(key=lambda rings: (-total_score(rings).users, total_score(rings).cost))
        return starts

    def _grown(
        self, pool: list[int], recipe: Recipe, rings_max: int, seed: int = 0
    ) -> list[PlacedRing]:
        """Rings that the recipe makes of the pool, as many as it can."""
        rings: list[PlacedRing] = []
        problem = self._objective.problem
        while len(rings) < rings_max:
            self._objective.effort += len(pool)
            order = grow(problem, recipe, pool, seed)
            if order is None:
                break
            placed = self._placed(order, recipe.rows)
            if placed is None or (rings and not placed.score.users):
                break
            rings.append(placed)
            pool = [node for node in pool if node not in set(placed.order)]
        return rings

    def _placed(self, order: Order, rows: float) -> PlacedRing | None:
        """The ring, or where tables or layers that stay together find no room, one with other
        nodes at its ends."""
        placed = self._objective.best(order)
        if placed is not None:
            return placed
        costs = PairCosts(self._objective.problem, rows)
        return best_of(self._objective, reorders(costs, order), WORST)

    def _polished(self, rings: list[PlacedRing]) -> list[PlacedRing]:
        cluster = Cluster(self._objective, rings, self._nodes, self._spent)
        while not self._spent():
            for number in range(len(cluster.rings)):
                cluster.polish(number)
            if not cluster.exchange(self._random, range(len(cluster.rings))):
                break
        return [ring for ring in cluster.rings if ring.score.users] or cluster.rings[:1]

    def _ruin_and_recreate(self, best: list[PlacedRing]) -> list[PlacedRing]:
        """Goes on from states a little worse than the best, too: rings have to fit each other, and
        often two must change before anything is gained."""
        idle, now = 0, best
        while not self._spent() and self._recipes and idle < IDLE_ROUNDS_MAX:
            other, idle = self._recreated(now), idle + 1
            if total_score(other).beats(total_score(best)):
                best, now, idle = other, other, 0
            elif total_score(other).users >= total_score(best).users * (1 - SLACK):
                now = other
        return best

    def _recreated(self, rings: list[PlacedRing]) -> list[PlacedRing]:
        """Cluster with a few rings grown anew from their nodes and those left over."""
        kept = list(rings)
        # Ruin: of two rings drawn, the one that makes less of its nodes goes, up to three times.
        for _ in range(min(len(rings), 1 + self._random.below(FREED_MAX))):
            kept.remove(min(self._some(kept), key=self._efficiency))
        used = {node for ring in kept for node in ring.order}
        pool = [node for node in self._nodes if node not in used]
        # Recreate: new rings from the free nodes, polished, then exchanged with the others.
        grown = self._regrown(pool, self._rings_max - len(kept))
        cluster = Cluster(self._objective, [*kept, *grown], self._nodes, self._spent)
        new = range(len(kept), len(cluster.rings))
        for number in new:
            cluster.polish(number)
        cluster.exchange(self._random, new)
        return [ring for ring in cluster.rings if ring.score.users] or cluster.rings[:1]

    def _some(self, rings: list[PlacedRing]) -> list[PlacedRing]:
        return [self._random.choice(rings) for _ in range(TOURNAMENT)]

    def _regrown(self, pool: list[int], rings_max: int) -> list[PlacedRing]:
        """Rings of the pool, each the best of several recipes and first nodes: the one with the
        most users for what its nodes could bring elsewhere."""
        rings: list[PlacedRing] = []
        while len(rings) < rings_max:
            tried = [
                ring
                for _ in range(RECIPES_TRIED)
                for ring in self._grown(
                    pool, self._random.choice(self._recipes), 1, self._random.below(len(pool) + 1)
                )
            ]
            tried = [ring for ring in tried if ring.score.users or not rings]
            if not tried:
                break
            best = max(tried, key=lambda ring: (self._efficiency(ring), -ring.score.cost))
            rings.append(best)
            pool = [node for node in pool if node not in set(best.order)]
        return rings

    def _efficiency(self, ring: PlacedRing) -> float:
        return ring.score.users / sum([self._worth[node] for node in ring.order])
