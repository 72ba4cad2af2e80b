"""Direct addresses: those under which a PC may be reached, and the first of a peer's that answers.

A PC names first its addresses at home: to a neighbour under the same roof nothing is quicker, and
to anybody else they cost a fraction of a second. Then what its router has mapped to it, then the
address that the coordinator sees: that one helps PCs without a router, and owners who have
forwarded the port by hand. Addresses of containers and virtual networks lead nowhere. Only IPv4,
because a stage's ports listen on nothing else.

Of a peer's addresses all are tried, each a little after the one before (RFC 8305, "happy
eyeballs"): an address that drops packets costs a quarter of a second, not a timeout. That one
answers does not suffice: a private address is another PC's in another home. So every connection is
asked for a proof of what it is before it counts.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import psutil

from molink.errors import FrameError
from molink.transport.preamble import PreambleRefusedError
from molink.transport.sockets import connect, receive_exactly

ADDRESSES_MAX = 16
"""Addresses tried, as many as a control message or a profile may name."""

STAGGER_S = 0.25
"""Delay between attempts, by RFC 8305: longer than most round trips, so the better address wins."""

DIRECT_WITHIN_S = 3.0
"""Seconds for each address: a lost SYN is repeated after one second, and again after two."""

ZEROMQ_GREETING_BYTES = 10
"""0xFF, eight bytes, 0x7F: what every ZeroMQ socket sends at once, encrypted link or not."""

ANY_ADDRESS = "0.0.0.0"

VIRTUAL = ("docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "cni", "flannel", "cali", "lxc")
"""First letters of devices that only this PC's own guests are behind. (VPNs are left in: a tunnel
between two friends is a good path.)"""

Proof = Callable[[socket.socket], Awaitable[None]]


async def first_direct(
    addresses: Sequence[str], prove: Proof, within_s: float = DIRECT_WITHIN_S
) -> tuple[str, socket.socket] | None:
    """The address that came first and its connection; None when none did.

    `prove` raises OSError, FrameError or RefusedError for a connection that is not what it should
    be; the time that it takes does not hold up the other addresses.
    """
    found: list[tuple[str, socket.socket]] = []
    attempts = [
        asyncio.create_task(_attempt(number * STAGGER_S, address, prove, within_s))
        for number, address in enumerate(addresses[:ADDRESSES_MAX])
    ]
    try:
        for ended in asyncio.as_completed(attempts):
            result = await ended
            if result is not None:
                found.append(result)
                break
    finally:
        for attempt in attempts:
            attempt.cancel()
        others = await asyncio.gather(*attempts, return_exceptions=True)
        _close_others(others, found)
    return found[0] if found else None


async def _attempt(
    wait_s: float, address: str, prove: Proof, within_s: float
) -> tuple[str, socket.socket] | None:
    await asyncio.sleep(wait_s)
    try:
        connection = await connect(address, within_s)
    except OSError:
        return None
    try:
        await prove(connection)
    except (OSError, FrameError, PreambleRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return address, connection


def _close_others(results: Sequence[object], kept: Sequence[tuple[str, socket.socket]]) -> None:
    """Two may have come in the same moment."""
    for result in results:
        if isinstance(result, tuple) and result not in kept:
            result[1].close()


async def is_zeromq(connection: socket.socket, within_s: float) -> None:
    """The proof of a link's port. Raises OSError when something else listens.

    Which node's it is only the CURVE handshake of the stage can tell: where another PC has the
    private address of a peer and a stage on the same port, the link does not open
    (`PathKeeper.failed`).
    """
    async with asyncio.timeout(within_s):
        greeting = await receive_exactly(connection, ZEROMQ_GREETING_BYTES)
    if greeting[0] != 0xFF or greeting[-1] != 0x7F:
        raise ConnectionError("this port is not a link's")


async def find_link_port(
    addresses: Sequence[str], within_s: float = DIRECT_WITHIN_S
) -> tuple[str, socket.socket] | None:
    """Address and connection by `first_direct` for the port of a link."""
    return await first_direct(addresses, partial(is_zeromq, within_s=within_s), within_s)


def home_addresses(devices: Mapping[str, Sequence[Any]] | None = None) -> list[str]:
    """IPv4 addresses of the PC's own devices, as strings; `devices` as psutil gives them."""
    found = psutil.net_if_addrs() if devices is None else devices
    addresses = [
        device.address
        for name, bound in sorted(found.items())
        if not name.startswith(VIRTUAL)
        for device in bound
        if device.family == socket.AF_INET and _reachable(device.address)
    ]
    return list(dict.fromkeys(addresses))


def _reachable(address: str) -> bool:
    """Whether the address means this PC to others too."""
    ip = ipaddress.ip_address(address)
    return not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


def candidates(
    port: int,
    home: Sequence[str],
    mapped: str | None = None,
    seen: str | None = None,
    bound_to: str = ANY_ADDRESS,
) -> tuple[str, ...]:
    """host:port of one port of this PC, for others to try in this order.

    `home`: of `home_addresses`; `mapped`: host:port at the router; `seen`: this PC's host as the
    coordinator sees it; `bound_to`: where the port listens, if not everywhere.
    """
    if bound_to != ANY_ADDRESS:
        home = [bound_to]
    found = [f"{host}:{port}" for host in home]
    if mapped is not None:
        found.append(mapped)
    if seen is not None and not any(address.startswith(f"{seen}:") for address in found):
        found.append(f"{seen}:{port}")
    return tuple(found[:ADDRESSES_MAX])
