"""The first of several addresses that answers as what we look for.

All are tried, each a little after the one before (RFC 8305, "happy eyeballs"): an address that
drops packets costs a quarter of a second, not a timeout. Whether somebody answers is not enough: a
private address is somebody else's in another home. So every connection is asked for a proof of what
it is before it counts.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from molink.errors import FrameError
from molink.transport.preamble import RefusedError
from molink.transport.sockets import connect, receive_exactly

__all__ = ["ADDRESSES_MAX", "DIRECT_WITHIN_S", "STAGGER_S", "find_link_port", "first_direct"]

ADDRESSES_MAX = 16
"""As many as a control message may name."""

STAGGER_S = 0.25
"""As RFC 8305 has it: longer than most round trips, so that the better address usually wins."""

DIRECT_WITHIN_S = 3.0
"""For each address: a lost SYN is repeated after one second, and again after two."""

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
        asyncio.create_task(_attempt(place * STAGGER_S, address, prove, within_s))
        for place, address in enumerate(addresses[:ADDRESSES_MAX])
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
    except (OSError, FrameError, RefusedError):
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


ZEROMQ_GREETING_BYTES = 10
"""0xFF, eight bytes, 0x7F: what every ZeroMQ socket sends at once, encrypted link or not."""


async def is_zeromq(connection: socket.socket, within_s: float) -> None:
    """The proof of a link's port. Raises OSError when something else listens.

    Which node's it is only the CURVE handshake of the stage can tell: who has the private address
    of a peer and a stage on the same port is told by a link that does not open
    (`PathKeeper.failed`).
    """
    async with asyncio.timeout(within_s):
        greeting = await receive_exactly(connection, ZEROMQ_GREETING_BYTES)
    if greeting[0] != 0xFF or greeting[-1] != 0x7F:
        raise ConnectionError("this port is not a link's")


async def find_link_port(
    addresses: Sequence[str], within_s: float = DIRECT_WITHIN_S
) -> tuple[str, socket.socket] | None:
    """`first_direct` for the port of a link."""
    return await first_direct(addresses, partial(is_zeromq, within_s=within_s), within_s)
