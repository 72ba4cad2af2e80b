"""A handful of nodes: try every ring there is.

Most clusters begin with a handful, and there a search that is stuck is seen at once. Six nodes make
1,956 rings, each judged with its best split; then the best set of disjoint ones is put together
from the best ring of each set of nodes (63 of them).
"""

from collections.abc import Iterable, Sequence
from itertools import combinations, permutations

from molink_scheduler.placement.cluster import best_of, merit
from molink_scheduler.placement.objective import WORST, Objective, Placed

__all__ = ["NODES_MAX", "best_rings"]

NODES_MAX = 7
"""Seven make 13,699 rings and take seconds."""

Nodes = frozenset[int]


def best_rings(objective: Objective, rings_max: int) -> list[Placed]:
    """The best set of at most `rings_max` disjoint rings; none when no ring holds the model."""
    everybody = range(len(objective.problem.nodes))
    best_of_set: dict[Nodes, Placed] = {}
    for size in range(1, min(len(everybody), objective.problem.layers) + 1):
        for nodes in combinations(everybody, size):
            ring = best_of(objective, permutations(nodes), WORST)
            if ring is not None:
                best_of_set[frozenset(nodes)] = ring
    alone = [[ring] for ring in best_of_set.values()]
    serving = {nodes: ring for nodes, ring in best_of_set.items() if ring.score.users}
    return _better([*alone, *_sets(serving, frozenset(everybody), rings_max)])


def _sets(rings: dict[Nodes, Placed], free: Nodes, rings_max: int) -> Iterable[list[Placed]]:
    """All sets of disjoint rings of free nodes, each set once: by their smallest nodes, rising."""
    if rings_max < 1:
        return
    for nodes, ring in rings.items():
        if nodes <= free:
            yield [ring]
            later = frozenset(node for node in free - nodes if node > min(nodes))
            for others in _sets(rings, later, rings_max - 1):
                yield [ring, *others]


def _better(sets: Sequence[list[Placed]]) -> list[Placed]:
    best: list[Placed] = []
    for rings in sets:
        if merit(rings).beats(merit(best)):
            best = rings
    return best
