"""The PCs of `molink plan`, from a file (`node_file`), as the placement takes them."""

from dataclasses import asdict, dataclass
from itertools import permutations
from pathlib import Path

from molink.checkpoint.model_shape import ModelShape
from molink.config.node_file import ListedNode, NodeFile, read_node_file
from molink.hardware.estimate import estimated_times
from molink_scheduler.placement import LinkFacts, Network, NodeFacts

__all__ = ["PlannedNodes", "read_planned_nodes"]

BYTES_PER_MBIT = 125_000.0


@dataclass(frozen=True, slots=True)
class PlannedNodes:
    """All PCs, and the pairs that were measured."""

    file: NodeFile

    def facts(self, shape: ModelShape, context_tokens: int) -> tuple[NodeFacts, ...]:
        """What each lends and takes for a layer of the model."""
        return tuple(_facts(node, shape, context_tokens) for node in self.file.nodes)

    def network(self) -> Network:
        """Every ordered pair."""
        return Network(
            {(a.name, b.name): self._link(a, b) for a, b in permutations(self.file.nodes, 2)}
        )

    def _link(self, sender: ListedNode, receiver: ListedNode) -> LinkFacts:
        link = self.file.link(sender, receiver)
        return LinkFacts(link.mbps * BYTES_PER_MBIT, link.one_way_ms / 1e3)


def read_planned_nodes(path: Path) -> PlannedNodes:
    """Raises UserError for a file that does not describe a set of PCs."""
    return PlannedNodes(read_node_file(path))


def _facts(node: ListedNode, shape: ModelShape, context_tokens: int) -> NodeFacts:
    times = node.times
    if times is None:
        assert node.device is not None, "a PC has a device or measured times"
        times = estimated_times(shape, node.device, context_tokens)
    return NodeFacts(
        id=node.name,
        memory_bytes=node.lent_bytes,
        upload_bytes_per_s=node.upload_mbps * BYTES_PER_MBIT,
        **asdict(times),
    )
