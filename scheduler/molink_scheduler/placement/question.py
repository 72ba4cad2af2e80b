"""All that a placement is asked, as one value: it may be answered in another process."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement.facts import Goal, LinkFacts, Network, NodeFacts
from molink_scheduler.placement.plan import Plan, even_plan, make_plan, plan_on_shared_lines
from molink_scheduler.placement.reserve import plan_with_reserve
from molink_scheduler.placement.search import EFFORT_MAX
from molink_scheduler.placement.shortage import Shortage

SPLITS = ("planned", "even")
"""How a model can be divided: by `make_plan`, or by `even_plan`."""


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """Question for a placement: which rings shall these nodes form?"""

    model: ModelCost
    nodes: tuple[NodeFacts, ...]
    links: tuple[tuple[str, str, float, float], ...]
    """Sender, receiver, bytes per second, seconds one way."""
    unmeasured: LinkFacts
    """Every other link."""
    goal: Goal
    split: str = "planned"
    """Value of `--split`."""
    standbys: int = 0
    """Nodes that are to be left free, as `--standby`."""
    effort_max: int = EFFORT_MAX
    """Stages and rings that the search may judge."""

    @classmethod
    def of(
        cls,
        model: ModelCost,
        nodes: Sequence[NodeFacts],
        network: Network,
        goal: Goal,
        split: str = "planned",
        standbys: int = 0,
    ) -> "PlacementQuestion":
        """The question whose links are those of `network`."""
        links = tuple(
            (*pair, link.rate_bytes_per_s, link.one_way_s) for pair, link in network.links.items()
        )
        return cls(model, tuple(nodes), links, network.default, goal, split, standbys)

    @property
    def network(self) -> Network:
        """The links as the placement takes them."""
        links = {(a, b): LinkFacts(rate, delay_s) for a, b, rate, delay_s in self.links}
        return Network(links, self.unmeasured)

    def answer(self) -> Plan | Shortage:
        """The best placement. Computes for seconds where there are hundreds of nodes."""
        return plan_with_reserve(self.nodes, self.standbys, self._plan)

    def _plan(self, nodes: Sequence[NodeFacts]) -> Plan | Shortage:
        planned = partial(make_plan, effort_max=self.effort_max)
        find = even_plan if self.split == "even" else planned
        network = self.network
        return plan_on_shared_lines(
            nodes, lambda shared: find(self.model, shared, network, self.goal)
        )
