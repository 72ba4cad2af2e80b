"""Lets others measure the path here, and nothing else: bounded in time, bytes and number.

One measurement at a time, because two would each find half of the line; the next ones wait for
their slot, a few of them. Each has so many seconds and bytes, and all together draw on an allowance
that fills slowly: a stolen token cannot keep a volunteer's line busy. Bytes are counted and dropped
as they come, and how fast each node's came is kept: that is what it can send here, whatever it says
itself. Only the coordinator's own service also sends.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.errors import FrameError
from molink.transport.peer.measuring import ByteArrivals
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
    probe_token,
)
from molink.transport.preamble import PreambleRefusedError, is_signed, sign
from molink.transport.sockets import Listener, abandon

ECHOES_MAX = 32
"""Most echoes, more than a median needs."""

MEASURE_S_MAX = 6.0
"""Longest measurement: echoes over a slow line, a second of bytes, and the rest of its window."""

GIVE_S_MAX = 1.5
"""Seconds of one measurement of a download: a second, and the start of the connection."""

RATES_MAX = 64
"""Nodes whose rate is kept, the latest: five times as many as one round brings."""

WAITING_MAX = 16
"""Requests that wait for their slot; the last waits some half a minute, later ones come again."""

WAITING_PER_NODE_MAX = 4
"""Waiting requests of one node, which tries the addresses of a peer side by side: at home, at the
router, and as the coordinator sees it."""

UNIDENTIFIED_MAX = 32
"""Connections that have not proven themselves, each for five seconds at most; the next one ends the
oldest."""

ALLOWANCE_BYTES = 8 * BULK_BYTES_MAX
"""A round in which eight neighbours measure at once at full length."""

ALLOWANCE_BYTES_PER_S = 256 * 1024
"""2 Mbps on average, at worst: a home's downlink does not notice."""

PIECE_BYTES = 64 * 1024

ACKNOWLEDGED_EVERY_BYTES = 16 * 1024
"""A report of so many bytes: fine enough for a line of 1 Mbps (eight a second), and 1,024 small
frames for the largest measurement."""


@dataclass(slots=True)
class Allowance:
    """Token bucket of the bytes that measurements may still take of a line, all together."""

    clock: Callable[[], float]
    left_bytes: float = ALLOWANCE_BYTES
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._filled_at = self.clock()

    def next_bytes_max(self) -> int:
        """Most bytes of the next measurement."""
        now = self.clock()
        self.left_bytes += (now - self._filled_at) * ALLOWANCE_BYTES_PER_S
        self.left_bytes = min(self.left_bytes, ALLOWANCE_BYTES)
        self._filled_at = now
        return min(int(self.left_bytes), BULK_BYTES_MAX)

    def take(self, size_bytes: int) -> None:
        """Count bytes that have passed."""
        self.left_bytes -= size_bytes


