"""A cell from a TOML file, played: devices and links, and what stages need as time goes by.

model = "llama-3-8b"            # bytes of KV
[[device]]
name = "anna's card"
memory_gb = 2.0                 # room for KV
attend_gb_per_s = 900
layers = 11                     # of its stage; none: it has no stage
step_ms = 9                     # of its stage
slower_ms = 23                  # by which a step may be slower for what it borrows
[[link]]
between = ["anna's card", "anna's host"]
round_trip_us = 15
gb_per_s = 7.5
[[change]]
at_s = 10
device = "anna's card"
tokens = 65536                  # that its stage needs from then on; or  away = true
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random
from typing import Any

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import ModelShape
from molink.config.toml_tables import (
    ABOVE_0,
    number,
    read_toml,
    refuse_unknown,
    tables,
    text,
    whole,
)
from molink.errors import UserError
from molink_scheduler.cell.events import CellLink, DeviceFacts
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.units import GB, bytes_of_gb
from molink_sim.cell.devices import CellDevice, Devices
from molink_sim.cell.world import BEAT_S, CellWorld

DEVICE_KEYS = {"name", "memory_gb", "attend_gb_per_s", "layers", "step_ms", "slower_ms"}
LINK_KEYS = {"between", "round_trip_us", "gb_per_s"}
CHANGE_KEYS = {"at_s", "device", "tokens", "away"}

SETTLES_S = 5.0
"""Seconds after a change when the cell is looked at: ten heartbeats."""

SECONDS_MAX = 86_400.0
TOKENS_MAX = 100_000_000
MEMORY_GB_MAX = 10_000.0


@dataclass(frozen=True, slots=True)
class KvPlaces:
    """Places of the KV of a device's stage, some seconds after a change."""

    at_s: float
    device: str
    needed_tokens: int
    home_tokens: int
    lent_gb: float
    borrowed_tokens: dict[str, int]
    missing_tokens: int
    refused: str
    """Sentence with which the ledger has refused more."""


def play(path: Path) -> Iterator[KvPlaces]:
    """Places after each change, device by device. Raises UserError for a file that is wrong."""
    data = read_toml(path, "the cell")
    refuse_unknown(path.name, data, {"about", "model", "device", "link", "change"})
    shape = model_shape(text(path.name, data, "model", "llama-3-8b"))
    entries = {text("a device", one, "name"): one for one in tables(path.name, data, "device")}
    links = _links(tables(path.name, data, "link"), entries.keys())
    devices = {name: _device(one, shape, links[name]) for name, one in entries.items()}
    world, away = CellWorld(CellLedger(), Devices(devices), Random(0)), dict[str, CellDevice]()
    changes = [_change(one, entries.keys()) for one in tables(path.name, data, "change")]
    for at_s, name, tokens in sorted(changes, key=lambda one: one[0]):
        world.beats(max(0, round((at_s - world.now) / BEAT_S)))
        if tokens is None:
            away[name] = world.lose(name) if name in devices else away[name]
        else:
            device = devices[name] = devices.get(name) or away[name]
            device.need_blocks = -(-tokens // BLOCK_TOKENS) if device.facts.block_bytes else 0
        world.beats(round(SETTLES_S / BEAT_S))
        yield from (_place(world, device) for device in devices.values())


def _device(entry: Mapping[str, Any], shape: ModelShape, links: dict[str, CellLink]) -> CellDevice:
    where = f"device {entry['name']}"
    refuse_unknown(where, entry, DEVICE_KEYS)
    layers = whole(where, entry, "layers", 0, most=shape.layers)
    rate = number(where, entry, "attend_gb_per_s", 0.0)
    facts = DeviceFacts(
        memory_bytes=bytes_of_gb(number(where, entry, "memory_gb", most=MEMORY_GB_MAX)),
        block_bytes=BLOCK_TOKENS * layers * shape.kv_token_bytes,
        layers=layers,
        row_bytes=2 * shape.row_bytes,
        attend_bytes_per_s=rate * GB,
        step_s=number(where, entry, "step_ms", 0.0) / 1e3,
        links=links,
    )
    slower_ms = entry.get("slower_ms")
    slower_s = inf if slower_ms is None else number(where, entry, "slower_ms") / 1e3
    return CellDevice(entry["name"], facts, slower_s=slower_s)


def _links(entries: list[Mapping[str, Any]], names: Set[str]) -> dict[str, dict[str, CellLink]]:
    links: dict[str, dict[str, CellLink]] = {name: {} for name in names}
    for entry in entries:
        refuse_unknown("a link", entry, LINK_KEYS)
        ends = entry.get("between")
        if not isinstance(ends, list) or len(ends) != 2 or not set(ends) <= names:
            raise UserError(f"between of a link is {ends!r}: name two devices of the file.")
        round_trip_s = number("a link", entry, "round_trip_us") / 1e6
        rate = number("a link", entry, "gb_per_s", least=ABOVE_0) * GB
        for here, there in (ends, ends[::-1]):
            links[here][there] = CellLink(round_trip_s, rate)
    return links


def _change(entry: Mapping[str, Any], names: Set[str]) -> tuple[float, str, int | None]:
    """Time, device, and tokens that it needs; None: it is away."""
    refuse_unknown("a change", entry, CHANGE_KEYS)
    name = text("a change", entry, "device")
    if name not in names:
        raise UserError(f"a change names the device {name!r}: name one of the file.")
    at_s = number(f"a change of {name}", entry, "at_s", most=SECONDS_MAX)
    if entry.get("away") is True:
        return at_s, name, None
    return at_s, name, whole(f"a change of {name}", entry, "tokens", most=TOKENS_MAX)


def _place(world: CellWorld, device: CellDevice) -> KvPlaces:
    borrowed = Counter[str]()
    for lease in device.owed.values():
        borrowed[lease.lender] += lease.blocks * BLOCK_TOKENS
    home = device.used_bytes // device.facts.block_bytes if device.facts.block_bytes else 0
    return KvPlaces(
        world.now,
        device.name,
        device.need_blocks * BLOCK_TOKENS,
        home * BLOCK_TOKENS,
        device.lent_bytes / GB,
        dict(borrowed),
        device.short_blocks * BLOCK_TOKENS,
        world.last_refusal.get(device.name, "") if device.short_blocks else "",
    )
