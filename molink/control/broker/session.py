"""One client's connection to the embedded broker.

A packet is acted on at once, in the callback that brings its bytes: no task, no queue, no await, so
nothing changes while a message is passed on. Writing never waits for the client; one that does not
read is cut off when too much is held for it. A node that says too much is not read for a while, so
that TCP holds it back; others are served meanwhile.
"""

import asyncio
import logging
import struct
from collections import Counter
from collections.abc import Callable, Iterator
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
from molink.control.broker.permissions import COORDINATOR_NAME, is_topic, may_write
from molink.control.broker.routing import Router
from molink.households import household_of
from molink.token_bucket import TokenBucket

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 5000
"""Further ones are closed at once."""
STRANGERS_MAX, STRANGERS_PER_ADDRESS_MAX = 1000, 250
"""Connections whose client is not known yet, in all and from one address; further ones are closed
at once. Behind one address a school's PCs may come back together, each for milliseconds."""
CONNECT_TIMEOUT_S = 5.0
"""From the connection to the end of its first packet."""
_CONNECT_BYTES_MAX = 2**16
"""Largest first packet of an unknown client: names, a token and a last will of a few hundred
bytes."""
_PACKET_BYTES_MAX, _NODE_PACKET_BYTES_MAX = 2**20, 2**16
"""Largest packets of the coordinator, which sends the config.json of its model, and of a node,
whose largest, a report of 64 paths, is 30 KB."""
_MESSAGES_PER_S, _MESSAGES_BURST = 100.0, 500.0
_BYTES_PER_S, _BYTES_BURST = 2.0**18, 2.0**20
"""Packets and bytes that are read of one node: ten times what the coordinator lets it say
(`control.inbox.NODE_BUDGET`), which shuts it out for that. This protects the broker until then: a
packet costs it a tenth of a millisecond."""
_SILENCE_TO_KEEPALIVE = 1.5
"""MQTT-3.1.2-24."""
_HELD_BYTES_MAX = 8 * 2**20
"""What is held for a subscriber that does not read; then its connection is closed. Several times
the retained state of a thousand nodes, which a coordinator is sent at once."""
_CLOSE_S = 2.0
"""How long what was still to be sent may take."""
_ACCEPTED, _NOT_AUTHORIZED = b"\0\0", b"\0\x05"
"""Bodies of a CONNACK."""


class Sessions:
    """All open connections of a broker; among them strangers, whose client is not known yet."""

    def __init__(self) -> None:
        self._open: set[Session] = set()
        self._strangers: dict[object, str] = {}
        """Each with its address; those whose TLS is not ready yet are among them."""
        self._by_address: Counter[str] = Counter()

    def __iter__(self) -> "Iterator[Session]":
        return iter(list(self._open))

    @property
    def strangers(self) -> list[object]:
        """Connections whose client is not known."""
        return list(self._strangers)

    def add(self, session: "Session") -> bool:
        """Add a connection, of a stranger; whether there is room for it."""
        self._open.add(session)
        has_room = self.add_stranger(session, session.address)
        return has_room and len(self._open) <= CONNECTIONS_MAX

    def add_stranger(self, stranger: object, address: str) -> bool:
        """Count a connection whose client is not known; whether there is room for it."""
        self._strangers[stranger] = address
        self._by_address[address] += 1
        return (
            len(self._strangers) <= STRANGERS_MAX
            and self._by_address[address] <= STRANGERS_PER_ADDRESS_MAX
        )

    def remove_stranger(self, stranger: object) -> None:
        """Count it no more: it has gone, or its client is a user."""
        address = self._strangers.pop(stranger, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def remove(self, session: "Session") -> None:
        """Forget a connection that is closed."""
        self.remove_stranger(session)
        self._open.discard(session)


class Session(asyncio.Protocol):
    """Connection of one client, from its first byte to its last.

    `knows(username, password)` is whether they are a client's; `sessions` are all that are open.
    """

    def __init__(
        self, router: Router, knows: Callable[[str, str], bool], sessions: "Sessions"
    ) -> None:
        self._router, self._knows, self._sessions = router, knows, sessions
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._name = ""
        """Name of the client; empty until it is connected."""
        self._will: Message | None = None
        self._packet_ids = cycle(range(1, 2**16))
        self._last_data_s = self._loop.time()
        self._silence_max_s = CONNECT_TIMEOUT_S
        """0: as long as it likes."""
        self._ended = self._paused = False
        self._budgets = (
            TokenBucket(_MESSAGES_PER_S, _MESSAGES_BURST),
            TokenBucket(_BYTES_PER_S, _BYTES_BURST),
        )
        self.address = ""
        """Address of the client's PC, or of its router."""
        self.closed: asyncio.Future[None] = self._loop.create_future()
        """Done when the connection is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve a connection (`asyncio.Protocol`)."""
        self._transport = cast(asyncio.Transport, transport)
        self.address = household_of((self._transport.get_extra_info("peername") or (None,))[0])
        if not self._sessions.add(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Finish when the connection is closed (`asyncio.Protocol`)."""
        self.end()
        self._sessions.remove(self)
        self.closed.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Act on the packets that are complete."""
        self._buffer += data
        if self._name:
            self._last_data_s = self._loop.time()
        self._act()

    def _act(self) -> None:
        try:
            while not (self._ended or self._paused) and (packet := self._next_packet()):
                self._spend(1, len(packet.body))
                self._handle(packet)
        except PacketError as error:
            log.debug("%s: %s", self._name or "an unknown MQTT client", error)
            self.end()

    def _spend(self, messages: int, size: int) -> None:
        """Take it from a node's budget; read no more of it until that allows."""
        if self._name in ("", COORDINATOR_NAME):
            return
        now_s = self._loop.time()
        for budget, amount in zip(self._budgets, (messages, size), strict=True):
            budget.spend(amount, now_s)
        wait_s = max(budget.wait_s(now_s) for budget in self._budgets)
        if wait_s > 0 and not self._paused:
            self._paused = True
            self._transport.pause_reading()
            self._loop.call_later(wait_s, self._resume)

    def _resume(self) -> None:
        """Go on with what came before; it was we who did not hear."""
        self._paused = False
        self.excuse_silence()
        self._act()
        if not (self._paused or self._ended):
            self._transport.resume_reading()

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

    def excuse_silence(self) -> None:
        """Count it from now on: until now nothing was read."""
        self._last_data_s = self._loop.time()

    def end_if_lost(self) -> None:
        """End it if the client was silent for too long, or does not read what it is sent."""
        silent = 0 < self._silence_max_s < self._loop.time() - self._last_data_s
        if (
            silent and not self._paused
        ) or self._transport.get_write_buffer_size() > _HELD_BYTES_MAX:
            self.end()

    def _write(self, data: bytes) -> None:
        """Unless the connection is lost already, as `connection_lost` is about to tell."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def _next_packet(self) -> Packet | None:
        if self._name:
            is_node = self._name != COORDINATOR_NAME
            return take_packet(
                self._buffer, _NODE_PACKET_BYTES_MAX if is_node else _PACKET_BYTES_MAX
            )
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
        self._sessions.remove_stranger(self)
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
                    self._spend(1, 0)
