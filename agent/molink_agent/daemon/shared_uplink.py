"""What the seats of one PC share: the way from one to the other, and the line out of the house.

Seats reach each other over loopback, whatever the owner lets neighbours do: that way is taken
first, for links as for measurements, and never through the relay. Whatever leaves the PC shares
one upload line, so the owner's cap is divided evenly among the stages that send out of it now. A
budget of all stages' bytes in common was rejected: it would have to be asked for each chunk, from
process to process.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.control.messages.payloads import Assignment, PeerAddress, StageLink
from molink.transport.peer.protocol import PEER_PORT_NAME

__all__ = ["Household"]

ADDRESSES_MAX = 16
"""Of a link and of a peer, as messages allow."""


@dataclass(slots=True)
class Household:
    """One for each agent."""

    cap_bytes_per_s: Callable[[], float | None]
    """The owner's, for the whole PC; None: no cap."""
    cap_changed: Callable[[], None] = field(default=lambda: None)
    """Somebody's share is another now."""
    line: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while one seat measures the line: two at once would each find half of it."""
    _addresses: dict[str, dict[str, str]] = field(default_factory=dict)
    """host:port within this PC, by node id and name of the port."""
    _senders: set[str] = field(default_factory=set)
    """Seats whose stages send out of the PC."""

    @property
    def members(self) -> frozenset[str]:
        """Node ids of the PC's seats."""
        return frozenset(self._addresses)

    def __contains__(self, node_id: str) -> bool:
        return node_id in self._addresses

    def enter(self, node_id: str) -> None:
        """A seat of this PC."""
        self._addresses.setdefault(node_id, {})

    def listens(self, node_id: str, port_name: str, address: str) -> None:
        """One of its ports is reached there from within the PC."""
        self._addresses.setdefault(node_id, {})[port_name] = address

    def nearer(self, link: StageLink) -> StageLink:
        """The link, over loopback where it leads to another seat."""
        address = self._addresses.get(link.to, {}).get(link.port_name)
        if address is None:
            return link
        ways = (address, *link.addresses)
        return link.model_copy(update={"addresses": ways[:ADDRESSES_MAX], "relay": ""})

    def nearer_peer(self, peer: PeerAddress) -> PeerAddress:
        """The same for whom a seat shall measure."""
        address = self._addresses.get(peer.node_id, {}).get(PEER_PORT_NAME)
        if address is None:
            return peer
        ways = (address, *peer.addresses)
        return peer.model_copy(update={"addresses": ways[:ADDRESSES_MAX]})

    def joins(self, node_id: str, assignment: Assignment) -> None:
        """A seat's stage sends where this assignment says, from now on."""
        links = (assignment.next_link, assignment.coordinator_link)
        self._send(node_id, outside=any(link and link.to not in self for link in links))

    def leaves(self, node_id: str) -> None:
        """It sends nothing any more."""
        self._send(node_id, outside=False)

    def share_bytes_per_s(self, node_id: str) -> float | None:
        """What a seat's stage may upload; None: as much as it can."""
        cap = self.cap_bytes_per_s()
        if cap is None or node_id not in self._senders:
            return None
        return cap / len(self._senders)

    def _send(self, node_id: str, *, outside: bool) -> None:
        if outside == (node_id in self._senders):
            return
        (self._senders.add if outside else self._senders.discard)(node_id)
        self.cap_changed()
