"""Lets others measure the way here, and nothing else: bounded in time, bytes and number.

One measurement at a time, because two would each find half of the line; the next ones wait their
turn, a few of them. Each has so many seconds and bytes, and all together draw on an allowance that
fills slowly: whoever steals a token cannot keep a volunteer's line busy. Bytes are counted and
dropped as they come, and how fast each node's came is kept: that is what it can send here, whatever
it says itself. Only the coordinator's own service also sends.
"""

import asyncio
import socket
from collections.abc import Callable

from molink.errors import FrameError
from molink.transport.peer.allowance import Allowance
from molink.transport.peer.arrivals import Arrivals
from molink.transport.peer.protocol import (
    PEER_FRAMES,
    Bulk,
    Echo,
    Give,
    Measure,
    PeerFrame,
    Ready,
    Received,
    Sorry,
    probe_token,
)
from molink.transport.preamble import Hello, is_signed, sign
from molink.transport.sockets import abandon, accept_from, address_of, listen

__all__ = ["GIVE_BYTES_MAX", "PeerService"]

ECHOES_MAX = 32
"""More than a median needs."""

MEASURE_S_MAX = 6.0
"""Of one measurement: echoes over a slow line, a second of bytes, and the rest of its window."""

GIVE_BYTES_MAX = 8 * 2**20
"""Of one measurement of a download: a second of 67 Mbps, about what a home takes and more than a
coordinator at home has."""

GIVE_S_MAX = 1.5
"""A second, and the start of the connection."""

SEEN_MAX = 64
"""Nodes whose rate is kept, the latest: five times as many as one round brings."""

WAITING_MAX = 16
"""For their turn; the last waits some half a minute, whoever comes then is told to come later."""

STRANGERS_MAX = 32
"""Connections that have not proven themselves, each for five seconds at most; more are closed."""

PIECE_BYTES = 64 * 1024

ACKNOWLEDGED_EVERY_BYTES = 16 * 1024
"""A report of so many bytes: fine enough for a line of 1 Mbps (eight a second), and 1,024 small
frames for the largest measurement."""


