"""How the repaired amqtt reads from a socket and writes to it, so that no client can hold it up.

amqtt allocates what a packet's header announces (256 MB) and waits for a client that does not read
before it closes the connection, which may be for ever.
"""

import asyncio

from amqtt.adapters import StreamReaderAdapter, StreamWriterAdapter
from amqtt.errors import MQTTError

__all__ = ["PACKET_BYTES_MAX", "BoundedReader", "PromptWriter", "read_connect"]

PACKET_BYTES_MAX = 2**20
"""As for Mosquitto."""
_CONNECT_BYTES_MAX = 2**16
"""Of the first packet, from whom nobody knows yet: names, a token and a last will of a few hundred
bytes."""
_CLOSE_S = 2.0
"""What was still to be sent gets so long."""
_HELD_BYTES_MAX = 8 * 2**20
"""What is held for a subscriber that does not read; then its connection is closed. Several times
the retained state of a thousand nodes, which a coordinator is sent at once."""
_REFUSED_MQTT5 = bytes((0x20, 3, 0, 0x84, 0))
_REFUSED_VERSION = bytes((0x20, 2, 0, 1))
"""CONNACK: unsupported protocol version, in MQTT 5's words and in those of all others."""


class BoundedReader(StreamReaderAdapter):  # type: ignore[misc]
    """Refuses packets that are too long; knows when the client was last heard."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__(reader)
        self._loop = asyncio.get_running_loop()
        self.heard_s = self._loop.time()

    async def read(self, n: int = -1) -> bytes:
        """Exactly `n` bytes. Raises ConnectionResetError when that is more than a packet may
        have."""
        if not 0 <= n <= PACKET_BYTES_MAX:
            raise ConnectionResetError("a packet is too long")
        data: bytes = await super().read(n)
        self.heard_s = self._loop.time()
        return data


class PromptWriter(StreamWriterAdapter):  # type: ignore[misc]
    """Never waits for the client."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        super().__init__(writer)
        self.is_closed: bool = False
        self._transport: asyncio.WriteTransport = writer.transport

    def is_behind(self) -> bool:
        """Whether the client has not read for so long that it should go."""
        return self._transport.get_write_buffer_size() > _HELD_BYTES_MAX

    def write(self, data: bytes) -> None:
        """Unless the connection is lost already, which its reader is about to notice."""
        if not self._transport.is_closing():
            super().write(data)

    async def drain(self) -> None:
        """The buffer has its own limit."""

    async def close(self) -> None:
        """Send what is left, for a moment."""
        if not self.is_closed:
            self.is_closed = True
            self._writer.close()
            asyncio.get_running_loop().call_later(_CLOSE_S, self._transport.abort)


async def read_connect(reader: BoundedReader, writer: PromptWriter) -> bytes:
    """The whole first packet, if it is a CONNECT of MQTT 3.1.1.

    amqtt reads a CONNECT of MQTT 5 as one of 3.1.1, takes its properties for lengths and waits for
    bytes that never come, so the version is looked at before. Raises MQTTError after it has told
    the client.
    """
    head = bytearray(await reader.read(2))
    while head[-1] & 0x80 and len(head) < 5:
        head += await reader.read(1)
    length = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(head[1:]))
    if head[0] != 0x10 or not 10 <= length <= _CONNECT_BYTES_MAX:
        raise MQTTError("the first packet is no CONNECT")
    body = await reader.read(length)
    if body[:7] != b"\x00\x04MQTT\x04":
        writer.write(_REFUSED_MQTT5 if body[6] == 5 else _REFUSED_VERSION)
        raise MQTTError("not MQTT 3.1.1")
    return bytes(head) + body
