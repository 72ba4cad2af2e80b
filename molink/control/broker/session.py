"""One client's connection to the embedded broker.

A packet is acted on at once, in the callback that brings its bytes: no task, no queue, no await, so
nothing changes while a message is passed on. Writing never waits for the client; one that does not
read is cut off when too much is held for it.
"""

import asyncio
import logging
import struct
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle
from typing import cast

from molink.control.broker.packets import (
    REFUSED,
    Connect,
    Kind,
    Message,
    Packet,
    PacketError,
    UnsupportedVersionError,
    encode,
    encode_publish,
    read_connect,
    read_filters,
    read_publish,
    take_packet,
)
from molink.control.broker.permissions import is_topic, may_write
from molink.control.broker.routing import Router

__all__ = ["CONNECTIONS_MAX", "CONNECT_TIMEOUT_S", "Session"]

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 5000
"""Further ones are closed at once."""
CONNECT_TIMEOUT_S = 5.0
"""From the connection to the end of its first packet."""
_CONNECT_BYTES_MAX = 2**16
"""Of the first packet, from an unknown client: names, a token and a last will of a few hundred
bytes."""
_PACKET_BYTES_MAX = 2**20
"""As for Mosquitto."""
_SILENCE_TO_KEEPALIVE = 1.5
"""MQTT-3.1.2-24."""
_HELD_BYTES_MAX = 8 * 2**20
"""What is held for a subscriber that does not read; then its connection is closed. Several times
the retained state of a thousand nodes, which a coordinator is sent at once."""
_CLOSE_S = 2.0
"""How long what was still to be sent may take."""
_ACCEPTED, _NOT_AUTHORIZED = b"\0\0", b"\0\x05"
"""Bodies of a CONNACK."""


class Session(asyncio.Protocol):
    """Connection of one client, from its first byte to its last.

    `knows(username, password)` is whether they are a client's; `sessions` are all that are open.
    """

    def __init__(
        self, router: Router, knows: Callable[[str, str], bool], sessions: "set[Session]"
    ) -> None:
        self._router, self._knows, self._sessions = router, knows, sessions
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._name = ""
        """Of the client; empty until it is connected."""
        self._will: Message | None = None
        self._packet_ids = cycle(range(1, 2**16))
        self._last_data_s = self._loop.time()
        self._silence_max_s = CONNECT_TIMEOUT_S
        """0: as long as it likes."""
        self._ended = False
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection (`asyncio.Protocol`)."""
        self._transport = cast(asyncio.Transport, transport)
        self._sessions.add(self)
        if len(self._sessions) > CONNECTIONS_MAX:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish when the connection is closed (`asyncio.Protocol`)."""
        self.end()
        self._sessions.discard(self)
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Act on the packets that are complete."""
        self._buffer += data
        if self._name:
            self._last_data_s = self._loop.time()
        try:
            while not self._ended and (packet := self._next_packet()) is not None:
                self._handle(packet)
        except PacketError as error:
            log.debug("%s: %s", self._name or "an unknown MQTT client", error)
            self.end()

    def send(self, message: Message) -> None:
        """Send one message to the client."""
        packet_id = next(self._packet_ids) if message.qos else 0
        self._write(encode_publish(message, packet_id))

    def end(self, *, with_will: bool = True) -> None:
        """Close the connection, by default with the client's last will."""
        if self._ended:
            return
        self._ended = True
        if self._name:
            self._router.remove_client(self._name)
        if with_will and self._will is not None:
            self._router.publish(self._name, self._will)
        self._transport.close()
        timer = self._loop.call_later(_CLOSE_S, self._transport.abort)
        self.closed.add_done_callback(lambda _: timer.cancel())

    def end_if_lost(self) -> None:
        """End it if the client was silent for too long, or does not read what it is sent."""
        silent = 0 < self._silence_max_s < self._loop.time() - self._last_data_s
        if silent or self._transport.get_write_buffer_size() > _HELD_BYTES_MAX:
            self.end()

    def _write(self, data: bytes) -> None:
        """Unless the connection is lost already, as `connection_lost` is about to tell."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def _next_packet(self) -> Packet | None:
        if self._name:
            return take_packet(self._buffer, _PACKET_BYTES_MAX)
        if self._buffer and self._buffer[0] != Kind.CONNECT << 4:
            raise PacketError("the first packet is no CONNECT")
        return take_packet(self._buffer, _CONNECT_BYTES_MAX)

    def _handle(self, packet: Packet) -> None:
        match packet.kind:
            case Kind.CONNECT if not self._name:
                self._connect(packet)
            case Kind.PUBLISH:
                self._publish(packet)
            case Kind.SUBSCRIBE:
                self._subscribe(packet)
            case Kind.UNSUBSCRIBE:
                packet_id, filters = read_filters(packet)
                for topic_filter, _ in filters:
                    self._router.unsubscribe(self._name, topic_filter)
                self._write(encode(Kind.UNSUBACK, struct.pack("!H", packet_id)))
            case Kind.PINGREQ:
                self._write(encode(Kind.PINGRESP))
            case Kind.PUBACK:
                pass
            case Kind.DISCONNECT:
                self.end(with_will=False)
            case _:
                raise PacketError(f"a packet of type {packet.kind} is not expected")

    def _connect(self, packet: Packet) -> None:
        try:
            connect = read_connect(packet)
        except UnsupportedVersionError as error:
            self._write(error.answer)
            raise
        if not self._may_connect(connect):
            self._write(encode(Kind.CONNACK, _NOT_AUTHORIZED))
            raise PacketError("the client is not authorised")
        self._router.add_client(connect.username, self)
        self._name, self._will = connect.username, connect.will
        self._last_data_s = self._loop.time()
        self._silence_max_s = connect.keepalive_s * _SILENCE_TO_KEEPALIVE
        self._write(encode(Kind.CONNACK, _ACCEPTED))

    def _may_connect(self, connect: Connect) -> bool:
        """Whether the password is right, and the last will is one that the client may write.

        Its id must be its user's name: with another's it would end the other's connection.
        """
        name, will = connect.username, connect.will
        if connect.client_id != name or not self._knows(name, connect.password):
            return False
        return will is None or (is_topic(will.topic) and may_write(name, will.topic))

    def _publish(self, packet: Packet) -> None:
        message, packet_id = read_publish(packet)
        if not is_topic(message.topic):
            raise PacketError("a message has no valid topic")
        self._router.publish(self._name, message)
        if packet_id:
            self._write(encode(Kind.PUBACK, struct.pack("!H", packet_id)))

    def _subscribe(self, packet: Packet) -> None:
        packet_id, filters = read_filters(packet)
        granted = [self._router.subscribe(self._name, *one) for one in filters]
        self._write(encode(Kind.SUBACK, struct.pack("!H", packet_id) + bytes(granted)))
        for (topic_filter, _), qos in zip(filters, granted, strict=True):
            if qos != REFUSED:
                for message in self._router.retained(topic_filter):
                    self.send(replace(message, qos=min(message.qos, qos)))
