"""Why nothing serves yet, in one sentence for users who get a 503."""

from collections.abc import Sequence
from dataclasses import dataclass

from molink.control.messages.payloads import NodeState
from molink.coordinator.members.node_book import Node
from molink.coordinator.planning.cluster_plan import ClusterPlan
from molink.coordinator.rings.ring_supervisor import RingSupervisor

__all__ = ["Waiting", "progress_sentence"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """What the manager waits for."""

    min_nodes: int
    nodes_still_measuring: int = 0
    """Nodes that still measure the paths to others."""
    last_failure: str = ""
    """Of a ring; empty when the last one has not failed."""


def progress_sentence(
    nodes: Sequence[Node], rings: Sequence[RingSupervisor], plan: ClusterPlan, waiting: Waiting
) -> str:
    """The nearest thing that is being waited for."""
    if rings:
        ring = rings[0]
        if any(stage.loaded is None for stage in ring.stages):
            return f"The PCs are loading the model: {ring.loaded_share:.0%} done."
        return "The PCs have loaded the model and are connecting to each other."
    here = [node for node in nodes if node.is_here]
    if nodes and not here:
        return f"None of the {_pcs(len(nodes))} that joined before is here now."
    if not here:
        return "No PC has joined yet: start an agent with the command that `molink up` printed."
    measuring = [node for node in here if node.state is NodeState.JOINING]
    if measuring:
        return f"{_pcs(len(here))} joined, {len(measuring)} of them still being measured."
    ready = [node for node in here if node.may_serve]
    if len(ready) < waiting.min_nodes:
        return f"{len(ready)} of at least {waiting.min_nodes} PCs ready: let more join."
    if waiting.nodes_still_measuring:
        return (
            f"{_pcs(len(ready))} ready, {waiting.nodes_still_measuring} of them still measuring "
            "the ways to the others."
        )
    if waiting.last_failure:
        return f"The last ring has failed: {waiting.last_failure} Another is tried soon."
    return plan.shortage or f"{_pcs(len(ready))} ready; a plan is being made."


def _pcs(count: int) -> str:
    return f"{count} PC{'s' * (count != 1)}"
