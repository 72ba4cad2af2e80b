"""A cell whose devices need more and less at random, over messages that are late, lost, doubled."""

from dataclasses import dataclass, field
from random import Random

from molink_scheduler.cell.cycles import find_cycle
from molink_scheduler.cell.events import CellLink, DeviceFacts
from molink_scheduler.cell.ledger import CellLedger
from molink_scheduler.cell.quotas import Quotas
from molink_sim.cell.devices import CellDevice, Devices
from molink_sim.cell.world import BEAT_S, CellNetwork, CellWorld

VIEW_STEPS = 20
"""Steps by which a message may be late: half a second each, as heartbeats are."""

ROUGH = CellNetwork(delay_s=VIEW_STEPS * BEAT_S, loss=0.05, doubled=0.05)
WHOLE = Quotas(memory_share=1.0, mark_s=0.0)
MEMORY = 256


@dataclass
class RandomCell:
    """One run, checked after each step."""

    seed: int
    devices: int = 4
    quotas: Quotas = WHOLE
    comes_and_goes: bool = True
    world: CellWorld = field(init=False)
    returned_share: float = 0.2
    """Chance at a heartbeat that what is too much goes back: as rarely as requests end, so a device
    may lend while it owes, and cycles can arise."""
    steps: int = 0
    steps_with_cycle: int = 0
    away: dict[str, CellDevice] = field(default_factory=dict)

    def __post_init__(self):
        random = Random(self.seed)
        names = [f"device {number}" for number in range(self.devices)]
        delays = {
            frozenset((a, b)): random.choice((1e-4, 3e-4, 1e-3)) for a in names for b in names
        }
        devices = {}
        for name in names:
            links = {
                other: CellLink(delays[frozenset((name, other))], 1e9)
                for other in names
                if other != name
            }
            facts = DeviceFacts(
                MEMORY,
                block_bytes=random.choice((3, 4, 5)),
                layers=4,
                row_bytes=1000,
                attend_bytes_per_s=random.choice((1e5, 1e6)),
                step_s=random.choice((0.0, 1e-2)),
                links=links,
            )
            device = CellDevice(name, facts, self.quotas, need_blocks=20)
            device.returns = lambda: random.random() < self.returned_share
            devices[name] = device
        heard = Devices(devices, lambda: random.random() >= self.world.network.loss)
        ledger = CellLedger(quotas=self.quotas)
        self.world = CellWorld(ledger, heard, random, ROUGH)

    def step(self):
        """One device needs more or less and tells; now and then one goes or comes."""
        world, random = self.world, self.world.random
        here = world.devices.by_name
        if self.comes_and_goes and random.random() < 0.005:
            self._come_or_go()
        device = here[random.choice(sorted(here))]
        change = random.choice((-12, -6, -3, 3, 6, 12))
        device.need_blocks = min(110, max(0, device.need_blocks + change))
        world.beat(device.name)
        world.run(BEAT_S)
        self.steps += 1
        self.steps_with_cycle += bool(find_cycle(world.debts()))
        self.check()

    def _come_or_go(self):
        here = self.world.devices.by_name
        if self.away:
            name, device = self.away.popitem()
            here[name] = device
        else:
            name = self.world.random.choice(sorted(here))
            self.away[name] = self.world.lose(name)

    def check(self):
        """What holds at every moment, whatever the ledger has heard."""
        here = self.world.devices.by_name
        for device in here.values():
            assert device.used_bytes + device.lent_bytes <= MEMORY, f"seed {self.seed}"
            for lease in device.owed.values():
                lender = here.get(lease.lender)
                if lender is not None and lender.incarnation == lease.lender_incarnation:
                    held = lender.lent.get(lease.number)
                    assert held is not None, f"seed {self.seed}"
                    assert held.blocks >= lease.blocks, f"seed {self.seed}"

    def calm(self):
        """Messages come again, nobody needs anything else, and all is told some times."""
        self.world.network, self.returned_share = CellNetwork(), 1.0
        self.world.devices.by_name.update(self.away)
        self.away.clear()
        self.world.run(2 * ROUGH.delay_s)
        self.world.beats(80)

    def check_calm(self):
        """The ledger, debtors and lenders have the same leases, without cycles, within quotas."""
        devices = self.world.devices.by_name.values()
        owed = {one.number: one for device in devices for one in device.owed.values()}
        lent = {one.number: one for device in devices for one in device.lent.values()}
        book = {one.number: one for one in self.world.ledger.book}
        assert owed == lent == book, f"seed {self.seed}"
        assert not find_cycle(self.world.debts()), f"seed {self.seed}"
        for device in devices:
            assert device.lent_bytes <= device.quota_bytes(self.world.now), f"seed {self.seed}"
            own = (MEMORY - device.lent_bytes) // device.facts.block_bytes
            told = self.world.ledger.capacity_blocks(device.name)
            assert told == own + device.owed_blocks, f"seed {self.seed}"
