"""Round trip and rate to another node, as its peer service lets one measure.

The rate is taken from the service's reports of what has come, all against this side's clock: how
much was reported between the end of the start and the last report. So neither a full send buffer
nor TCP's slow start counts as speed, and what the other side could lie about is only what would
slow its own ring down: links are measured again by every chunk that they carry.

Never more is under way than what has been reported plus a first piece, so the sender starts as
gently as TCP does, and a slow line is not left with seconds of bytes in its queue.
"""

import asyncio
import secrets
import socket
import statistics
from dataclasses import dataclass

from molink.errors import FrameError
from molink.transport.peer.allowance import BULK_BYTES_MAX
from molink.transport.peer.arrivals import Arrivals
from molink.transport.peer.protocol import (
    PEER_FRAMES,
    Bulk,
    Echo,
    Give,
    Measure,
    Ready,
    Received,
    Sorry,
)
from molink.transport.peer.service import GIVE_BYTES_MAX
from molink.transport.preamble import NONCE_BYTES, Hello, RefusedError, is_signed, sign
from molink.transport.sockets import abandon

__all__ = ["BULK_S", "Asking", "Measured", "greet_peer", "measure", "measure_download"]

ECHOES = 9
"""Their median is what a message meets; a single lost packet or a busy moment does not move it."""

BULK_S = 1.0
"""Sending for so long: ten round trips of a far link, so that most of it is past the slow start."""

TURN_WITHIN_S = 45.0
"""For the service to be free: the time of all that may wait, at their usual two or three seconds
each."""

FIRST_PIECE_BYTES = 64 * 1024
"""Under way before the first report."""

PIECE_BYTES = 32 * 1024

RECEIVE_BYTES = 64 * 1024

GIVEN_NOTED_BYTES = 16 * 1024
"""As fine as a service counts (`service.ACKNOWLEDGED_EVERY_BYTES`)."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The way from here to a peer."""

    rtt_s: float
    rate_bytes_per_s: float
    """0: not measured."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks, and how it proves that it may."""

    node_id: str
    token: str
    """`probe_token` for this pair."""


async def greet_peer(connection: socket.socket, asking: Asking) -> None:
    """Be let in by the service at the far end, when it is our turn.

    Raises RefusedError when it says why not, OSError when what listens there is something else.
    """
    try:
        hello = await PEER_FRAMES.read(connection)
        if not isinstance(hello, Hello):
            raise FrameError("no greeting")
        nonce = secrets.token_bytes(NONCE_BYTES)
        request = sign(Measure(asking.node_id, b"", nonce), asking.token, hello.nonce)
        await PEER_FRAMES.write(connection, request)
        answer = await PEER_FRAMES.read(connection, TURN_WITHIN_S)
    except FrameError as error:
        raise ConnectionError(f"no peer service: {error}") from None
    if isinstance(answer, Sorry):
        raise RefusedError(answer.sentence)
    if not isinstance(answer, Ready) or not is_signed(answer, asking.token, nonce):
        raise ConnectionError("another node's peer service, or none")


async def measure(
    connection: socket.socket, bulk_s: float = BULK_S, cap_bytes_per_s: float | None = None
) -> Measured:
    """Measure over a connection that `greet_peer` has prepared; closes it.

    `cap_bytes_per_s` is what the owner lets this PC send. Raises OSError when the connection ends
    before a round trip is known; a rate that cannot be measured is 0.
    """
    try:
        rtt_s = await _round_trip(connection)
        return Measured(rtt_s, await _rate(connection, bulk_s, cap_bytes_per_s))
    except FrameError as error:
        raise ConnectionError(f"the peer service answers out of order: {error}") from None
    finally:
        abandon(connection)


async def measure_download(connection: socket.socket, within_s: float = BULK_S) -> float:
    """Bytes per second that the coordinator's service can send here, over a connection that
    `greet_peer` has prepared; closes it.

    Counted on this side, by this clock. 0: not measured, or that service gives nothing now.
    """
    loop = asyncio.get_running_loop()
    arrivals = Arrivals(loop.time, loop.time())
    try:
        async with asyncio.timeout(within_s):
            await PEER_FRAMES.write(connection, Give())
            await _take(connection, arrivals)
    except OSError:
        pass  # Enough, or over: what was counted counts.
    finally:
        abandon(connection)
    return arrivals.rate_bytes_per_s


async def _take(connection: socket.socket, arrivals: Arrivals) -> None:
    """Count bytes until there are no more, or as many as a service gives."""
    loop = asyncio.get_running_loop()
    piece = bytearray(RECEIVE_BYTES)
    total = 0
    while total < GIVE_BYTES_MAX and (count := await loop.sock_recv_into(connection, piece)):
        total += count
        if total - arrivals.bytes_total >= GIVEN_NOTED_BYTES:
            arrivals.note(total)


async def _round_trip(connection: socket.socket) -> float:
    """Median of a few echoes."""
    loop = asyncio.get_running_loop()
    times_s = []
    for number in range(ECHOES):
        began_s = loop.time()
        await PEER_FRAMES.write(connection, Echo(number))
        if await PEER_FRAMES.read(connection) != Echo(number):
            raise FrameError("no echo")
        times_s.append(loop.time() - began_s)
    return statistics.median(times_s)


@dataclass(slots=True)
class _Reports:
    """What the far end has counted, and when we heard of it."""

    arrivals: Arrivals
    more: asyncio.Event
    over: bool = False

    async def listen(self, connection: socket.socket) -> None:
        """Until the connection ends, or something else comes."""
        try:
            while isinstance(report := await PEER_FRAMES.read(connection), Received):
                self.arrivals.note(report.bytes_total)
                self.more.set()
        except (OSError, FrameError):
            pass
        finally:
            self.over = True
            self.more.set()


async def _rate(connection: socket.socket, bulk_s: float, cap: float | None) -> float:
    loop = asyncio.get_running_loop()
    await PEER_FRAMES.write(connection, Bulk())
    reports = _Reports(Arrivals(loop.time, loop.time()), asyncio.Event())
    listening = asyncio.create_task(reports.listen(connection))
    try:
        async with asyncio.timeout(bulk_s):
            await _send(connection, reports, cap)
            await listening
    except OSError:
        pass
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
    return reports.arrivals.rate_bytes_per_s


async def _send(connection: socket.socket, reports: _Reports, cap: float | None) -> None:
    """Keep the line full until all is sent or the far end has closed."""
    loop = asyncio.get_running_loop()
    piece, sent, began_s = bytes(PIECE_BYTES), 0, loop.time()
    while sent < BULK_BYTES_MAX and not reports.over:
        if sent + PIECE_BYTES > 2 * reports.arrivals.bytes_total + FIRST_PIECE_BYTES:
            reports.more.clear()
            await reports.more.wait()
            continue
        if cap is not None and (ahead_s := sent / cap - (loop.time() - began_s)) > 0:
            await asyncio.sleep(ahead_s)
        await loop.sock_sendall(connection, piece)
        sent += PIECE_BYTES
