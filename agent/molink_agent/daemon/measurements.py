"""Carries out the coordinator's orders to measure, for one node: its device, its paths, its router.

The latest order counts: a broker repeats it at every connection. Paths are measured beside the
timing of a layer: what takes longest there is loading torch, and sending takes next to no
processor. When a layer of the model is timed and told, the formats are that weights may have, by
which the node can be planned for any other model.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from molink.control.messages.payloads import (
    PeerAddress,
    ProbeOrder,
    RateSeen,
    RatesSeen,
    Services,
)
from molink.errors import MolinkError, StageError
from molink.tasks import cancel
from molink.transport.paths.direct import candidates, home_addresses
from molink.transport.paths.reach import Reach
from molink.transport.peer.protocol import PEER_PORT_NAME
from molink.transport.peer.service import PeerService
from molink_agent.daemon.measuring_budget import (
    PATHS_BUDGET,
    TIMING_BUDGET,
    MeasuringBudget,
    spend,
)
from molink_agent.daemon.reports import DeviceReports
from molink_agent.daemon.routes import RelayedRoutes
from molink_agent.daemon.step_times import KeptStepTimes
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.network.nat import ask_stun
from molink_agent.network.prober import RATE_MBPS_MAX, Prober

log = logging.getLogger(__name__)


@dataclass(slots=True)
class PeerEndpoint:
    """Peer service of one node: where neighbours measure the path to it."""

    routes: RelayedRoutes
    data_port: int
    """Port of the peer service; 0: any free one."""
    _service: PeerService | None = None
    _key: str = ""
    _rates_changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def use(self, services: Services) -> None:
        """Listen with this node's key. Raises UserError when the data port is taken."""
        routes = self.routes
        if services.probe_key and services.probe_key != self._key:
            await self.stop()
            self._key = services.probe_key
            service = PeerService(
                self._key,
                routes.listen_address.host,
                self.data_port,
                on_rate=lambda sender, rate: self._rates_changed.set(),
            )
            await service.start()
            self._service = service
            routes.mapper.want(f"peer service of {routes.node_id}", [service.port])
        if self._service is not None:
            routes.open_port(PEER_PORT_NAME, self._service.port)

    async def next_rates(self) -> RatesSeen:
        """Rates at which others can send here, once another neighbour has measured."""
        await self._rates_changed.wait()
        self._rates_changed.clear()
        seen = self._service.rates if self._service is not None else {}
        rates = [
            RateSeen(sender=sender, rate_mbps=min(rate * 8 / 1e6, RATE_MBPS_MAX))
            for sender, rate in seen.items()
        ]
        return RatesSeen(rates=tuple(rates))

    @property
    def addresses(self) -> tuple[str, ...]:
        """Addresses of the peer service as host:port, as others may reach it."""
        if self._service is None:
            return ()
        port, routes = self._service.port, self.routes
        home = home_addresses() or ["127.0.0.1"]
        listen = routes.listen_address.options.listen
        return candidates(port, home, routes.mapper.mapped.get(port), bound_to=listen)

    async def stop(self) -> None:
        """End the service with all its connections."""
        service, self._service = self._service, None
        if service is not None:
            await service.stop()


@dataclass(frozen=True, slots=True)
class Budgets:
    """Budgets of all measuring on one PC."""

    paths: MeasuringBudget
    timing: MeasuringBudget

    @classmethod
    def full(cls) -> "Budgets":
        """Budgets of which nothing is spent yet."""
        clock = time.monotonic
        return cls(MeasuringBudget(PATHS_BUDGET, clock), MeasuringBudget(TIMING_BUDGET, clock))


