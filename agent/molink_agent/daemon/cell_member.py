"""This PC in a cell of its LAN: what it lends, and what the coordinator is told.

Its main memory is lent by one process beside the agent, and a card that holds no stage by another
one of the same kind (`lenders`). Echoes of PCs that lend are measured here.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink.control.messages.cell import (
    CellFacts,
    CellOrder,
    EchoesTold,
    EchoOrder,
    LenderFacts,
    LenderOrder,
)
from molink.errors import MolinkError
from molink.lender.lan.echoes import measure_echoes
from molink.tasks import task_group
from molink_agent.daemon.lenders.device_lender import CardLender, DeviceLender
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.limits.lend_room import lend_room, own_room_bytes
from molink_agent.limits.lent import lent_cache
from molink_agent.probe.machine import read_machine

ECHOES = 20
"""Echoes of one measurement."""

log = logging.getLogger(__name__)

Measure = Callable[[EchoOrder], Sequence[float]]
"""Seconds of each echo. Raises MolinkError or OSError when none comes."""


def measured_echoes(order: EchoOrder) -> Sequence[float]:
    """Echoes over the very link that a stage would have."""
    return measure_echoes(order.host, order.port, order.lease, order.key, ECHOES)


@dataclass(slots=True)
class CellMember:
    """Part of an agent that lends to its LAN, and to its own stages, and measures who lends."""

    pc: ThisPc
    ram: DeviceLender
    card: CardLender
    local_host: Callable[[], str]
    """Address at which the PC's own stages reach what listens."""
    measure: Measure = measured_echoes
    _own_room_bytes: int = 0
    _order: CellOrder = field(default_factory=CellOrder)
    _echoes: dict[str, EchoesTold] = field(default_factory=dict)
    _ordered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lends(self) -> bool:
        """Whether stages have memory here."""
        return self.ram.lends or self.card.lends

    def facts(self) -> CellFacts | None:
        """What the coordinator is told; None: this PC neither lends nor is in a cell."""
        card, order = self.card.card_facts(), self._order
        limits = self.ram.owner.limits.limits
        if not (order.serves or order.echoes or limits.lends_ram or card is not None):
            return None
        facts = self.ram.facts()
        return CellFacts(
            **{name: getattr(facts, name) for name in LenderFacts.model_fields},
            cores=self.ram.room.cores,
            own_room_bytes=self._own_room_bytes,
            echoes=tuple(self._echoes.values()),
            host=self.local_host(),
            card=card,
        )

    async def take(self, order: CellOrder) -> None:
        """Take an order, which replaces the one before."""
        self._order = order
        self._echoes = {
            one.lender: self._echoes[one.lender]
            for one in order.echoes
            if one.lender in self._echoes
        }
        self.ram.take(order)
        self.card.take(order.card or LenderOrder())
        self._ordered.set()

    async def refresh(self) -> None:
        """Do what the owner allows now."""
        machine = await asyncio.to_thread(read_machine, self.pc.data_dir)
        owner = self.ram.owner
        limits, now = owner.limits.limits, owner.now
        withheld = "" if now.allowed and not owner.leaving else now.reason
        cache = lent_cache(limits, self.pc.data_dir, max(1, len(self.pc.stages)))
        self._own_room_bytes = own_room_bytes(cache, machine)
        self.ram.lend(lend_room(limits, machine, self.ram.held_bytes, withheld))
        if limits.lend_gpu_bytes or self.card.runs:
            gpus = await asyncio.to_thread(self.pc.gpus.read, self.pc.own_pids)
            self.card.refresh(gpus, withheld, self.pc.devices_in_use)
        self.pc.lending_pids = self.card.pids

    async def run(self) -> None:
        """Lend and measure until cancelled; all leases end then."""
        try:
            async with task_group() as group:
                group.create_task(self.ram.run())
                group.create_task(self.card.run())
                group.create_task(self._keep_measuring())
        finally:
            self._echoes.clear()

    async def _keep_measuring(self) -> None:
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            for order in self._order.echoes:
                before = self._echoes.get(order.lender)
                if before is None or before.round != order.round:
                    self._echoes[order.lender] = await self._measured(order)

    async def _measured(self, order: EchoOrder) -> EchoesTold:
        seconds: Sequence[float] = ()
        try:
            seconds = await asyncio.to_thread(self.measure, order)
        except (MolinkError, OSError) as error:
            log.info("no echo of %s:%d: %s", order.host, order.port, error)
        times = tuple(min(60_000.0, 1e3 * one) for one in seconds[:ECHOES])
        return EchoesTold(lender=order.lender, round=order.round, milliseconds=times)
