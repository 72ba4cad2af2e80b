"""Where this PC may be reached directly, best first.

First its addresses at home: to a neighbour under the same roof nothing is quicker, and to anybody
else they cost a fraction of a second (`molink.transport.paths.direct`). Then what its router has
mapped to it, then the address that the coordinator sees: that one helps PCs without a router, and
owners who have forwarded the port by hand. Addresses of containers and virtual networks lead
nowhere. Only IPv4, because a stage's ports listen on nothing else.
"""

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

__all__ = ["ADDRESSES_MAX", "candidates", "home_addresses"]

ADDRESSES_MAX = 16
"""As many as a profile may name."""

VIRTUAL = ("docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "cni", "flannel", "cali", "lxc")
"""First letters of devices that only this PC's own guests are behind. (VPNs are left in: a tunnel
between two friends is a good path.)"""


def home_addresses(devices: Mapping[str, Sequence[Any]] | None = None) -> list[str]:
    """IPv4 addresses of the PC's own devices, as strings; `devices` as psutil gives them."""
    found = psutil.net_if_addrs() if devices is None else devices
    addresses = [
        one.address
        for name, bound in sorted(found.items())
        if not name.startswith(VIRTUAL)
        for one in bound
        if one.family == socket.AF_INET and _reachable(one.address)
    ]
    return list(dict.fromkeys(addresses))


def _reachable(address: str) -> bool:
    """Whether anybody but this PC can mean this PC by it."""
    one = ipaddress.ip_address(address)
    return not (one.is_loopback or one.is_link_local or one.is_unspecified or one.is_multicast)


def candidates(
    port: int,
    home: Sequence[str],
    mapped: str | None = None,
    seen: str | None = None,
    bound_to: str = "0.0.0.0",
) -> tuple[str, ...]:
    """host:port of one port of this PC, for others to try in this order.

    `home`: of `home_addresses`; `mapped`: host:port at the router; `seen`: this PC's host as the
    coordinator sees it; `bound_to`: where the port listens, if not everywhere.
    """
    if bound_to != "0.0.0.0":
        home = [bound_to]
    found = [f"{host}:{port}" for host in home]
    if mapped is not None:
        found.append(mapped)
    if seen is not None and not any(one.startswith(f"{seen}:") for one in found):
        found.append(f"{seen}:{port}")
    return tuple(found[:ADDRESSES_MAX])
