"""The PCs of a forecast, from the file that `molink plan` takes too (`molink.config.node_file`).

A simulated step has any number of rows over any context, which the straight lines that a plan goes
by do not tell. So each PC needs a device here, whatever was measured of it.
"""

from pathlib import Path

from molink.config.node_file import ListedNode, NodeFile, read_node_file
from molink.errors import UserError
from molink_sim.hardware import Gpu
from molink_sim.scenario import LinkSpec

__all__ = ["device_of", "link_of", "read_nodes"]


def read_nodes(path: Path) -> NodeFile:
    """Raises UserError for a file that does not describe a set of PCs with devices."""
    nodes = read_node_file(path)
    for node in nodes.nodes:
        if node.device is None:
            raise UserError(
                f"{node.name} in {path} has measured times but no device, which a simulation "
                "computes with: give a known gpu, or memory_gib, bandwidth_gb_per_s and tflops."
            )
    return nodes


def device_of(node: ListedNode) -> Gpu:
    """With what it computes; `read_nodes` refuses a PC that has none."""
    assert node.device is not None, f"{node.name} has no device"
    return node.device


def link_of(nodes: NodeFile, sender: ListedNode, receiver: ListedNode) -> LinkSpec:
    """The link between two of them."""
    link = nodes.link(sender, receiver)
    return LinkSpec(link.mbps, link.one_way_ms / 1e3)
