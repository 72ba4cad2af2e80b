"""What swaps of debts are worth (DGFM; DistKV-LLM, Lin et al., arXiv 2401.02669, fig. 10): a cell
whose instances need more and less, by the ledger that ships and by ledgers that do less.

Eight instances of Llama-2-13B on an A100-80 each. What one needs changes every half minute in the
mean, to 0.3 to 1.5 times its own room, and what it has borrowed too much of goes back after as
long, when a request with blocks elsewhere has ended: if it went back at once there would be no
circles. Each request holds 2,000 tokens; those that are held anywhere get a token a step, whose
time is a roofline's: weights, all KV that lies there, and a call to lenders in each layer, where
some of its KV is theirs.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from molink.hardware.roofline import RooflineCost
from molink_scheduler.batch import DECODE
from molink_scheduler.cell.actions import Action, Recall
from molink_scheduler.cell.cycles import find_cycle
from molink_scheduler.cell.events import CellLink
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.cell.quotas import link_s
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.units import GB
from molink_sim.cell.devices import CellDevice, Devices
from molink_sim.cell.long_requests import ALL_FREE, LINK, instance_cost, instance_devices
from molink_sim.cell.world import BEAT_S, CellWorld

INSTANCES, MINUTES = 8, 10
CONTEXT_TOKENS = 2_000
NEED_SHARES, NEED_S, RETURN_S = (0.3, 1.5), 30.0, 30.0

LINKS = (LINK, CellLink(80e-6, 1.25 * GB))
"""Cards' own links, and 10 GbE: who lends to whom is the same by both, as all are alike."""


class SwapsAlone(CellLedger):
    """Ledger that calls nothing back for a device that wants room, as the paper's: circles of debts
    are swapped home."""

    def _recalled(self, name: str, wanted_bytes: int, now: float) -> tuple[list[Recall], int]:
        is_wish = wanted_bytes > 0 and self.lent_bytes(name) <= self.quota_bytes(name, now)
        return ([], 0) if is_wish else super()._recalled(name, wanted_bytes, now)


class Neither(SwapsAlone):
    """Ledger that leaves circles as they are, too."""

    def _swapped(self, now: float) -> Iterator[Action]:
        return iter(())


LEDGERS: Mapping[str, type[CellLedger]] = {
    "recalls and swaps, as it ships": CellLedger,
    "swaps alone": SwapsAlone,
    "neither": Neither,
}


@dataclass(frozen=True, slots=True)
class CellServed:
    """Means over a cell's time."""

    tokens_per_s: tuple[float, ...]
    """By each of the links."""
    borrowed_gb: float
    circle_share: float
    """Share of the time in which debts have a circle."""
    swaps: int


def serve(ledger: type[CellLedger], seed: int) -> CellServed:
    """Let needs come and go for ten minutes."""
    random, cost = Random(seed), instance_cost()
    cell = instance_devices(INSTANCES, lends=True)
    for one in cell:
        one.returns = lambda: random.random() < BEAT_S / RETURN_S
    devices = Devices({one.name: one for one in cell})
    world = CellWorld(ledger(quotas=ALL_FREE), devices, random)
    rates, borrowed, circles = [0.0] * len(LINKS), 0.0, 0
    beats = round(60 * MINUTES / BEAT_S)
    for _ in range(beats):
        for device in cell:
            if random.random() < BEAT_S / NEED_S:
                own_blocks = device.facts.memory_bytes / device.facts.block_bytes
                device.need_blocks = round(random.uniform(*NEED_SHARES) * own_blocks)
        world.beats(1)
        for number, link in enumerate(LINKS):
            rates[number] += sum(_tokens_per_s(device, cost, link) for device in cell) / beats
        borrowed += sum(device.owed_blocks * device.facts.block_bytes for device in cell) / GB
        circles += bool(find_cycle(world.debts()))
    shares = borrowed / beats, circles / beats
    return CellServed(tuple(rates), *shares, world.actions["Swap"])


def _tokens_per_s(device: CellDevice, cost: RooflineCost, link: CellLink) -> float:
    facts = device.facts
    held = (device.need_blocks - device.short_blocks) * BLOCK_TOKENS
    read = (device.used_bytes + device.lent_bytes) * BLOCK_TOKENS // facts.block_bytes
    rows = held // CONTEXT_TOKENS
    way_s = link_s(facts, link, rows) if device.owed else 0.0
    return rows / (cost.step_s(DECODE, rows, read, rows) + way_s)
