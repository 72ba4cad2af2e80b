"""How one seat is reached, and how it measures others: its peer service, its addresses, its
prober."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from molink.control.messages.payloads import PathReport, ProbeOrder, RateSeen, RatesSeen, Services
from molink.transport.home_addresses import candidates, home_addresses
from molink.transport.peer.protocol import PEER_PORT_NAME
from molink.transport.peer.service import PeerService
from molink_agent.daemon.household import Household
from molink_agent.daemon.options import AgentOptions
from molink_agent.daemon.router_ports import RouterPorts
from molink_agent.daemon.ways import RelayedRoutes
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.paths.measure import RATE_MBPS_MAX, CoordinatorWay, Prober

__all__ = ["Neighbours"]


@dataclass(slots=True)
class Neighbours:
    """Between one seat and the others."""

    node_id: str
    options: AgentOptions
    """Its `data_port` is this seat's."""
    limits: LimitsFile
    ways: RelayedRoutes
    ports: RouterPorts
    household: Household
    _service: PeerService | None = None
    _key: str = ""
    _stage_ports: tuple[int, ...] = ()
    _measured: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody has measured the way here."""

    async def use(self, services: Services) -> None:
        """The coordinator has told its relay and this seat's keys. Raises UserError when the data
        port is taken."""
        await self.ways.use(services)
        if services.probe_key and services.probe_key != self._key:
            await self._stop_service()
            self._key = services.probe_key
            host = self.options.listen if self.limits.limits.direct else "127.0.0.1"
            self._service = PeerService(
                self._key,
                host,
                self.options.data_port,
                on_rate=lambda sender, rate: self._measured.set(),
            )
            await self._service.start()
            self._want_ports()
            self.ways.listening = self._stage_listens
        if self._service is not None:
            address = f"{self.ways.stage_host()}:{self._service.port}"
            self.household.listens(self.node_id, PEER_PORT_NAME, address)
            if self.ways.receiver is not None:
                self.ways.receiver.open(PEER_PORT_NAME, address)

    def _stage_listens(self, ports: tuple[int, ...]) -> None:
        self._stage_ports = ports
        self._want_ports()

    def _want_ports(self) -> None:
        own = [self._service.port] if self._service is not None else []
        self.ports.want(self.node_id, [*own, *self._stage_ports])

    async def measure(self, order: ProbeOrder) -> tuple[PathReport, CoordinatorWay | None]:
        """The ways to these peers, and to the coordinator, once no other seat measures."""
        home, cap_mbps = self.household, self.limits.limits.upload_mbps
        prober = Prober(self.node_id, self.ways.caller, cap_mbps, home.members)
        async with home.line:
            peers = tuple(home.nearer_peer(peer) for peer in order.peers)
            return await prober.round(order.model_copy(update={"peers": peers}))

    async def tell_seen(self, say: Callable[[RatesSeen], Awaitable[None]]) -> None:
        """Until cancelled: say what others could send here, whenever one has measured."""
        while True:
            await self._measured.wait()
            self._measured.clear()
            seen = self._service.rates if self._service is not None else {}
            rates = [
                RateSeen(sender=sender, rate_mbps=min(rate * 8 / 1e6, RATE_MBPS_MAX))
                for sender, rate in seen.items()
            ]
            await say(RatesSeen(rates=tuple(rates)))

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port of the peer service, as others may reach it."""
        if self._service is None:
            return ()
        port = self._service.port
        home = home_addresses() or ["127.0.0.1"]
        return candidates(port, home, self.ports.mapped.get(port), bound_to=self.options.listen)

    async def stop(self) -> None:
        """End everything."""
        await self._stop_service()
        await self.ways.close()

    async def _stop_service(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            await service.stop()
