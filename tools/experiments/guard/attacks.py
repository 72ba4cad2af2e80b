"""What strangers and members send when they mean harm: floods, silence, and packets by hand."""

import asyncio
import math
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from molink.control.broker.packets import Kind, Message, encode, encode_publish, encode_text
from tools.experiments.guard.fake_node import FakeNode

__all__ = ["MqttByHand", "Proxy", "posts", "silent_connections", "still_open"]

KEEPALIVE_S = 60
POST_WITHIN_S = 120.0
READ_BYTES = 2**16
PIECE_BYTES = 2**16


@dataclass(slots=True)
class MqttByHand:
    """Connection of a member to the broker that no client library holds back."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    @asynccontextmanager
    async def open(cls, node: FakeNode) -> AsyncIterator["MqttByHand"]:
        """Connected as a member whose own session is not open. Raises OSError."""
        broker, answer = node.membership.broker, node.membership.answer
        tls = broker.ssl_context()
        reader, writer = await asyncio.open_connection(
            broker.host, broker.port, ssl=tls, server_hostname=broker.host if tls else None
        )
        texts = (node.node_id, answer.username, answer.password)
        head = encode_text("MQTT") + b"\x04\xc2" + KEEPALIVE_S.to_bytes(2, "big")
        writer.write(encode(Kind.CONNECT, head + b"".join(map(encode_text, texts))))
        if (await reader.readexactly(4))[3]:
            raise ConnectionRefusedError("the broker does not let a member in")
        try:
            yield cls(reader, writer)
        finally:
            writer.transport.abort()

    async def send(self, data: bytes) -> None:
        """Write, and wait until most of it has left. Raises OSError when the broker hangs up."""
        if self.writer.transport.is_closing():
            raise ConnectionResetError("the broker has hung up")
        self.writer.write(data)
        await self.writer.drain()

    def published(self, topic: str, payload: bytes, *, retain: bool = False) -> bytes:
        """The packet of a message with QoS 0."""
        return encode_publish(Message(topic, payload, 0, retain), 0)

    async def repeat(self, packet: bytes, mbps: float, for_s: float) -> int:
        """Send a packet again and again at this rate; how often, until the broker hung up."""
        sent, began_s = 0, time.monotonic()
        drop = asyncio.create_task(self._drop_answers())
        with suppress(OSError):
            while (elapsed_s := time.monotonic() - began_s) < for_s:
                due = int(elapsed_s * mbps * 1e6 / 8 / len(packet)) - sent
                if due > 0:
                    await self.send(packet * due)
                    sent += due
                await asyncio.sleep(0.01)
        drop.cancel()
        return sent

    async def _drop_answers(self) -> None:
        with suppress(OSError):
            while await self.reader.read(READ_BYTES):
                pass


async def posts(url: str, body: bytes, count: int, mbps: float = math.inf) -> dict[str, int]:
    """Post a body so many times at once, each to its last byte whatever is answered, over lines
    that carry `mbps` together; how often which status, or which error, came."""
    ways = (_post(url, body, mbps * 1e6 / 8 / count) for _ in range(count))
    return dict(Counter(await asyncio.gather(*ways)))


async def _post(url: str, body: bytes, bytes_per_s: float) -> str:
    place = urlsplit(url)
    head = (
        f"POST {place.path} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(POST_WITHIN_S):
            reader, writer = await asyncio.open_connection(place.hostname, place.port)
            writer.write(head.encode())
            with suppress(ConnectionError):
                await _paced(writer, body, bytes_per_s)
            status = await reader.readline()
            writer.close()
            return status.decode().split(" ")[1] if status else "nothing"
    except (OSError, TimeoutError) as error:
        return type(error).__name__


async def _paced(writer: asyncio.StreamWriter, body: bytes, bytes_per_s: float) -> None:
    began_s = time.monotonic()
    for at in range(0, len(body), PIECE_BYTES):
        await asyncio.sleep(began_s + at / bytes_per_s - time.monotonic())
        writer.write(body[at : at + PIECE_BYTES])
        await writer.drain()


@asynccontextmanager
async def silent_connections(
    host: str, port: int, count: int
) -> AsyncIterator[list[socket.socket]]:
    """Connections that say nothing, from many addresses of loopback where that is where they go."""
    opened: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    try:
        for number in range(count):
            connection = socket.socket()
            connection.setblocking(False)
            opened.append(connection)
            if host.startswith("127."):
                connection.bind((f"127.0.{number // 250 % 250}.{number % 250 + 1}", 0))
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(1.0):
                    await loop.sock_connect(connection, (host, port))
        yield opened
    finally:
        for connection in opened:
            connection.close()


def still_open(connections: list[socket.socket]) -> int:
    """How many the far end has not closed."""
    count = 0
    for connection in connections:
        try:
            connection.recv(1)
        except BlockingIOError:
            count += 1
        except OSError:
            continue
    return count


@dataclass(slots=True)
class Proxy:
    """Listener on the way: passes all bytes on and keeps them."""

    host: str
    port: int
    heard: bytearray = field(default_factory=bytearray)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[int]:
        """Listen on a port of loopback, while the block runs."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
            await asyncio.gather(self._pass(reader, far_writer), self._pass(far_reader, writer))

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError):
            while data := await reader.read(READ_BYTES):
                self.heard += data
                writer.write(data)
                await writer.drain()
        writer.close()
