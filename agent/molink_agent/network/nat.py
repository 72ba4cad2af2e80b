"""Detector of the kind of router between this PC and the world; it asks the coordinator (STUN).

Links are TCP, so the answer is a hint and no more: it tells the owner how hard it will be to be
reached directly, and which paths are worth trying. Whether a path works is measured on that path.

One server has one address, so a router that maps by the other end's address, but not by its port,
looks like a cone here. Such routers are rare; a second server for them alone was rejected.
"""

import asyncio
import socket
from dataclasses import dataclass
from enum import StrEnum

from aioice import stun

from molink.transport.stun import parse_stun

Address = tuple[str, int]

RETRANSMISSIONS = 2
ANSWER_FIRST_S = 0.5
"""Sent again after 0.5 and 1.5 s; given up after 3.5 s. Three lost in a row are a firewall, not bad
luck."""

DATAGRAM_BYTES_MAX = 2048


class NatKind(StrEnum):
    """Kind of address translation around this PC, as in `Profile.nat`."""

    OPEN = "open"
    """The world sees the PC's own address: no NAT (a firewall may still stand there)."""
    CONE = "cone"
    """The same outside address for everybody (endpoint-independent mapping)."""
    SYMMETRIC = "symmetric"
    """Another outside port for each neighbour, which none can know. Links go through the relay."""
    BLOCKED = "blocked"
    """UDP comes back from nowhere."""
    UNKNOWN = "unknown"
    """The server could not be found, or only one of its ports answered."""


@dataclass(frozen=True, slots=True)
class NatAnswer:
    """Kind of NAT, and the addresses that show it."""

    kind: NatKind
    outside: Address | None = None
    """Address at which the first port sees us."""
    inside: Address | None = None
    """Address of our own, on the interface that leads there."""


def nat_kind(inside: Address | None, first: Address | None, second: Address | None) -> NatKind:
    """The kind, by our own address and by how each of the server's two ports sees us (None: it did
    not answer)."""
    if inside is None:
        return NatKind.UNKNOWN
    if first is None:
        return NatKind.BLOCKED if second is None else NatKind.UNKNOWN
    if second is None:
        return NatKind.OPEN if first == inside else NatKind.UNKNOWN
    if first != second:
        return NatKind.SYMMETRIC
    return NatKind.OPEN if first == inside else NatKind.CONE


async def ask_stun(host: str, port: int, *, retransmissions: int = RETRANSMISSIONS) -> NatAnswer:
    """Ask the server at `host:port` from one socket of ours; never raises, takes 7 s at most."""
    server = await _resolve(host, port)
    if server is None:
        return NatAnswer(NatKind.UNKNOWN)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        try:
            asking.bind(("0.0.0.0", 0))
        except OSError:
            return NatAnswer(NatKind.UNKNOWN)
        first, other_port = await _seen_by(server, asking, retransmissions)
        second = None
        if first is not None and other_port:
            second, _ = await _seen_by((server[0], other_port), asking, retransmissions)
        inside = _inside(server, int(asking.getsockname()[1]))
    return NatAnswer(nat_kind(inside, first, second), first, inside)


async def _seen_by(
    server: Address, asking: socket.socket, retransmissions: int
) -> tuple[Address | None, int]:
    """How `server` sees our socket (None: no answer), and its other port (0: it has none)."""
    request = stun.Message(stun.Method.BINDING, stun.Class.REQUEST)
    for attempt in range(retransmissions + 1):
        try:
            async with asyncio.timeout(ANSWER_FIRST_S * 2**attempt):
                answer = await _answer(request, server, asking)
        except OSError:  # A timeout is one, too.
            continue
        if answer.message_class is stun.Class.ERROR:
            return None, 0
        seen: Address | None = answer.attributes.get("XOR-MAPPED-ADDRESS")
        return seen, answer.attributes.get("OTHER-ADDRESS", ("", 0))[1]
    return None, 0


async def _answer(request: stun.Message, server: Address, asking: socket.socket) -> stun.Message:
    loop = asyncio.get_running_loop()
    await loop.sock_sendto(asking, bytes(request), server)
    while True:
        data, sender = await loop.sock_recvfrom(asking, DATAGRAM_BYTES_MAX)
        answer = parse_stun(data)
        if answer is None or answer.transaction_id != request.transaction_id or sender != server:
            continue
        if answer.message_class in (stun.Class.RESPONSE, stun.Class.ERROR):
            return answer


async def _resolve(host: str, port: int) -> Address | None:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host, port, family=socket.AF_INET, type=socket.SOCK_DGRAM
        )
    except (OSError, UnicodeError):
        return None
    return (str(found[0][4][0]), port) if found else None


def _inside(server: Address, own_port: int) -> Address | None:
    """Our address on the interface that leads to `server`; connecting UDP sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(server)
        except OSError:
            return None
        return str(probe.getsockname()[0]), own_port
