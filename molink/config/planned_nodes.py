"""The PCs of a plan, from a TOML file with the keys of `molink sim plan` and some more.

[[nodes]]
name = "anna"
gpu = "rtx3060"            # or memory_gib, bandwidth_gb_per_s and tflops of its own
upload_mbps = 40
download_mbps = 100
one_way_ms = 12            # to the middle of the internet; between two PCs the sum of both
lends_gib = 8              # else nine tenths of the device's memory

[[nodes]]                  # measured: one layer of the model, in milliseconds
name = "ben"
lends_gib = 20
decode_fixed_ms = 0.9
decode_row_ms = 0.02
prefill_row_ms = 0.01      # and step_fixed_ms, head_row_ms, head_fixed_ms, which are else 0
upload_mbps = 20
download_mbps = 50

[[links]]                  # where a pair was measured; both directions
between = ["anna", "ben"]
one_way_ms = 7
rate_mbps = 30             # what gets through, if less than the two say
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

from molink.errors import UserError
from molink.machines.estimate import StepTimes, estimated_times
from molink.machines.gpu import Gpu, gpu
from molink.machines.model_shape import ModelShape
from molink_scheduler.placement import LinkFacts, Network, NodeFacts

__all__ = ["NODES_MAX", "PlannedNodes", "read_planned_nodes"]

NODES_MAX = 256
"""As many as the simulator takes; a plan of so many takes about two seconds."""

ONE_WAY_MS = 15.0
"""Of a PC that does not say: 30 ms between two homes."""

LENT_SHARE = 0.9
"""Of a device's memory where nothing is said; the rest is for activations, driver and display."""

BYTES_PER_MBIT = 125_000.0

GPU_KEYS = ("memory_gib", "bandwidth_gb_per_s", "tflops")
TIME_KEYS = ("decode_fixed_ms", "decode_row_ms", "prefill_row_ms")
OVERHEAD_KEYS = ("step_fixed_ms", "head_row_ms", "head_fixed_ms")
LINE_KEYS = ("upload_mbps", "download_mbps", "one_way_ms")
NODE_KEYS = {"name", "gpu", "lends_gib", *GPU_KEYS, *TIME_KEYS, *OVERHEAD_KEYS, *LINE_KEYS}
LINK_KEYS = {"between", "one_way_ms", "rate_mbps"}

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Node:
    """One PC as the file has it."""

    name: str
    lent_bytes: int
    device: Gpu | None
    """None: its step times are measured."""
    times: StepTimes | None
    upload_mbps: float
    download_mbps: float
    one_way_ms: float


@dataclass(frozen=True, slots=True)
class PlannedNodes:
    """All PCs, and the pairs that were measured."""

    nodes: tuple[_Node, ...]
    pairs: Mapping[frozenset[str], tuple[float | None, float | None]]
    """One way in ms and Mbps; None: by what the two say of themselves."""

    def facts(self, shape: ModelShape, context_tokens: int) -> tuple[NodeFacts, ...]:
        """What each lends and takes for a layer of the model."""
        return tuple(self._facts(node, shape, context_tokens) for node in self.nodes)

    def _facts(self, node: _Node, shape: ModelShape, context_tokens: int) -> NodeFacts:
        times = node.times
        if times is None:
            assert node.device is not None, "a PC has a device or measured times"
            times = estimated_times(shape, node.device, context_tokens)
        return NodeFacts(
            id=node.name,
            memory_bytes=node.lent_bytes,
            decode_fixed_s=times.decode_fixed_s,
            decode_row_s=times.decode_row_s,
            prefill_row_s=times.prefill_row_s,
            step_fixed_s=times.step_fixed_s,
            head_row_s=times.head_row_s,
            head_fixed_s=times.head_fixed_s,
            upload_bytes_per_s=node.upload_mbps * BYTES_PER_MBIT,
        )

    def network(self) -> Network:
        """Every ordered pair."""
        return Network({(a.name, b.name): self._link(a, b) for a, b in permutations(self.nodes, 2)})

    def _link(self, sender: _Node, receiver: _Node) -> LinkFacts:
        delay_ms, mbps = self.pairs.get(frozenset((sender.name, receiver.name)), (None, None))
        if delay_ms is None:
            delay_ms = sender.one_way_ms + receiver.one_way_ms
        rate = min(sender.upload_mbps, receiver.download_mbps, math.inf if mbps is None else mbps)
        return LinkFacts(rate * BYTES_PER_MBIT, delay_ms / 1e3)


