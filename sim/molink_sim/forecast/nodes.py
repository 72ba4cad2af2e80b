"""The PCs of a forecast, from a TOML file.

    [[nodes]]
    name = "anna"
    gpu = "rtx3060"            # or memory_gib, bandwidth_gb_per_s and tflops of its own
    upload_mbps = 40
    download_mbps = 100
    one_way_ms = 12            # to the middle of the internet; between two PCs the sum of both

    [[links]]                  # where a pair was measured; both directions
    between = ["anna", "ben"]
    one_way_ms = 7

A link carries what the sender's upload and the receiver's download let through.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink_sim.machines import Gpu, gpu
from molink_sim.scenario import LinkSpec

__all__ = ["NODES_MAX", "Node", "NodeSet", "read_nodes"]

NODES_MAX = 256
"""The longest ring that the simulator takes."""

ONE_WAY_MS = 15.0
"""Of a PC that does not say: 30 ms between two homes."""

GPU_NUMBERS = ("memory_gib", "bandwidth_gb_per_s", "tflops")
NODE_KEYS = {"name", "gpu", *GPU_NUMBERS, "upload_mbps", "download_mbps", "one_way_ms"}


@dataclass(frozen=True, slots=True)
class Node:
    """One PC."""

    name: str
    device: Gpu
    upload_mbps: float
    download_mbps: float
    one_way_ms: float = ONE_WAY_MS


@dataclass(frozen=True, slots=True)
class NodeSet:
    """PCs in the order of the ring, and the pairs that were measured."""

    nodes: tuple[Node, ...]
    one_way_ms: Mapping[frozenset[str], float]

    def link(self, sender: Node, receiver: Node) -> LinkSpec:
        """The link between two of them."""
        pair = frozenset((sender.name, receiver.name))
        delay_ms = self.one_way_ms.get(pair, sender.one_way_ms + receiver.one_way_ms)
        return LinkSpec(min(sender.upload_mbps, receiver.download_mbps), delay_ms / 1e3)


def read_nodes(path: Path) -> NodeSet:
    """Raises UserError for a file that does not describe a set of PCs."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read the PCs of {path} ({error}): give a TOML file.") from error
    nodes = tuple(_node(path, number, one) for number, one in enumerate(_list(path, data, "nodes")))
    if not 1 <= len(nodes) <= NODES_MAX:
        raise UserError(f"{path} has {len(nodes)} PCs: give 1 to {NODES_MAX} as [[nodes]].")
    names = {node.name for node in nodes}
    if len(names) < len(nodes):
        raise UserError(f"two PCs of {path} have the same name: give each its own.")
    return NodeSet(nodes, dict(_pair(path, names, one) for one in _list(path, data, "links")))


def _list(path: Path, data: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{key} of {path} must be tables: write [[{key}]] above each.")
    return found


def _node(path: Path, number: int, table: Mapping[str, Any]) -> Node:
    name = table.get("name", f"pc{number}")
    if not isinstance(name, str):
        raise UserError(f"PC {number} of {path} has the name {name!r}: give a text.")
    where = f"{name} in {path}"
    unknown = sorted(table.keys() - NODE_KEYS)
    if unknown:
        known = ", ".join(sorted(NODE_KEYS))
        raise UserError(f"{where} has {unknown[0]}, which means nothing: a PC has {known}.")
    return Node(
        name,
        _device(where, name, table),
        _number(where, table, "upload_mbps"),
        _number(where, table, "download_mbps"),
        _number(where, table, "one_way_ms", default=ONE_WAY_MS, least=0.0),
    )


def _device(where: str, name: str, table: Mapping[str, Any]) -> Gpu:
    if "gpu" in table:
        return gpu(str(table["gpu"]))
    memory, bandwidth, tflops = (_number(where, table, key) for key in GPU_NUMBERS)
    return Gpu(name, memory, bandwidth, tflops)


def _pair(path: Path, names: set[str], table: Mapping[str, Any]) -> tuple[frozenset[str], float]:
    between = table.get("between")
    if not isinstance(between, list) or len(between) != 2 or not set(between) <= names:
        raise UserError(f'a link of {path} needs between = ["one PC", "another"] of its PCs.')
    where = f"the link of {' and '.join(between)} in {path}"
    return frozenset(between), _number(where, table, "one_way_ms", least=0.0)


def _number(
    where: str,
    table: Mapping[str, Any],
    key: str,
    *,
    default: float | None = None,
    least: float = math.ulp(0.0),
) -> float:
    value = table.get(key, default)
    if value is None:
        raise UserError(f"{where} has no {key}: give it (or, for the device, a known gpu).")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:
        bound = "above 0" if least > 0 else "from 0 up"
        raise UserError(f"{where} has {key} {value!r}: give a number {bound}.")
    return float(value)
