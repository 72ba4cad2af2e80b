"""Carries out the coordinator's orders to measure, for one seat: its device, its ways, its router.

The latest order counts: a broker repeats it at every connection, and a newer one ends what the
older one began.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from molink.control.messages import PathReport, ProbeOrder, Services
from molink.errors import MolinkError
from molink_agent.daemon.household import Household
from molink_agent.daemon.neighbours import Neighbours
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.probe.nat import ask_stun
from molink_agent.probe.profile import Measured

__all__ = ["ProbeErrand"]

log = logging.getLogger(__name__)


async def _nothing(*message: object) -> None:
    """Until somebody listens."""


@dataclass(slots=True)
class ProbeErrand:
    """Of one seat."""

    pc: ThisPc
    household: Household
    neighbours: Neighbours
    coordinator_url: Callable[[], str]
    say_profile: Callable[[], Awaitable[None]] = field(default=_nothing)
    say_paths: Callable[[PathReport], Awaitable[None]] = field(default=_nothing)
    device: str = ""
    measured: Measured = field(default_factory=Measured)
    """Of this seat: its addresses and its device's step times."""
    stun_port: int = 0
    _order: ProbeOrder | None = None
    _task: "asyncio.Task[None] | None" = None

    async def take(self, order: ProbeOrder) -> None:
        """Measure in the background, unless this order was carried out already."""
        if order != self._order:
            self._order = order
            await self._begin(order)

    async def sit(self, device: str) -> None:
        """Another device: its times are others."""
        if device == self.device:
            return
        self.device, self.measured = device, replace(self.measured, steps=None)
        if device and self._order is not None:
            await self._begin(self._order)

    async def use(self, services: Services) -> None:
        """What the coordinator runs, and where this seat is reached for it."""
        await self.neighbours.use(services)
        self.stun_port = services.stun_port
        await self.addresses_changed()

    async def addresses_changed(self) -> None:
        """The router has let neighbours in, or does not any more."""
        self.measured = replace(self.measured, addresses=self.neighbours.addresses)
        await self.say_profile()

    async def stop(self) -> None:
        """End what is under way; the same order is carried out anew."""
        self._order = None
        await self._cancel()

    async def _cancel(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _begin(self, order: ProbeOrder) -> None:
        await self._cancel()
        self._task = asyncio.create_task(self._measure(order))

    async def _measure(self, order: ProbeOrder) -> None:
        """A layer's times first: a plan waits for them; neighbours can be guessed."""
        try:
            steps = await self.pc.time_steps(order, self.device)
            self.measured = replace(self.measured, steps=steps)
            await self.say_profile()
            report, coordinator = await self.neighbours.measure(order)
            await self.say_paths(report)
            self.pc.measured_ways(report, coordinator, self.household.members)
            await self._ask_nat()
            await self.say_profile()
        except MolinkError as error:
            log.warning("the probe failed: %s", error)
        except Exception:
            log.exception("the probe failed")

    async def _ask_nat(self) -> None:
        """Which kind of router is between this PC and the coordinator."""
        if self.stun_port:
            host = urlsplit(self.coordinator_url()).hostname or ""
            answer = await ask_stun(host, self.stun_port)
            self.pc.measured_now(nat=str(answer.kind))