def read_planned_nodes(path: Path) -> PlannedNodes:
    """Raises UserError for a file that does not describe a set of PCs."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"cannot read the PCs of {path} ({error}): give a TOML file.") from error
    tables = _tables(path, data, "nodes")
    if not 1 <= len(tables) <= NODES_MAX:
        raise UserError(f"{path} has {len(tables)} PCs: give 1 to {NODES_MAX} as [[nodes]].")
    nodes = tuple(_node(path, number, table) for number, table in enumerate(tables))
    names = {node.name for node in nodes}
    if len(names) < len(nodes):
        raise UserError(f"two PCs of {path} have the same name: give each its own.")
    return PlannedNodes(nodes, dict(_pair(path, names, t) for t in _tables(path, data, "links")))


def _tables(path: Path, data: Table, key: str) -> list[Table]:
    found = data.get(key, [])
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise UserError(f"{key} of {path} must be tables: write [[{key}]] above each.")
    return found


def _node(path: Path, number: int, table: Table) -> _Node:
    name = table.get("name", f"pc{number}")
    if not isinstance(name, str) or not name:
        raise UserError(f"PC {number} of {path} has the name {name!r}: give a text.")
    where = f"{name} in {path}"
    _check_keys(where, table, NODE_KEYS)
    times = _times(where, table)
    device = None if times is not None else _device(where, name, table)
    default = None if device is None else device.memory_gib * LENT_SHARE
    return _Node(
        name,
        round(_number(where, table, "lends_gib", default=default, least=0.0) * 2**30),
        device,
        times,
        _number(where, table, "upload_mbps"),
        _number(where, table, "download_mbps"),
        _number(where, table, "one_way_ms", default=ONE_WAY_MS, least=0.0),
    )


def _check_keys(where: str, table: Table, known: set[str]) -> None:
    unknown = sorted(table.keys() - known)
    if unknown:
        raise UserError(
            f"{where} has {unknown[0]}, which means nothing: there are {', '.join(sorted(known))}."
        )


def _times(where: str, table: Table) -> StepTimes | None:
    """Measured ones; None when there are none."""
    if not table.keys() & {*TIME_KEYS, *OVERHEAD_KEYS}:
        return None
    found = {key: _number(where, table, key, least=0.0) for key in TIME_KEYS}
    found |= {key: _number(where, table, key, default=0.0, least=0.0) for key in OVERHEAD_KEYS}
    return StepTimes(**{key.removesuffix("_ms") + "_s": ms / 1e3 for key, ms in found.items()})


def _device(where: str, name: str, table: Table) -> Gpu:
    if "gpu" in table:
        return gpu(str(table["gpu"]))
    memory, bandwidth, tflops = (_number(where, table, key) for key in GPU_KEYS)
    return Gpu(name, memory, bandwidth, tflops)


def _pair(
    path: Path, names: set[str], table: Table
) -> tuple[frozenset[str], tuple[float | None, float | None]]:
    between: Any = table.get("between", ())
    named = isinstance(between, list) and all(isinstance(name, str) for name in between)
    if not named or len(between) != 2 or len(names & set(between)) != 2:
        raise UserError(f'a link of {path} needs between = ["one PC", "another"] of its PCs.')
    where = f"the link of {' and '.join(between)} in {path}"
    _check_keys(where, table, LINK_KEYS)
    delay_ms, mbps = (
        _number(where, table, key, least=least) if key in table else None
        for key, least in (("one_way_ms", 0.0), ("rate_mbps", math.ulp(0.0)))
    )
    if delay_ms is None and mbps is None:
        raise UserError(f"{where} says nothing: give it one_way_ms or rate_mbps.")
    return frozenset(between), (delay_ms, mbps)


def _number(
    where: str,
    table: Table,
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
