"""What the device nodes of one PC share: the loopback between them, and the line out of the house.

Nodes of one PC reach each other over loopback, whatever the owner lets neighbours do: that path is
tried first, for links as for measurements, and never through the relay. Whatever leaves the PC
shares one upload line, so the owner's cap is divided evenly among the stages that send out of it
now. A budget of all stages' bytes in common was rejected: each process would have to ask for every
chunk.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from molink.control.messages.payloads import PeerAddress, StageLink
from molink.transport.peer.protocol import PEER_PORT_NAME

ADDRESSES_MAX = 16
"""Most addresses of a link and of a peer, as messages allow."""


@dataclass(slots=True)
class LocalPorts:
    """Addresses within the PC at which its nodes listen."""

    _addresses: dict[str, dict[str, str]] = field(default_factory=dict)
    """Addresses as host:port, by node id and name of the port."""

    @property
    def node_ids(self) -> frozenset[str]:
        """The PC's own nodes."""
        return frozenset(self._addresses)

    def add_node(self, node_id: str) -> None:
        """Count a node as the PC's own."""
        self._addresses.setdefault(node_id, {})

    def listens(self, node_id: str, port_name: str, address: str) -> None:
        """Note where one of a node's ports is reached from within the PC."""
        self._addresses.setdefault(node_id, {})[port_name] = address

    def of_node(self, node_id: str) -> dict[str, str]:
        """Addresses of a node's ports within the PC, by name."""
        return dict(self._addresses.get(node_id, {}))

    def leads_outside(self, links: Iterable[StageLink]) -> bool:
        """Whether any of these links leads out of the PC."""
        return any(link.to not in self._addresses for link in links)

    def nearer_link(self, link: StageLink) -> StageLink:
        """The link, over loopback where it leads to another node of this PC."""
        address = self._addresses.get(link.to, {}).get(link.port_name)
        if address is None:
            return link
        addresses = (address, *link.addresses)
        return link.model_copy(update={"addresses": addresses[:ADDRESSES_MAX], "relay": ""})

    def nearer_peer(self, peer: PeerAddress) -> PeerAddress:
        """The peer, over loopback where it is another node of this PC."""
        address = self._addresses.get(peer.node_id, {}).get(PEER_PORT_NAME)
        if address is None:
            return peer
        addresses = (address, *peer.addresses)
        return peer.model_copy(update={"addresses": addresses[:ADDRESSES_MAX]})


@dataclass(slots=True)
class SharedUplink:
    """Upload line of the PC, divided among the stages that send out of it."""

    cap_bytes_per_s: Callable[[], float | None]
    """The owner's, for the whole PC; None: no cap."""
    shares_changed: Callable[[], None]
    """Callback for when a stage's share has changed."""
    measuring: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock that a node holds while it measures the line: two would each find half of it."""
    _senders: set[str] = field(default_factory=set)
    """Nodes whose stages send out of the PC."""

    def set_sending(self, node_id: str, *, outside: bool) -> None:
        """Whether a node's stage sends out of the PC from now on."""
        senders = self._senders | {node_id} if outside else self._senders - {node_id}
        if senders != self._senders:
            self._senders = senders
            self.shares_changed()

    def share_bytes_per_s(self, node_id: str) -> float | None:
        """Rate at which a node's stage may upload; None: as fast as it can."""
        cap = self.cap_bytes_per_s()
        if cap is None or node_id not in self._senders:
            return None
        return cap / len(self._senders)
