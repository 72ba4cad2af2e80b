"""Filter of the addresses to which others may send this program.

A node says where it is reached, and a coordinator tells nodes where their neighbours are: whoever
lies about it would have this PC connect to its own services, or to what else is in its home. So of
addresses from afar only those count that a neighbour can honestly have: public ones, and private
ones of a network in which this PC is itself. Loopback is a neighbour's only where the coordinator
was reached there too, as in `molink serve`, in tests and where one PC plays several.

What is left is a connection to a port of the own network, and ten bytes of greeting.
"""

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address

import psutil

SHARED = IPv4Network("100.64.0.0/10")
"""Network of providers and of overlay networks, whose devices have it whole without saying so."""

PRIVATE_BLOCKS = (
    SHARED,
    *map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")),
)

Address = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Reach:
    """Rule which addresses from afar are tried."""

    known: frozenset[str]
    """Hosts to which this PC's own user has sent it: the coordinator's."""
    networks: tuple[IPv4Network, ...]
    """Networks in which this PC is."""
    is_local: bool
    """Whether one of the known hosts is this PC by its loopback."""

    @classmethod
    def of(cls, known: Iterable[str], devices: Iterable[tuple[str, str]] | None = None) -> "Reach":
        """The rule for a PC whose user knows these hosts; looks names up, which may take seconds.

        `devices`: address and netmask of each; without them those of this PC. Where a known host is
        in a private network, all of that block counts: there is a way from here to there.
        """
        hosts = frozenset(host for host in known if host)
        addresses = [one for host in hosts for one in _looked_up(host)]
        own = _own_devices() if devices is None else list(devices)
        networks = {IPv4Network(f"{address}/{mask}", strict=False) for address, mask in own}
        networks |= {SHARED for address, _ in own if IPv4Address(address) in SHARED}
        networks |= {block for one in addresses for block in PRIVATE_BLOCKS if _is_in(one, block)}
        return cls(hosts, tuple(networks), any(address.is_loopback for address in addresses))

    def permits(self, address: str) -> bool:
        """Whether host:port may be tried. A name may not, unless it is a known host."""
        host = address.rpartition(":")[0].strip("[]")
        found = _parsed(host)
        return host in self.known or (found is not None and self._permits(found))

    def permitted(self, addresses: Iterable[str]) -> tuple[str, ...]:
        """Addresses that may be tried, in their order."""
        return tuple(address for address in addresses if self.permits(address))

    def permits_service(self, address: str) -> bool:
        """Whether a service of the cluster's operator may be tried, which may have a name; looks it
        up."""
        if self.permits(address):
            return True
        found = _looked_up(address.rpartition(":")[0].strip("[]"))
        return bool(found) and all(map(self._permits, found))

    def _permits(self, address: Address) -> bool:
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            return self._permits(address.ipv4_mapped)
        if address.is_loopback:
            return self.is_local
        if address.is_unspecified or address.is_multicast or address.is_link_local:
            return False
        return address.is_global or any(_is_in(address, network) for network in self.networks)


def _is_in(address: Address, network: IPv4Network) -> bool:
    return isinstance(address, IPv4Address) and address in network


def _parsed(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _looked_up(host: str) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [ipaddress.ip_address(str(where[0]).partition("%")[0]) for *_, where in found]


def _own_devices() -> list[tuple[str, str]]:
    return [
        (device.address, device.netmask)
        for bound in psutil.net_if_addrs().values()
        for device in bound
        if device.family == socket.AF_INET and device.netmask
    ]