class PeerService:
    """Listens from `start` to `stop`."""

    def __init__(
        self,
        key: str,
        host: str = "0.0.0.0",
        port: int = 0,
        clock: Callable[[], float] | None = None,
        *,
        gives: bool = False,
    ) -> None:
        """`key` is this node's `probe_key`; `gives`: whether others may measure their download."""
        self._key, self._where, self._clock, self._gives = key, (host, port), clock, gives
        self._tasks: set[asyncio.Task[None]] = set()
        self._strangers = self._waiting = 0
        self._turn = asyncio.Semaphore(1)
        self.measurements = 0
        """Served since the start."""
        self.bytes_received = 0
        self.spoofed = 0
        """Refused because the proof was wrong."""
        self.seen: dict[str, float] = {}
        """Node to the bytes per second that it has sent here, by this side's count."""
        self.saw: Callable[[str, float], None] = lambda node_id, rate: None
        """Hears of each such rate."""

    async def start(self) -> None:
        """Raises UserError when it cannot listen there."""
        clock = self._clock or asyncio.get_running_loop().time
        self._allowance, self._to_give = Allowance(clock), Allowance(clock)
        self._door = listen(*self._where)
        self._tasks.add(asyncio.create_task(self._accept()))

    async def stop(self) -> None:
        """End it with all connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._door.close()

    @property
    def address(self) -> str:
        """host:port that it listens at."""
        return address_of(self._door)

    @property
    def port(self) -> int:
        """That it listens at."""
        return int(self._door.getsockname()[1])

    async def _accept(self) -> None:
        while True:
            connection = await accept_from(self._door)
            if self._strangers >= STRANGERS_MAX:
                connection.close()
                continue
            task = asyncio.create_task(self._serve(connection))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            request = await self._greet(connection)
            if isinstance(request, Sorry):
                PEER_FRAMES.write_now(connection, request)
                return
            self._waiting += 1
            try:
                await self._turn.acquire()
            finally:
                self._waiting -= 1
            try:
                async with asyncio.timeout(MEASURE_S_MAX):
                    await self._measured(connection, request)
            finally:
                self._turn.release()
        except (OSError, FrameError):
            pass
        finally:
            connection.close()

    async def _greet(self, connection: socket.socket) -> Measure | Sorry:
        """Who is it? Sorry when it may not, or not now."""
        self._strangers += 1
        try:
            hello = Hello.draw()
            await PEER_FRAMES.write(connection, hello)
            request = await PEER_FRAMES.read(connection)
        finally:
            self._strangers -= 1
        if not isinstance(request, Measure):
            return Sorry("say who you are first")
        if not is_signed(request, self._token_of(request), hello.nonce):
            self.spoofed += 1
            return Sorry("the proof is wrong: ask the coordinator for a new order")
        if self._waiting >= WAITING_MAX:
            return Sorry(f"{WAITING_MAX} nodes wait to measure already: come later")
        return request

    def _token_of(self, request: Measure) -> str:
        return probe_token(self._key, request.node_id)

    async def _measured(self, connection: socket.socket, request: Measure) -> None:
        """Serve one node until it has what it wants."""
        self.measurements += 1
        ready = sign(Ready(request.node_id, b""), self._token_of(request), request.nonce)
        await PEER_FRAMES.write(connection, ready)
        for _ in range(ECHOES_MAX):
            frame: PeerFrame = await PEER_FRAMES.read(connection)
            match frame:
                case Echo():
                    await PEER_FRAMES.write(connection, frame)
                case Bulk():
                    arrivals = await self._count(connection)
                    self._note(request.node_id, arrivals.rate_bytes_per_s)
                    return
                case Give() if self._gives:
                    await self._give(connection)
                    return
                case _:
                    raise FrameError("neither echo nor bulk")

    async def _count(self, connection: socket.socket) -> Arrivals:
        """Take bytes, say how many, as many as are allowed."""
        allowed_bytes = self._allowance.for_one()
        loop = asyncio.get_running_loop()
        arrivals = Arrivals(loop.time, loop.time())
        piece = bytearray(PIECE_BYTES)
        total = 0
        while total < allowed_bytes:
            count = await _received(connection, memoryview(piece)[: allowed_bytes - total])
            if not count:
                break
            total += count
            self._allowance.take(count)
            self.bytes_received += count
            if total - arrivals.bytes_total >= ACKNOWLEDGED_EVERY_BYTES:
                arrivals.note(total)
                if not PEER_FRAMES.write_now(connection, Received(total)):
                    break
        PEER_FRAMES.write_now(connection, Received(total))
        return arrivals

    def _note(self, node_id: str, rate_bytes_per_s: float) -> None:
        if rate_bytes_per_s <= 0:
            return
        self.seen.pop(node_id, None)
        self.seen[node_id] = rate_bytes_per_s
        while len(self.seen) > SEEN_MAX:
            self.seen.pop(next(iter(self.seen)))
        self.saw(node_id, rate_bytes_per_s)

    async def _give(self, connection: socket.socket) -> None:
        """Send for a while; what has not left by then never does."""
        left_bytes = min(self._to_give.for_one(), GIVE_BYTES_MAX)
        loop, piece = asyncio.get_running_loop(), bytes(PIECE_BYTES)
        try:
            async with asyncio.timeout(GIVE_S_MAX):
                while left_bytes > 0:
                    self._to_give.take(min(left_bytes, PIECE_BYTES))
                    await loop.sock_sendall(connection, piece[:left_bytes])
                    left_bytes -= PIECE_BYTES
        except OSError:
            abandon(connection)


async def _received(connection: socket.socket, room: memoryview) -> int:
    """Bytes that have come; 0 when there are no more, however that came about."""
    try:
        return await asyncio.get_running_loop().sock_recv_into(connection, room)
    except OSError:
        return 0
