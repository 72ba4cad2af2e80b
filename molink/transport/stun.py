"""A mirror for agents: shows each the address under which the internet sees it (STUN, RFC 8489).

Two UDP ports answer. A home router that gives one and the same outside port for both maps
independently of the other end, so that neighbours could reach it too; one that gives another for
each does not. The second port is named in every answer of the first (OTHER-ADDRESS); its address
there means nothing, since a server seldom knows its own public one.

An answer has 44 bytes, a question 20 at least, and answers per second are bounded, of one address
more narrowly: a forged sender address gains nothing here. Many forged ones can use the bound up;
agents then ask again, and are reached through the relay meanwhile.
"""

import asyncio
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Any, cast

from aioice import stun

ANSWERS_PER_S_MAX = 500
"""A thousand agents that all ask twice within four seconds of a restart; 40 KB/s of upload."""

ADDRESS_ANSWERS_PER_S_MAX = 50
"""Answers per second to one address: a provider may have a street of homes behind it."""

REQUEST_BYTES_MAX = 548
"""Size that a STUN message over UDP should not exceed, by RFC 8489; ours have 20."""

ANY_ADDRESS = "0.0.0.0"


@dataclass(frozen=True, slots=True)
class StunServer:
    """STUN server on two ports. Made by `serve_stun`."""

    port: int
    """The port that agents are given."""
    other_port: int
    """The port that the answers name."""


@asynccontextmanager
async def serve_stun(host: str, port: int, other_port: int = 0) -> AsyncIterator[StunServer]:
    """Answer on UDP `port` and `other_port` (0: any free one) of `host`, an IPv4 address of this
    machine, while the block runs. Raises OSError when a port is taken."""
    loop = asyncio.get_running_loop()
    answers = _Answers()
    second, _ = await loop.create_datagram_endpoint(
        lambda: _Mirror(answers, 0), local_addr=(host, other_port)
    )
    with closing(second):
        first, _ = await loop.create_datagram_endpoint(
            lambda: _Mirror(answers, _port(second)), local_addr=(host, port)
        )
        with closing(first):
            yield StunServer(_port(first), _port(second))


def parse_stun(data: bytes) -> stun.Message | None:
    """Message in `data`; None for anything that is no STUN message: a sender may lie."""
    if len(data) > REQUEST_BYTES_MAX:
        return None
    try:
        return stun.parse_message(data)
    except (ValueError, struct.error):
        return None


class _Answers:
    """Rate limit of the answers of both ports, by the second."""

    def __init__(self) -> None:
        self._second = 0
        self._count = 0
        self._counts: Counter[str] = Counter()

    def take(self, host: str, now_s: float) -> bool:
        """Count another answer to an address; False when it may not be given."""
        if int(now_s) != self._second:
            self._second, self._count, self._counts = int(now_s), 0, Counter()
        if self._count >= ANSWERS_PER_S_MAX or self._counts[host] >= ADDRESS_ANSWERS_PER_S_MAX:
            return False
        self._count += 1
        self._counts[host] += 1
        return True


class _Mirror(asyncio.DatagramProtocol):
    """One of the two ports."""

    def __init__(self, answers: _Answers, other_port: int) -> None:
        self._answers = answers
        self._other_port = other_port
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        request = parse_stun(data)
        asked = request is not None and request.message_class == stun.Class.REQUEST
        if not asked or request is None or request.message_method != stun.Method.BINDING:
            return
        if self._transport is not None and self._answers.take(str(addr[0]), time.monotonic()):
            self._transport.sendto(self._answer(request, (addr[0], addr[1])), addr)

    def _answer(self, request: stun.Message, sender: tuple[str, int]) -> bytes:
        attributes: dict[str, tuple[str, int]] = {"XOR-MAPPED-ADDRESS": sender}
        if self._other_port:
            attributes["OTHER-ADDRESS"] = (ANY_ADDRESS, self._other_port)
        return bytes(
            stun.Message(
                stun.Method.BINDING, stun.Class.RESPONSE, request.transaction_id, attributes
            )
        )


def _port(transport: asyncio.DatagramTransport) -> int:
    return int(transport.get_extra_info("sockname")[1])
