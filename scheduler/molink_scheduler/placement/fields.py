"""A question for a placement, and its answer, as plain fields that JSON can carry.

A plan may be made in another process than the one that asks, and is told over HTTP; both ends are
of the same version or say that they cannot read it (TypeError, KeyError, ValueError).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from molink_scheduler.placement.evaluate import Forecast, StageForecast
from molink_scheduler.placement.facts import Goal, LinkFacts, ModelCost, Network, NodeFacts
from molink_scheduler.placement.plan import (
    Plan,
    Standby,
    even_plan,
    make_plan,
    plan_on_shared_lines,
)
from molink_scheduler.placement.shortage import Shortage

__all__ = [
    "PlacementQuestion",
    "fields_of",
    "found_from_fields",
    "plan_from_fields",
    "question_from_fields",
]


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """All that a plan is made of."""

    model: ModelCost
    nodes: tuple[NodeFacts, ...]
    network: Network
    goal: Goal
    split: str = "planned"

    def answer(self) -> Plan | Shortage:
        """Computes for seconds where there are hundreds of nodes."""
        find = even_plan if self.split == "even" else make_plan
        return plan_on_shared_lines(
            self.nodes, lambda nodes: find(self.model, nodes, self.network, self.goal)
        )


def fields_of(value: PlacementQuestion | Plan | Shortage) -> dict[str, Any]:
    """For JSON."""
    if not isinstance(value, PlacementQuestion):
        return asdict(value)
    links = [(*pair, *asdict(link).values()) for pair, link in value.network.links.items()]
    return {
        "model": asdict(value.model),
        "nodes": [asdict(node) for node in value.nodes],
        "links": links,
        "unmeasured": asdict(value.network.default),
        "goal": asdict(value.goal),
        "split": value.split,
    }


def question_from_fields(fields: Mapping[str, Any]) -> PlacementQuestion:
    """The same question."""
    model = fields["model"]
    lists = {key: tuple(model[key]) for key in ("layer_bytes", "layer_work")}
    links = {(a, b): LinkFacts(rate, delay) for a, b, rate, delay in fields["links"]}
    return PlacementQuestion(
        ModelCost(**{**model, **lists}),
        tuple(NodeFacts(**node) for node in fields["nodes"]),
        Network(links, LinkFacts(**fields["unmeasured"])),
        Goal(**fields["goal"]),
        fields["split"],
    )


def found_from_fields(fields: Mapping[str, Any]) -> Plan | Shortage:
    """The answer."""
    return plan_from_fields(fields) if "rings" in fields else Shortage(**fields)


def plan_from_fields(fields: Mapping[str, Any]) -> Plan:
    """A plan."""
    rings = tuple(_ring(ring) for ring in fields["rings"])
    standbys = tuple(Standby(**one) for one in fields["standbys"])
    return Plan(Goal(**fields["goal"]), rings, standbys)


def _ring(fields: Mapping[str, Any]) -> Forecast:
    return Forecast(**{**fields, "stages": tuple(_stage(one) for one in fields["stages"])})


def _stage(fields: Mapping[str, Any]) -> StageForecast:
    start, end = fields["layers"]
    return StageForecast(**{**fields, "layers": (start, end)})
