"""The PCs of a plan, from the TOML file that `molink plan` and `molink sim plan` take as --nodes.

[[nodes]]
name = "anna"
gpu = "rtx3060"            # or memory_gib, bandwidth_gb_per_s and tflops of its own
upload_mbps = 40
download_mbps = 100
one_way_ms = 12            # to the middle of the internet; between two PCs the sum of both
lends_gib = 8              # else nine tenths of the device's memory
cell = "home"              # PCs of one LAN that lend each other memory for KV
lends_ram_gib = 16         # main memory that it lends there; else none
lends_card_gib = 8         # of a card that holds no stage, to its own one and there; else none

[[nodes]]                  # measured: one layer of the model, in milliseconds
name = "ben"
lends_gib = 20
decode_fixed_ms = 0.9
decode_row_ms = 0.02
prefill_row_ms = 0.01      # and step_fixed_ms, head_row_ms, head_fixed_ms, which are else 0
upload_mbps = 20
download_mbps = 50

[nodes.formats.int4_g128]  # a device's products with weights of a format, measured: milliseconds of
read_ms = 14.2             # a billion weights, for one row and for each of many rows; what
row_ms = 7.1               # `python -m molink.engine.probes.format_probe` prints, in seconds

[[links]]                  # where a pair was measured; both directions
between = ["anna", "ben"]
one_way_ms = 7
rate_mbps = 30             # what gets through, if less than the two say

A PC may have a device and measured times: a plan goes by the times, a simulation, which takes steps
of any shape, by the device. A field that means nothing is refused: a misspelt one would silently
plan something else.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, get_args

from molink.checkpoint.model_shape import ModelShape, PlannedModel, WeightFormat
from molink.checkpoint.quantized.too_large import with_advice
from molink.config.toml_tables import ABOVE_0, number, read_toml, refuse_unknown, tables
from molink.errors import UserError
from molink.hardware.format_times import FormatTimes
from molink.hardware.gpu import Gpu, gpu
from molink.hardware.roofline import StepTimes, estimated_times
from molink_scheduler.placement import (
    Goal,
    LinkFacts,
    Network,
    NodeFacts,
    Plan,
    Shortage,
    even_plan,
    make_plan,
)
from molink_scheduler.units import GIB

BYTES_PER_MBIT = 125_000.0

NODES_MAX = 256
"""The longest ring that the simulator takes; a plan of so many takes about two seconds."""

ONE_WAY_MS = 15.0
"""Delay of a PC that does not say: 30 ms between two homes."""

LENT_SHARE = 0.9
"""Share of a device's memory where nothing is said; the rest is for activations, driver and
display."""

GPU_KEYS = ("memory_gib", "bandwidth_gb_per_s", "tflops")
DEVICE_KEYS = {"gpu", *GPU_KEYS}
TIME_KEYS = ("decode_fixed_ms", "decode_row_ms", "prefill_row_ms")
OVERHEAD_KEYS = ("step_fixed_ms", "head_row_ms", "head_fixed_ms")
MEASURED_KEYS = {*TIME_KEYS, *OVERHEAD_KEYS}
LINE_KEYS = {"upload_mbps", "download_mbps", "one_way_ms"}
CELL_KEYS = {"cell", "lends_ram_gib", "lends_card_gib"}
NODE_KEYS = {"name", "lends_gib", "formats", *CELL_KEYS, *DEVICE_KEYS, *MEASURED_KEYS, *LINE_KEYS}
FORMAT_KEYS = {"read_ms", "row_ms"}
LINK_KEYS = {"between", "one_way_ms", "rate_mbps"}
FILE_KEYS = {"nodes", "links"}

Table = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ListedNode:
    """PC that the file lists, with a device or with measured step times."""

    name: str
    upload_mbps: float
    download_mbps: float
    one_way_ms: float
    """Delay to the middle of the internet."""
    lent_bytes: int
    device: Gpu | None = None
    """None: only its step times are known."""
    times: StepTimes | None = None
    """None: it was not measured."""
    cell: str = ""
    """Name of its cell; empty: it is in none."""
    ram_bytes: int = 0
    """Main memory that it lends in its cell."""
    card_bytes: int = 0
    """Memory of a card that holds no stage, which it lends there and to its own one."""

    @property
    def lenders(self) -> dict[str, int]:
        """Bytes that it lends, by the names of what lends: the PC's own is its main memory."""
        both = {self.name: self.ram_bytes, f"{self.name}'s card": self.card_bytes}
        return {name: size for name, size in both.items() if size}

    def facts(self, shape: ModelShape, context_tokens: int) -> NodeFacts:
        """What a placement counts with, for one layer of the model."""
        times = self.times
        if times is None:
            assert self.device is not None, "a PC has a device or measured times"
            times = estimated_times(shape, self.device, context_tokens)
        return NodeFacts(
            id=self.name,
            memory_bytes=self.lent_bytes,
            upload_bytes_per_s=self.upload_mbps * BYTES_PER_MBIT,
            download_bytes_per_s=self.download_mbps * BYTES_PER_MBIT,
            **asdict(times),
        )