@dataclass(slots=True)
class ProbeRunner:
    """Carries out one node's orders to measure, in the background."""

    pc: ThisPc
    reports: DeviceReports
    routes: RelayedRoutes
    endpoint: PeerEndpoint
    step_times: KeptStepTimes
    """Shared by all nodes of the PC, and so are:"""
    budgets: Budgets
    _order: ProbeOrder | None = None
    _timing_due: bool = False
    """Whether a layer is to be timed as soon as the owner allows it, and:"""
    _paths_due: bool = False
    _timing: "asyncio.Task[None] | None" = None
    _measuring: "asyncio.Task[None] | None" = None

    async def take(self, order: ProbeOrder) -> None:
        """Measure paths as the latest order asks; a layer of the same model is timed only once."""
        before, self._order = self._order, order
        if order == before:
            return
        if before is None or _times_another(order, before) or self._timing_is_over:
            self._timing_due = True
        await cancel(self._measuring)
        self._paths_due = bool(order.peers or order.coordinator_token)
        await self.refresh()

    async def refresh(self) -> None:
        """Measure what is due where the owner lends the device now. Where he does not, end the
        measurements under way; they are due again later."""
        if self.reports.withheld:
            self._timing_due |= await _interrupted(self._timing)
            self._paths_due |= await _interrupted(self._measuring)
            return
        if self._order is None:
            return
        if self._timing_due:
            await self._time_anew()
        if self._paths_due:
            self._paths_due = False
            self._measuring = asyncio.create_task(_logged(self._measure_paths, self._order))

    async def device_changed(self) -> None:
        """Time a layer on the device that the node lends now."""
        if self.reports.stage.device and self._order is not None:
            self._timing_due = True
            await self.refresh()

    async def limits_changed(self) -> None:
        """Time again what could not be timed: with other limits it may succeed."""
        if self._order is not None and self.reports.measured.steps is None and self._timing_is_over:
            self._timing_due = True
            await self.refresh()

    async def use(self, services: Services) -> None:
        """Offer the peer service, and publish where it is reached."""
        await self.endpoint.use(services)
        self.reports.stun_port = services.stun_port
        await self.addresses_changed()

    async def addresses_changed(self) -> None:
        """Publish the addresses: the router has let neighbours in, or does not any more."""
        await self.reports.device_measured(addresses=self.endpoint.addresses)

    async def stop(self) -> None:
        """End what is under way; the same order is carried out anew."""
        self._order = None
        self._timing_due = self._paths_due = False
        await cancel(self._timing, self._measuring)

    @property
    def _timing_is_over(self) -> bool:
        """Whether no timing runs, however the last one ended."""
        return self._timing is None or self._timing.done()

    async def _time_anew(self) -> None:
        assert self._order is not None, "an order says what to time"
        self._timing_due = False
        await cancel(self._timing)
        self._timing = asyncio.create_task(_logged(self._time_layer, self._order))

    async def _time_layer(self, order: ProbeOrder) -> None:
        loan = await self.reports.loan()
        if not loan.device:
            raise StageError("No device is lent: see `molink agent doctor`.")
        steps = await self.step_times.of(order, loan, self.budgets.timing)
        await self.reports.device_measured(steps=steps)
        formats = await self.step_times.of_formats(loan, self.budgets.timing)
        await self.reports.device_measured(formats=formats)

    async def _measure_paths(self, order: ProbeOrder) -> None:
        """Measure the paths to these peers and to the coordinator, once no other node measures."""
        ports, uplink = self.routes.ports, self.routes.uplink
        cap_mbps = self.pc.limits.limits.upload_mbps
        prober = Prober(self.routes.node_id, self.routes.caller, cap_mbps, ports.node_ids)
        async with uplink.measuring:
            await spend(self.budgets.paths, len(order.peers) + bool(order.coordinator_token))
            reach = await self.routes.reach()
            peers = tuple(ports.nearer_peer(_permitted(peer, reach)) for peer in order.peers)
            report, path = await prober.round(order.model_copy(update={"peers": peers}))
        await self.reports.publish_paths(report)
        self.pc.paths_measured(report, path, ports.node_ids)
        await self._ask_nat()
        await self.reports.publish_profile()

    async def _ask_nat(self) -> None:
        """Find out which kind of router is between this PC and the coordinator."""
        if self.reports.stun_port:
            host = urlsplit(self.reports.admission.of_pc.url).hostname or ""
            answer = await ask_stun(host, self.reports.stun_port)
            self.pc.line_measured(nat=str(answer.kind))


async def _interrupted(task: "asyncio.Task[None] | None") -> bool:
    """End a measurement; whether it was under way."""
    if task is None or task.done():
        return False
    await cancel(task)
    return True


def _permitted(peer: PeerAddress, reach: Reach) -> PeerAddress:
    return peer.model_copy(update={"addresses": reach.permitted(peer.addresses)})


def _times_another(order: ProbeOrder, before: ProbeOrder) -> bool:
    return (order.model, order.config) != (before.model, before.config)


async def _logged(probe: Callable[[ProbeOrder], Awaitable[None]], order: ProbeOrder) -> None:
    """A probe that fails costs the node its part in a plan, but does not end the agent."""
    try:
        await probe(order)
    except MolinkError as error:
        log.warning("the probe failed: %s", error)
    except Exception:
        log.exception("the probe failed")
