"""Paths of a member on this machine, measured as agents do: neighbours' to it, and its own to them.

It is reached under one address, and by no relay.
"""

from dataclasses import dataclass

from molink.control.messages.payloads import PathReport, ProbeOrder
from molink.transport.peer.service import PeerService
from molink_agent.network.prober import Prober

__all__ = ["HonestPaths"]


@dataclass(slots=True)
class HonestPaths:
    """Measuring of the paths of one node."""

    node_id: str
    host: str
    _service: PeerService | None = None
    _key: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """host:port where neighbours measure; none before `offer`."""
        return (self._service.address,) if self._service is not None else ()

    @property
    def measured_by(self) -> frozenset[str]:
        """Ids of the nodes that have measured their path here."""
        return frozenset(self._service.rates if self._service is not None else ())

    async def offer(self, key: str) -> None:
        """Let neighbours measure, with the node's key of now. Raises UserError when it cannot
        listen."""
        if key == self._key:
            return
        await self.close()
        self._key, self._service = key, PeerService(key, self.host)
        await self._service.start()

    async def report(self, order: ProbeOrder) -> PathReport:
        """Measure the paths to all neighbours of the order; takes a second for each."""
        neighbours_only = order.model_copy(update={"coordinator_token": ""})
        report, _ = await Prober(self.node_id).round(neighbours_only)
        return report

    async def close(self) -> None:
        """End the service with all its connections."""
        service, self._service = self._service, None
        if service is not None:
            await service.stop()