@dataclass(frozen=True, slots=True)
class _Pair:
    """Delay and rate measured between two PCs; None: by what they say of themselves."""

    one_way_ms: float | None = None
    rate_mbps: float | None = None


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The PCs of a file in its order, and the pairs that were measured."""

    nodes: tuple[ListedNode, ...]
    pairs: Mapping[frozenset[str], _Pair]

    def facts(self, shape: ModelShape, context_tokens: int) -> list[NodeFacts]:
        """What a placement counts with of each PC, for one layer of the model."""
        return [node.facts(shape, context_tokens) for node in self.nodes]

    def network(self) -> Network:
        """The link of every ordered pair."""
        return Network({(a.name, b.name): self._link(a, b) for a, b in permutations(self.nodes, 2)})

    def _link(self, sender: ListedNode, receiver: ListedNode) -> LinkFacts:
        """The link between two nodes: as fast as both lines, and what was measured, allow."""
        pair = self.pairs.get(frozenset((sender.name, receiver.name)), _Pair())
        measured_mbps = math.inf if pair.rate_mbps is None else pair.rate_mbps
        one_way_ms = pair.one_way_ms
        if one_way_ms is None:
            one_way_ms = sender.one_way_ms + receiver.one_way_ms
        mbps = min(sender.upload_mbps, receiver.download_mbps, measured_mbps)
        return LinkFacts(mbps * BYTES_PER_MBIT, one_way_ms / 1e3)

    def lender_round_trip_s(self, debtor: str, lender: str) -> float | None:
        """Round trip from a PC to what lends in its cell, or to its own card, 0.0 where none was
        measured; None: that lends nothing to it."""
        cells = {one.name: one.cell for one in self.nodes if one.cell}
        pc = next((one.name for one in self.nodes if lender in one.lenders), "")
        if debtor == pc:  # By its own card a stage waits for no link.
            return None if debtor == lender else 0.0
        if not pc or cells.get(debtor, "") != cells.get(pc):
            return None
        pair = self.pairs.get(frozenset((debtor, pc)), _Pair())
        return 2e-3 * (pair.one_way_ms or 0.0)

    def plan(
        self,
        model: PlannedModel,
        goal: Goal,
        split: str | None = None,
        rings_max: int | None = None,
    ) -> Plan:
        """The placement of a model on these PCs, as a coordinator would choose it.

        Raises UserError, which says how much is missing, when the model does not fit.
        """
        facts = self.facts(model.shape, goal.context_tokens)
        if split == "even":
            found = even_plan(model.cost, facts, self.network(), goal)
        else:
            found = make_plan(model.cost, facts, self.network(), goal, rings_max)
        if isinstance(found, Shortage):
            sentence = with_advice(found.sentence, model.declared)
            raise UserError(f"{model.name} does not fit: {sentence}")
        return found


def read_node_file(path: Path) -> NodeFile:
    """Raises UserError for a file that does not describe a set of PCs."""
    where, data = str(path), read_toml(path, "the PCs of")
    refuse_unknown(where, data, FILE_KEYS)
    listed = tables(where, data, "nodes")
    if not 1 <= len(listed) <= NODES_MAX:
        raise UserError(f"{path} has {len(listed)} PCs: give 1 to {NODES_MAX} as [[nodes]].")
    nodes = tuple(_node(path, index, table) for index, table in enumerate(listed))
    names = {node.name for node in nodes}
    if len(names) < len(nodes):
        raise UserError(f"two PCs of {path} have the same name: give each its own.")
    return NodeFile(nodes, dict(_pair(path, names, t) for t in tables(where, data, "links")))


def _node(path: Path, index: int, table: Table) -> ListedNode:
    name = table.get("name", f"pc{index}")
    if not isinstance(name, str) or not name:
        raise UserError(f"PC {index} of {path} has the name {name!r}: give a text.")
    where = f"{name} in {path}"
    refuse_unknown(where, table, NODE_KEYS)
    device, times = _device(where, name, table), _times(where, table)
    return ListedNode(
        name,
        number(where, table, "upload_mbps", least=ABOVE_0),
        number(where, table, "download_mbps", least=ABOVE_0),
        number(where, table, "one_way_ms", ONE_WAY_MS),
        _lent_bytes(where, table, device),
        device,
        times,
        *_cell(where, table),
    )


def _cell(where: str, table: Table) -> tuple[str, int, int]:
    """Its cell, and the main memory and the card's that it lends there."""
    cell, ram_gib = table.get("cell", ""), number(where, table, "lends_ram_gib", 0.0)
    card_gib = number(where, table, "lends_card_gib", 0.0)
    if not isinstance(cell, str):
        raise UserError(f"{where} has the cell {cell!r}: give a text.")
    if ram_gib and not cell:
        raise UserError(f"{where} has lends_ram_gib {ram_gib:g}, but no cell to lend it to.")
    return cell, round(ram_gib * GIB), round(card_gib * GIB)


