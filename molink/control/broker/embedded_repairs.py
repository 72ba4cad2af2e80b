"""amqtt 0.12.1 with everything mended that a hostile or an unlucky client can reach.

What amqtt keeps: listeners, packets, the loop that reads them, retained messages, the last will.
What it does otherwise here (tests/control holds it to each):

- Whoever connects is checked before anything that belongs to that client id is touched; amqtt
  destroys the session of whoever has the id, then looks at the password.
- A client id is its user's name. A last will is allowed where a message would be.
- A client that falls silent is closed after 1.5 keep-alives, so its last will is sent.
- Retained messages go to who asks for them and may read them; amqtt sends them to everybody.
- Subscribers are found in a tree of levels, at once and without a pause in which somebody else
  could change it; amqtt walks through a dictionary that others change, and a join hangs.
- No session outlives its connection, no QoS 2.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from amqtt.adapters import BufferReader
from amqtt.broker import Broker
from amqtt.contexts import BrokerConfig
from amqtt.errors import AMQTTError
from amqtt.mqtt.connack import NOT_AUTHORIZED, ConnackPacket
from amqtt.mqtt.constants import QOS_1
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.session import Session

from molink.control.broker.embedded_handler import ClientHandler
from molink.control.broker.embedded_streams import BoundedReader, PromptWriter, read_connect
from molink.control.broker.permissions import (
    COORDINATOR_NAME,
    is_filter,
    is_topic,
    may_read,
    may_write,
)
from molink.control.broker.retained import Retained, RetainedMessages
from molink.control.broker.topic_tree import TopicTree

__all__ = ["RepairedBroker"]

_CONNECT_TIMEOUT_S = 5.0
"""From the connection to its first packet."""
_SWEEP_S = 0.25
"""How often silent clients are looked for."""
_FILTERS_MAX = 32
"""Of one node."""
_RETAINED_MAX = 32
"""Topics that one node may have retained messages under; it needs six."""
_REFUSED = 0x80


class RepairedBroker(Broker):  # type: ignore[misc]
    """`knows(username, password)` says who may connect."""

    def __init__(self, config: BrokerConfig, knows: Callable[[str, str], bool]) -> None:
        super().__init__(config)
        self._knows = knows
        self._tree = TopicTree()
        self._retained = RetainedMessages()
        self._handlers: type[ClientHandler] = type("Handler", (ClientHandler,), {"requests": self})

    @property
    def port(self) -> int:
        """On which it listens."""
        port: int = self._servers["default"].instance.sockets[0].getsockname()[1]
        return port

    async def end_client(self, client_id: str) -> None:
        """Close its connection, if any, without its last will."""
        await self._replace(client_id, DisconnectPacket())

    async def shutdown(self) -> None:
        """Let nobody in any more, and nobody's last will out."""
        for server in self._servers.values():
            server.instance.close()
        for client_id in list(self._sessions):
            await self.end_client(client_id)
        await super().shutdown()

    async def stream_connected(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, listener_name: str
    ) -> None:
        """A TCP connection."""
        await self._client_connected(listener_name, BoundedReader(reader), PromptWriter(writer))

    async def _initialize_client_session(
        self, reader: BoundedReader, writer: PromptWriter, remote_address: str, remote_port: int
    ) -> tuple[ClientHandler, Session]:
        """Read who it says it is; touch nothing."""
        try:
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                packet = await read_connect(reader, writer)
            buffer = BufferReader(packet)
            known: tuple[ClientHandler, Session] = await self._handlers.init_from_connect(
                buffer, writer, self.plugins_manager
            )
            return known
        except Exception as error:  # whatever a stranger's bytes make amqtt raise
            await writer.close()
            raise AMQTTError(str(error)) from None

    async def _handle_client_session(
        self,
        reader: BoundedReader,
        writer: PromptWriter,
        client_session: Session,
        handler: ClientHandler,
        server: Any,
        listener_name: str,
    ) -> None:
        """From a CONNECT that could be read to the end of the connection."""
        if not self._may_connect(client_session):
            writer.write(ConnackPacket.build(0, NOT_AUTHORIZED).to_bytes())
            await writer.close()
            return
        client_session.clean_session = True
        await self._replace(client_session.client_id, None)
        client_session.transitions.connect()
        handler.attach(client_session, reader, writer)
        self._sessions[client_session.client_id] = (client_session, handler)
        try:
            await handler.mqtt_connack_authorize(True)
            await handler.start()
            await handler.wait_disconnect()
        finally:
            await self._end_session(client_session, handler)

    async def _replace(self, client_id: str, goodbye: DisconnectPacket | None) -> None:
        """End whoever has that id. Between its return and the next `await` the id is free."""
        while client_id in self._sessions:
            handler = self._sessions[client_id][1]
            handler.end(goodbye)
            await handler.gone.wait()

    async def _end_session(self, session: Session, handler: ClientHandler) -> None:
        self._tree.remove_client(session.client_id)
        ended = asyncio.ensure_future(handler.wait_disconnect())
        handler.end()
        await asyncio.wait([ended])
        try:
            await self._handle_disconnect(session, handler, ended)
        finally:
            self._sessions.pop(session.client_id, None)
            handler.gone.set()

    def _may_connect(self, session: Session) -> bool:
        name = session.username or ""
        if session.client_id != name or not self._knows(name, session.password or ""):
            return False
        will_topic = session.will_topic or ""
        return not session.will_flag or (is_topic(will_topic) and may_write(name, will_topic))

    async def _session_monitor(self) -> None:
        """End who is lost."""
        while True:
            now_s = self._loop.time()
            for _, handler in list(self._sessions.values()):
                if handler.is_lost(now_s):
                    handler.end()
            await asyncio.sleep(_SWEEP_S)

    def take(self, session: Session, packet: PublishPacket) -> bool:
        """A message of a client; one that it may not write is dropped, as Mosquitto does."""
        topic, data, qos = packet.topic_name, packet.data, packet.qos
        if topic is None or data is None or not is_topic(topic) or qos not in (0, QOS_1):
            return False
        if may_write(session.username, topic):
            self._pass_on(topic, data, qos)
            if packet.retain_flag:
                self._retain(session.username, topic, data, qos)
        return True

    def _pass_on(self, topic: str, data: bytes, qos: int) -> None:
        for client_id, granted in self._tree.subscribers(topic).items():
            if may_read(client_id, topic) and client_id in self._sessions:
                self._sessions[client_id][1].send(topic, data, min(qos, granted), False)

    def _retain(self, username: str, topic: str, data: bytes, qos: int) -> None:
        limit = None if username == COORDINATOR_NAME else _RETAINED_MAX
        self._retained.put(Retained(topic, bytes(data), qos, username), limit)

    async def _broadcast_message(
        self, session: Session | None, topic: str, data: bytes, force_qos: int | None = None
    ) -> None:
        """A last will."""
        self._pass_on(topic, data, min(force_qos or 0, QOS_1))

    async def retain_message(
        self, source_session: Session | None, topic_name: str, data: bytes, qos: int | None = None
    ) -> None:
        """A last will that stays."""
        if source_session is not None:
            self._retain(source_session.username, topic_name, data, min(qos or 0, QOS_1))

    def subscribe(self, session: Session, topic_filter: str, qos: int) -> int:
        """Grant it, or not."""
        full = self._tree.filter_count(session.client_id) >= _FILTERS_MAX
        if not is_filter(topic_filter) or not may_read(session.username, topic_filter):
            return _REFUSED
        if full and session.username != COORDINATOR_NAME:
            return _REFUSED
        granted: int = min(qos, QOS_1)
        self._tree.add(session.client_id, topic_filter, granted)
        return granted

    def unsubscribe(self, session: Session, topic_filter: str) -> None:
        """No longer."""
        self._tree.remove(session.client_id, topic_filter)

    def send_retained(self, session: Session, topic_filter: str, qos: int) -> None:
        """All that match."""
        handler = self._sessions[session.client_id][1]
        for message in self._retained.matching(topic_filter):
            handler.send(message.topic, message.data, min(qos, message.qos), True)
