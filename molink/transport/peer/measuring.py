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
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.errors import FrameError
from molink.transport.peer.protocol import (
    BULK_BYTES_MAX,
    GIVE_BYTES_MAX,
    PEER_FRAMES,
    Bulk,
    Echo,
    Give,
    Measure,
    Ready,
    ReceivedBytes,
    Reject,
)
from molink.transport.preamble import NONCE_BYTES, PreambleRefusedError, is_signed
from molink.transport.sockets import abandon

ECHOES = 9
"""Their median is what a message meets; a single lost packet or a busy moment does not move it."""

BULK_S = 1.0
"""Sending for so long: ten round trips of a far link, so that most of it is past the slow start."""

SLOT_WITHIN_S = 45.0
"""Seconds for the service to be free: the time of all that may wait, at their usual two or three
seconds each."""

FIRST_PIECE_BYTES = 64 * 1024
"""Bytes under way before the first report."""

PIECE_BYTES = 32 * 1024

RECEIVE_BYTES = 64 * 1024

GIVEN_NOTED_BYTES = 16 * 1024
"""Bytes between two notes, as fine as a service counts (`service.ACKNOWLEDGED_EVERY_BYTES`)."""

START_SHARE = 0.3
"""Share of the sending time left out: TCP begins slowly, so it says nothing of a line."""

REPORTS_MIN = 3
"""Fewer say nothing about a rate."""


@dataclass(slots=True)
class ByteArrivals:
    """How fast bytes came: by one clock, without the start of the connection.

    Both ends of a measurement count: the sender by the reports that come back, the receiver by what
    it reads.
    """

    clock: Callable[[], float]
    began_s: float
    counted: list[tuple[float, int]] = field(default_factory=list)

    @property
    def bytes_total(self) -> int:
        """Bytes that have come so far."""
        return self.counted[-1][1] if self.counted else 0

    def note(self, bytes_total: int) -> None:
        """Count what has come by now."""
        self.counted.append((self.clock(), bytes_total))

    @property
    def rate_bytes_per_s(self) -> float:
        """Rate between the end of the start and the last count; 0 where too little came."""
        if len(self.counted) < REPORTS_MIN:
            return 0.0
        last_s, last_bytes = self.counted[-1]
        start_s = self.began_s + START_SHARE * (last_s - self.began_s)
        first_s, first_bytes = next((at, n) for at, n in self.counted if at >= start_s)
        return (last_bytes - first_bytes) / (last_s - first_s) if last_s > first_s else 0.0


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """Figures of the path from here to a peer."""

    rtt_s: float
    rate_bytes_per_s: float
    """0: not measured."""


@dataclass(frozen=True, slots=True)
class Asking:
    """Node that asks, and its proof that it may."""

    node_id: str
    token: str
    """Token that `probe_token` makes for this pair."""


async def peer_handshake(connection: socket.socket, asking: Asking) -> None:
    """Make the handshake with the service at the far end, and wait for our slot.

    Raises RefusedError when it says why not, OSError when what listens there is something else.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    request = Measure(asking.node_id, b"", nonce)
    try:
        answer = await PEER_FRAMES.request(connection, request, asking.token, SLOT_WITHIN_S)
    except FrameError as error:
        raise ConnectionError(f"no peer service: {error}") from None
    if isinstance(answer, Reject):
        raise PreambleRefusedError(answer.sentence)
    if not isinstance(answer, Ready) or not is_signed(answer, asking.token, nonce):
        raise ConnectionError("another node's peer service, or none")


async def measure(
    connection: socket.socket, bulk_s: float = BULK_S, cap_bytes_per_s: float | None = None
) -> MeasuredPath:
    """Measure over a connection that `peer_handshake` has prepared; closes it.

    `cap_bytes_per_s` is what the owner lets this PC send. Raises OSError when the connection ends
    before a round trip is known; a rate that cannot be measured is 0.
    """
    try:
        rtt_s = await _round_trip(connection)
        return MeasuredPath(rtt_s, await _rate(connection, bulk_s, cap_bytes_per_s))
    except FrameError as error:
        raise ConnectionError(f"the peer service answers out of order: {error}") from None
    finally:
        abandon(connection)


async def measure_download(connection: socket.socket, within_s: float = BULK_S) -> float:
    """Bytes per second that the coordinator's service can send here, over a connection that
    `peer_handshake` has prepared; closes it.

    Counted on this side, by this clock. 0: not measured, or that service gives nothing now.
    """
    loop = asyncio.get_running_loop()
    arrivals = ByteArrivals(loop.time, loop.time())
    try:
        async with asyncio.timeout(within_s):
            await PEER_FRAMES.write(connection, Give())
            await _take(connection, arrivals)
    except OSError:
        pass  # The time is over, or the connection: what was counted counts.
    finally:
        abandon(connection)
    return arrivals.rate_bytes_per_s


async def _take(connection: socket.socket, arrivals: ByteArrivals) -> None:
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
    """Reports of the far end: what it has counted, and when each came."""

    arrivals: ByteArrivals
    more: asyncio.Event
    over: bool = False

    async def listen(self, connection: socket.socket) -> None:
        """Take in reports until the connection ends, or something else comes."""
        try:
            while isinstance(report := await PEER_FRAMES.read(connection), ReceivedBytes):
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
    reports = _Reports(ByteArrivals(loop.time, loop.time()), asyncio.Event())
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