def _device(where: str, name: str, table: Table) -> Gpu | None:
    """None only of a PC whose times were measured."""
    if "gpu" in table:
        return replace(gpu(str(table["gpu"])), formats=_formats(where, table))
    if table.keys() & MEASURED_KEYS and not table.keys() & DEVICE_KEYS:
        if "formats" in table:
            raise UserError(f"{where} has formats, but no device that they belong to: give gpu.")
        return None
    memory, bandwidth, tflops = (
        number(where, table, key, least=ABOVE_0, instead=", or a known gpu") for key in GPU_KEYS
    )
    return Gpu(name, memory, bandwidth, tflops, formats=_formats(where, table))


def _formats(where: str, table: Table) -> dict[str, FormatTimes]:
    """Times of weights in formats that were measured on the device."""
    listed = table.get("formats", {})
    if not isinstance(listed, dict) or not all(isinstance(one, dict) for one in listed.values()):
        raise UserError(f"{where} has formats that are no tables: give [nodes.formats.NAME].")
    refuse_unknown(f"formats of {where}", listed, set(get_args(WeightFormat)))
    found = {}
    for name, times in listed.items():
        of_format = f"{name} of {where}"
        refuse_unknown(of_format, times, FORMAT_KEYS)
        read_ms, row_ms = (
            number(of_format, times, key, least=ABOVE_0) for key in ("read_ms", "row_ms")
        )
        found[name] = FormatTimes(read_ms / 1e3, row_ms / 1e3)
    return found


def _times(where: str, table: Table) -> StepTimes | None:
    """Measured ones; None when there are none."""
    if not table.keys() & MEASURED_KEYS:
        return None
    found = {key: number(where, table, key) for key in TIME_KEYS}
    found |= {key: number(where, table, key, 0.0) for key in OVERHEAD_KEYS}
    return StepTimes(**{key.removesuffix("_ms") + "_s": ms / 1e3 for key, ms in found.items()})


def _lent_bytes(where: str, table: Table, device: Gpu | None) -> int:
    default = None if device is None else device.memory_gib * LENT_SHARE
    lent_gib = number(where, table, "lends_gib", default)
    if device is not None and lent_gib > device.memory_gib:
        raise UserError(
            f"{where} has lends_gib {lent_gib:g}, but its device has {device.memory_gib:g} GiB: "
            "give no more than that."
        )
    return round(lent_gib * GIB)


def _pair(path: Path, names: set[str], table: Table) -> tuple[frozenset[str], _Pair]:
    between: Any = table.get("between", ())
    named = isinstance(between, list) and all(isinstance(name, str) for name in between)
    if not named or len(between) != 2 or len(names & set(between)) != 2:
        raise UserError(f'a link of {path} needs between = ["one PC", "another"] of its PCs.')
    where = f"the link of {' and '.join(between)} in {path}"
    refuse_unknown(where, table, LINK_KEYS)
    found = {
        key: number(where, table, key, least=least)
        for key, least in (("one_way_ms", 0.0), ("rate_mbps", ABOVE_0))
        if key in table
    }
    if not found:
        raise UserError(f"{where} says nothing: give it one_way_ms or rate_mbps.")
    return frozenset(between), _Pair(**found)