class PeerService:
    """Measurement service of one node, from `start` to `stop`."""

    def __init__(
        self,
        key: str,
        host: str = "0.0.0.0",
        port: int = 0,
        clock: Callable[[], float] | None = None,
        *,
        allow_download: bool = False,
        on_rate: Callable[[str, float], None] = lambda node_id, rate: None,
    ) -> None:
        """`key` is this node's `probe_key`; `allow_download`: whether others may measure theirs;
        `on_rate` is called with a node and the bytes per second that it has sent here."""
        self._key, self._where, self._clock = key, (host, port), clock
        self._allow_download, self._on_rate = allow_download, on_rate
        connections_max = UNIDENTIFIED_MAX + WAITING_MAX + 1
        self._listener = Listener(self._serve, connections_max, UNIDENTIFIED_MAX)
        self._slot = asyncio.Semaphore(1)
        self._waiting: Counter[str] = Counter()
        self.rates: dict[str, float] = {}
        """Node to the bytes per second that it has sent here, by this side's count."""

    async def start(self) -> None:
        """Raises UserError when it cannot listen there."""
        clock = self._clock or asyncio.get_running_loop().time
        self._receive_allowance, self._give_allowance = Allowance(clock), Allowance(clock)
        self._listener.open(*self._where)

    async def stop(self) -> None:
        """End it with all connections."""
        await self._listener.close()

    @property
    def address(self) -> str:
        """host:port that it listens at."""
        return self._listener.address

    @property
    def port(self) -> int:
        """Number of the port that it listens at."""
        return self._listener.port

    async def _serve(self, connection: socket.socket) -> bool:
        try:
            request = await self._handshake(connection)
        except PreambleRefusedError as error:
            PEER_FRAMES.write_now(connection, Reject(str(error)))
            return False
        self._waiting[request.node_id] += 1
        try:
            await self._slot.acquire()
        finally:
            self._waiting[request.node_id] -= 1
            self._waiting += Counter()  # Without those that have none.
        try:
            async with asyncio.timeout(MEASURE_S_MAX):
                await self._measured(connection, request)
        finally:
            self._slot.release()
        return False

    async def _handshake(self, connection: socket.socket) -> Measure:
        """The node's request. Raises RefusedError when it may not measure, or not now."""
        request, nonce = await PEER_FRAMES.challenge(connection)
        if not isinstance(request, Measure):
            raise PreambleRefusedError("say who you are first")
        if not is_signed(request, self._token_of(request), nonce):
            raise PreambleRefusedError("the proof is wrong: ask the coordinator for a new order")
        if self._waiting.total() >= WAITING_MAX:
            raise PreambleRefusedError(f"{WAITING_MAX} nodes wait to measure already: come later")
        if self._waiting[request.node_id] >= WAITING_PER_NODE_MAX:
            raise PreambleRefusedError("you wait to measure already: come later")
        self._listener.identified()
        return request

    def _token_of(self, request: Measure) -> str:
        return probe_token(self._key, request.node_id)

    async def _measured(self, connection: socket.socket, request: Measure) -> None:
        """Serve one node until it has what it wants."""
        ready = sign(Ready(request.node_id, b""), self._token_of(request), request.nonce)
        await PEER_FRAMES.write(connection, ready)
        for _ in range(ECHOES_MAX):
            match await PEER_FRAMES.read(connection):
                case Echo() as echo:
                    await PEER_FRAMES.write(connection, echo)
                case Bulk():
                    arrivals = await self._count(connection)
                    self._note_rate(request.node_id, arrivals.rate_bytes_per_s)
                    return
                case Give() if self._allow_download:
                    await self._give(connection)
                    return
                case _:
                    raise FrameError("neither echo nor bulk")

    async def _count(self, connection: socket.socket) -> ByteArrivals:
        """Take bytes, report how many, as many as are allowed."""
        allowed_bytes = self._receive_allowance.next_bytes_max()
        loop = asyncio.get_running_loop()
        arrivals = ByteArrivals(loop.time, loop.time())
        piece = bytearray(PIECE_BYTES)
        total = 0
        while total < allowed_bytes:
            count = await _received(connection, memoryview(piece)[: allowed_bytes - total])
            if not count:
                break
            total += count
            self._receive_allowance.take(count)
            if total - arrivals.bytes_total >= ACKNOWLEDGED_EVERY_BYTES:
                arrivals.note(total)
                if not PEER_FRAMES.write_now(connection, ReceivedBytes(total)):
                    break
        PEER_FRAMES.write_now(connection, ReceivedBytes(total))
        return arrivals

    def _note_rate(self, node_id: str, rate_bytes_per_s: float) -> None:
        if rate_bytes_per_s <= 0:
            return
        self.rates.pop(node_id, None)
        self.rates[node_id] = rate_bytes_per_s
        while len(self.rates) > RATES_MAX:
            self.rates.pop(next(iter(self.rates)))
        self._on_rate(node_id, rate_bytes_per_s)

    async def _give(self, connection: socket.socket) -> None:
        """Send for a while; what has not left by then never does."""
        left_bytes = min(self._give_allowance.next_bytes_max(), GIVE_BYTES_MAX)
        loop, piece = asyncio.get_running_loop(), bytes(PIECE_BYTES)
        try:
            async with asyncio.timeout(GIVE_S_MAX):
                while left_bytes > 0:
                    self._give_allowance.take(min(left_bytes, PIECE_BYTES))
                    await loop.sock_sendall(connection, piece[:left_bytes])
                    left_bytes -= PIECE_BYTES
        except OSError:
            abandon(connection)


async def _received(connection: socket.socket, buffer: memoryview) -> int:
    """Bytes that have come; 0 when there are no more, however that came about."""
    try:
        return await asyncio.get_running_loop().sock_recv_into(connection, buffer)
    except OSError:
        return 0
