"""A placement: rings with their forecasts, and for every node left over why it is.

`make_plan` is what a coordinator, and `molink plan`, asks. After the search, whatever is left over
is offered to every ring once more, so a standby is one that no ring gains from, and the reason
given is what the ring that it would suit best would become.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from molink_scheduler.placement.evaluate import Forecast, forecast
from molink_scheduler.placement.facts import Goal, ModelCost, Network, NodeFacts
from molink_scheduler.placement.grow import recipes_for_users
from molink_scheduler.placement.objective import Objective, Placed
from molink_scheduler.placement.problem import Problem
from molink_scheduler.placement.search import EFFORT_MAX, search
from molink_scheduler.placement.shortage import Shortage, shortage
from molink_scheduler.placement.standby import adopt, standby_reason

__all__ = ["Plan", "Standby", "make_plan"]


@dataclass(frozen=True, slots=True)
class Standby:
    """A node without layers."""

    node_id: str
    name: str
    reason: str
    """One sentence for its owner, without a full stop; the node is its subject."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who holds what."""

    goal: Goal
    rings: tuple[Forecast, ...]
    """The one with the most users first."""
    standbys: tuple[Standby, ...] = ()

    @property
    def users(self) -> int:
        """Within the bound, all rings together."""
        return sum(ring.users for ring in self.rings)

    @property
    def tokens_per_s(self) -> float:
        """Of all rings at that load."""
        return sum(ring.tokens_per_s for ring in self.rings)

    @property
    def ttft_s(self) -> float:
        """That users meet in the mean, on an idle ring."""
        weights = [max(1, ring.users) for ring in self.rings]
        total = sum(w * ring.ttft_s for w, ring in zip(weights, self.rings, strict=True))
        return total / max(1, sum(weights))

    @property
    def layers_of(self) -> dict[str, tuple[int, int]]:
        """[start, end) of each node that has some, by its id."""
        return {stage.node_id: stage.layers for ring in self.rings for stage in ring.stages}


def make_plan(
    model: ModelCost,
    nodes: Sequence[NodeFacts],
    network: Network,
    goal: Goal,
    rings_max: int | None = None,
    effort_max: int = EFFORT_MAX,
) -> Plan | Shortage:
    """The best placement found, in at most `rings_max` rings (None: as many as pay), or what is
    missing. Raises ValueError when two nodes have the same id.

    A plan with a single ring may serve no user within the bound: then that ring is the one with the
    shortest round trip.
    """
    problem = Problem(model, nodes, network, goal)
    objective = Objective(problem)
    found = search(objective, recipes_for_users(problem), rings_max, effort_max)
    if not found:
        missing = shortage(problem)
        assert missing is not None, "the search begins with the ring that holds the most"
        return missing
    rings, pool = adopt(objective, found)
    rings.sort(key=lambda ring: (-ring.score.users, ring.order))
    forecasts = tuple(_forecast(problem, ring) for ring in rings)
    standbys = [
        Standby(node.id, node.name, standby_reason(objective, rings, forecasts, number))
        for number, node in enumerate(problem.nodes)
        if number in pool
    ]
    return Plan(goal, forecasts, tuple(standbys))


def _forecast(problem: Problem, ring: Placed) -> Forecast:
    nodes = [problem.nodes[number] for number in ring.order]
    return forecast(problem.model, nodes, ring.counts, problem.network, problem.goal)
