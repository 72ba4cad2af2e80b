"""What GET /cluster says of local nodes, as it does of agents."""

from typing import Any

from molink.coordinator.local.local_ring import LocalRing
from molink.coordinator.members.ledger import Contribution
from molink.coordinator.nodes_report import nodes_report
from molink.coordinator.planning.cluster_plan import ClusterPlan
from molink.coordinator.rings.agent_stage import AgentStage

__all__ = ["local_nodes_report"]

NO_STANDBYS = ClusterPlan(())


def local_nodes_report(ring: LocalRing, tokens_told: int, serving_s: float) -> list[dict[str, Any]]:
    """One entry for each node; all of them have served for `serving_s`, in which users were told
    so many tokens."""
    given = {
        stage.node.node_id: Contribution(serving_s, tokens_told * _layers(stage), _bytes(stage))
        for stage in ring.stages
    }
    entries = nodes_report([stage.node for stage in ring.stages], NO_STANDBYS, given)
    devices = {stage.node.node_id: stage.loaded.device for stage in ring.stages if stage.loaded}
    return [entry | {"device": devices.get(entry["id"])} for entry in entries]


def _layers(stage: AgentStage) -> int:
    start, end = stage.layers
    return end - start


def _bytes(stage: AgentStage) -> int:
    return sum(link.bytes_sent for link in stage.health.links) if stage.health else 0
