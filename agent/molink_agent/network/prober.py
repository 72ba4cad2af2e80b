"""Measures the paths to neighbours, as the coordinator orders it: direct where that works, else
through the relay.

One after the other, or each would find only its share of the line.
"""

import asyncio
import socket
from dataclasses import dataclass

from molink.control.messages.payloads import PathMeasured, PathReport, PeerAddress, ProbeOrder
from molink.transport.paths.direct import first_direct
from molink.transport.peer.measuring import (
    Asking,
    MeasuredPath,
    measure,
    measure_download,
    peer_handshake,
)
from molink.transport.peer.protocol import PEER_PORT_NAME
from molink.transport.preamble import PreambleRefusedError
from molink.transport.relay.client import RelayCaller
from molink.transport.relay.protocol import COORDINATOR

RTT_MS_MAX, RATE_MBPS_MAX = 60_000.0, 100_000.0
"""Largest figures that a message may hold (`control.messages`)."""


@dataclass(frozen=True, slots=True)
class CoordinatorPath:
    """Measured path to the coordinator and back; a rate of 0 was not measured."""

    rtt_s: float
    upload_bytes_per_s: float
    download_bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Prober:
    """Measures paths from one node to others."""

    node_id: str
    relay: RelayCaller | None = None
    upload_cap_mbps: float | None = None
    """The owner's: no measurement that leaves the PC sends more."""
    inside: frozenset[str] = frozenset()
    """Nodes that are other devices of this PC."""
    bulk_s: float = 1.0
    """Seconds of sending, for each rate."""

    async def round(self, order: ProbeOrder) -> tuple[PathReport, CoordinatorPath | None]:
        """Measure the path to everybody in `order`. Raises nothing that a network can cause.

        The coordinator's turn is where ids begin anew. So nodes that start together each measure
        another neighbour at a time.
        """
        after = [peer for peer in order.peers if peer.node_id > self.node_id]
        before = [peer for peer in order.peers if peer.node_id <= self.node_id]
        paths = [await self.peer(peer) for peer in after]
        token = order.coordinator_token
        coordinator = await self.coordinator(token) if token else None
        paths += [await self.peer(peer) for peer in before]
        return PathReport(round=order.round, paths=tuple(paths)), coordinator

    async def peer(self, peer: PeerAddress) -> PathMeasured:
        """Direct over its addresses, else through the relay; `none` when neither works."""
        asking = Asking(self.node_id, peer.token)
        direct = await self._direct(peer, asking)
        if direct is not None:
            address, measured = direct
            return _path_measured(peer.node_id, "direct", address, measured)
        relayed = await self._relayed(peer.node_id, asking)
        if relayed is not None and self.relay is not None:
            return _path_measured(peer.node_id, "relay", self.relay.address, relayed)
        return PathMeasured(to=peer.node_id, path="none", rtt_ms=0, rate_mbps=0)

    async def coordinator(self, token: str) -> CoordinatorPath | None:
        """The path to the coordinator's peer service, which its relay forwards to, and back.

        `token`: of this node for the coordinator's service. None: it cannot be reached.
        """
        asking = Asking(self.node_id, token)
        up = await self._relayed(COORDINATOR, asking)
        if up is None:
            return None
        back = await self._dial(COORDINATOR, asking)
        down = 0.0 if back is None else await measure_download(back, self.bulk_s)
        return CoordinatorPath(up.rtt_s, up.rate_bytes_per_s, down)

    async def _direct(self, peer: PeerAddress, asking: Asking) -> tuple[str, MeasuredPath] | None:
        async def prove(connection: socket.socket) -> None:
            await peer_handshake(connection, asking)

        found = await first_direct(peer.addresses, prove)
        if found is None:
            return None
        cap_mbps = None if peer.node_id in self.inside else self.upload_cap_mbps
        measured = await self._measure(found[1], cap_mbps)
        return None if measured is None else (found[0], measured)

    async def _relayed(self, to: str, asking: Asking) -> MeasuredPath | None:
        connection = await self._dial(to, asking)
        return None if connection is None else await self._measure(connection, self.upload_cap_mbps)

    async def _dial(self, to: str, asking: Asking) -> socket.socket | None:
        """A greeted connection to a peer service, through the relay."""
        if self.relay is None:
            return None
        try:
            connection = await self.relay.dial(to, PEER_PORT_NAME)
        except (OSError, PreambleRefusedError):
            return None
        try:
            await peer_handshake(connection, asking)
        except (OSError, PreambleRefusedError):
            connection.close()
            return None
        except asyncio.CancelledError:
            connection.close()
            raise
        return connection

    async def _measure(
        self, connection: socket.socket, cap_mbps: float | None
    ) -> MeasuredPath | None:
        cap_bytes_per_s = None if cap_mbps is None else cap_mbps * 1e6 / 8
        try:
            return await measure(connection, self.bulk_s, cap_bytes_per_s)
        except OSError:
            return None


def _path_measured(to: str, path: str, address: str, measured: MeasuredPath) -> PathMeasured:
    return PathMeasured.model_validate(
        {
            "to": to,
            "path": path,
            "address": address,
            "rtt_ms": min(measured.rtt_s * 1e3, RTT_MS_MAX),
            "rate_mbps": min(measured.rate_bytes_per_s * 8 / 1e6, RATE_MBPS_MAX),
        }
    )
