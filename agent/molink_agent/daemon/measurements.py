"""Carries out the coordinator's orders to measure, for one seat: its device, its ways, its router.

The latest order counts: a broker repeats it at every connection. Its ways are measured beside the
timing of a layer: what takes longest there is loading torch, and sending takes no processor to
speak of.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from molink.control.messages.payloads import PathReport, ProbeOrder, Services
from molink.errors import MolinkError
from molink_agent.daemon.neighbours import Neighbours
from molink_agent.daemon.shared_uplink import Household
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.network.nat import ask_stun
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
    _timing: "asyncio.Task[None] | None" = None
    _measuring: "asyncio.Task[None] | None" = None

    async def take(self, order: ProbeOrder) -> None:
        """In the background: the ways as the latest order says; a layer of the same model is timed
        only once."""
        before, self._order = self._order, order
        if order == before:
            return
        if before is None or _times_another(order, before) or _is_over(self._timing):
            await self._time(order)
        await _cancel(self._measuring)
        if order.peers or order.coordinator_token:
            self._measuring = asyncio.create_task(_tried(self._measure_ways, order))

    async def sit(self, device: str) -> None:
        """Another device: its times are others."""
        if device == self.device:
            return
        self.device, self.measured = device, replace(self.measured, steps=None)
        if device and self._order is not None:
            await self._time(self._order)

    def time_again(self) -> None:
        """With other limits it may succeed, where it has not."""
        if self._order is None or self.measured.steps is not None or not _is_over(self._timing):
            return
        self._timing = asyncio.create_task(_tried(self._time_layer, self._order))

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
        await _cancel(self._timing)
        await _cancel(self._measuring)

    async def _time(self, order: ProbeOrder) -> None:
        await _cancel(self._timing)
        self._timing = asyncio.create_task(_tried(self._time_layer, order))

    async def _time_layer(self, order: ProbeOrder) -> None:
        steps = await self.pc.time_steps(order, self.device)
        self.measured = replace(self.measured, steps=steps)
        await self.say_profile()

    async def _measure_ways(self, order: ProbeOrder) -> None:
        report, coordinator = await self.neighbours.measure(order)
        await self.say_paths(report)
        self.pc.measured_ways(report, coordinator, self.household.members)
        await self._ask_nat()
        await self.say_profile()

    async def _ask_nat(self) -> None:
        """Which kind of router is between this PC and the coordinator."""
        if self.stun_port:
            host = urlsplit(self.coordinator_url()).hostname or ""
            answer = await ask_stun(host, self.stun_port)
            self.pc.measured_now(nat=str(answer.kind))


def _times_another(order: ProbeOrder, before: ProbeOrder) -> bool:
    return (order.model, order.config) != (before.model, before.config)


def _is_over(task: "asyncio.Task[None] | None") -> bool:
    return task is None or task.done()


async def _tried(probe: Callable[[ProbeOrder], Awaitable[None]], order: ProbeOrder) -> None:
    """A probe that fails costs this seat its place in a plan, not the agent its life."""
    try:
        await probe(order)
    except MolinkError as error:
        log.warning("the probe failed: %s", error)
    except Exception:
        log.exception("the probe failed")


async def _cancel(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
