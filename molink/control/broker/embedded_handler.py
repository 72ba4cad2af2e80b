"""One client of the repaired amqtt: what it sends is acted on as it comes.

amqtt puts each message into a queue without limit, and what is still there when the client says
good-bye is lost although it was acknowledged. It also starts a task for each message to each
subscriber, which waits for an acknowledgement; but over one connection TCP repeats what was lost,
and sessions here end with their connection, so that acknowledgement decides nothing.
"""

import asyncio
from typing import Any, Protocol

from amqtt.mqtt.constants import QOS_1
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from molink.control.broker.embedded_streams import BoundedReader, PromptWriter

__all__ = ["ClientHandler", "Requests"]

_SILENCE_TO_KEEPALIVE = 1.5
"""MQTT-3.1.2-24."""
_SUBSCRIPTION_FAILED = 0x80


class Requests(Protocol):
    """What a client may ask of the broker."""

    def take(self, session: Session, packet: PublishPacket) -> bool:
        """Pass a message on; false when the client must go."""

    def subscribe(self, session: Session, topic_filter: str, qos: int) -> int:
        """The QoS granted, or 0x80."""

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        """No longer."""

    def send_retained(self, session: Session, topic_filter: str, qos: int) -> None:
        """What is retained under a filter that was just granted."""


class ClientHandler(BrokerProtocolHandler):  # type: ignore[misc]
    """With the faults of amqtt 0.12.1 mended that a client can reach."""

    requests: Requests

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._ended: asyncio.Future[DisconnectPacket | None] = self._loop.create_future()
        self.gone = asyncio.Event()
        """Its last will, if any, has been passed on, and its id is free."""

    def attach(self, session: Session, reader: BoundedReader, writer: PromptWriter) -> None:
        """Take over the keep-alive: amqtt's own notices a silent client and then does nothing."""
        self._silence_s = session.keep_alive * _SILENCE_TO_KEEPALIVE
        session.keep_alive = 0
        super().attach(session, reader, writer)

    def is_lost(self, now_s: float) -> bool:
        """Whether it has been silent for too long, or does not read what it is sent."""
        if self.reader is None or self.writer is None:
            return False
        silent: bool = 0 < self._silence_s < now_s - self.reader.heard_s
        return silent or bool(self.writer.is_behind())

    def end(self, goodbye: DisconnectPacket | None = None) -> None:
        """Let the connection end: with its last will, unless it has said good-bye."""
        if not self._ended.done():
            self._ended.set_result(goodbye)

    async def wait_disconnect(self) -> DisconnectPacket | None:
        """How it ended; amqtt forgets that when it happens before it is asked."""
        return await asyncio.shield(self._ended)

    async def handle_disconnect(self, disconnect: DisconnectPacket | None) -> None:
        """It has said good-bye, or (None) its connection is closed."""
        self.end(disconnect)

    async def handle_connect(self, connect: Any) -> None:
        """A second CONNECT ends the connection."""
        self.end()

    async def handle_publish(self, publish_packet: PublishPacket) -> None:
        """Pass it on, then acknowledge it."""
        if self.session is None or not self.requests.take(self.session, publish_packet):
            self.end()
        elif publish_packet.qos == QOS_1:
            await self._send_packet(PubackPacket.build(publish_packet.packet_id))

    async def handle_puback(self, puback: PubackPacket) -> None:
        """Nothing waits for it."""

    async def handle_subscribe(self, subscribe: Any) -> None:
        """Answer, then send what is retained."""
        session, asked = self.session, subscribe.payload.topics
        if session is None:
            return
        granted = [self.requests.subscribe(session, name, qos) for name, qos in asked]
        await self.mqtt_acknowledge_subscription(subscribe.variable_header.packet_id, granted)
        for (name, _), qos in zip(asked, granted, strict=True):
            if qos != _SUBSCRIPTION_FAILED:
                self.requests.send_retained(session, name, qos)

    async def handle_unsubscribe(self, unsubscribe: Any) -> None:
        """Answer when it is done."""
        if self.session is None:
            return
        for name in unsubscribe.payload.topics:
            self.requests.unsubscribe(self.session, name)
        await self.mqtt_acknowledge_unsubscription(unsubscribe.variable_header.packet_id)

    def send(self, topic: str, data: bytes, qos: int, retain: bool) -> None:
        """Write one message to it, now."""
        if self.session is None or self.writer is None:
            return
        packet_id = self.session.next_packet_id if qos else None
        packet = PublishPacket.build(topic, data, packet_id, False, qos, retain)
        self.writer.write(packet.to_bytes())
