"""A client of the broker that reconnects whenever its connection breaks.

The broker may be restarted, forget everything (the embedded one does) or be out of reach for an
hour; a user of this class notices a pause. It reconnects for ever, subscribes again, and publishes
the last message of every retained topic again: the control plane is made of states, and a state
that is published twice does no harm. What is not retained is lost while there is no connection.

One thing is not waited out: a broker that refuses us. A node that has been removed should show that
to its owner, so after `REFUSALS_MAX` refusals in a row everything here raises ControlError.

MQTT 3.1.1 with clean sessions, which every broker can. A last will that the broker sends for a
client that was killed comes at once; for one that froze see `heartbeats.py`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random, SystemRandom
from typing import TypeVar

import aiomqtt
from pydantic import BaseModel

from molink.control.addresses import BrokerAddress
from molink.control.backoff import Backoff
from molink.control.connection import (
    Refused,
    Will,
    connection,
    in_time,
    is_certificate_refused,
    is_refusal,
)
from molink.control.inbox import Inbox
from molink.control.messages.topics import Received, Topic
from molink.errors import ControlError
from molink.tasks import task_group

log = logging.getLogger(__name__)

Message = TypeVar("Message", bound=BaseModel)

REFUSALS_MAX = 3
"""A coordinator that has just started may not have registered all its nodes with its broker yet."""
RECONNECT_FIRST_S, RECONNECT_LONGEST_S = 0.5, 10.0
_REPUBLISHED_AT_ONCE = 100
_LASTED_S = 10.0
"""A connection that broke sooner counts as a failed attempt: two nodes with one id, a copied data
directory, push each other out, and should do so ever more slowly."""


class ControlClient:
    """Client of the control plane, connected and reconnected by `open`."""

    def __init__(self, subscriptions: Sequence[str], inbox: Inbox) -> None:
        self._subscriptions = subscriptions
        self._retained: dict[str, tuple[bytes, int]] = {}
        """Topic to the last retained message that was published, with its QoS."""
        self.inbox = inbox
        """What has arrived and waits."""
        self._settled = asyncio.Event()
        """Connected, or refused for good."""
        self._connection: aiomqtt.Client | None = None
        self._failure: ControlError | None = None
        self.connection_count = 0
        """How often it has connected."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        address: BrokerAddress,
        username: str,
        password: str,
        *,
        client_id: str | None = None,
        will: Will | None = None,
        subscriptions: Sequence[str] = (),
        inbox: Inbox | None = None,
        random: Random | None = None,
    ) -> AsyncIterator["ControlClient"]:
        """Connected when entered, however long that takes; closed without its last will when left.

        `client_id` is the node's own where several share a user (`ExternalBroker`); else the
        username. `subscriptions` are topic filters; without an `inbox` senders have no budget.
        Raises ControlError when the broker refuses the credentials or a subscription; so does every
        later call once it does.
        """
        client = cls(subscriptions, inbox or Inbox())
        identity = (username, password, client_id or username)
        backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_LONGEST_S, random or SystemRandom())
        async with task_group() as group:
            reconnecting = group.create_task(client._reconnect(address, identity, will, backoff))
            try:
                await client.until_connected()
                yield client
            finally:
                reconnecting.cancel()

    @property
    def connected(self) -> bool:
        """Whether what is published now goes out now."""
        return self._connection is not None

    async def until_connected(self) -> None:
        """Wait for a connection. Raises ControlError when there will be none."""
        await self._settled.wait()
        if self._failure is not None:
            raise self._failure

    async def publish(self, topic: Topic[Message], node_id: str, message: Message) -> None:
        """Send it, and wait until the broker has it (QoS 1).

        Without a connection a retained message is sent once there is one, any other is lost. Raises
        ControlError once the broker refuses us.
        """
        assert isinstance(message, topic.message), (topic.path, type(message))
        await self._send(topic, node_id, message.model_dump_json().encode())

    async def clear(self, topic: Topic[Message], node_id: str) -> None:
        """Remove the retained message of a topic, if there is a connection; subscribers are not
        told."""
        assert topic.retained, topic.path
        await self._send(topic, node_id, b"")
        self._retained.pop(topic.of(node_id), None)

    async def messages(self) -> AsyncIterator[Received]:
        """All messages, across reconnects; for one reader. Raises ControlError once refused."""
        while True:
            for received in self.inbox.read():
                yield received
            if self._failure is not None:
                raise self._failure
            await self._request_missed()
            await self.inbox.changed()

    async def _send(self, topic: Topic[Message], node_id: str, payload: bytes) -> None:
        path = topic.of(node_id)
        if topic.retained:
            self._retained[path] = (payload, topic.qos)
        if self._failure is not None:
            raise self._failure
        if self._connection is None:
            return
        try:
            await in_time(self._connection.publish(path, payload, topic.qos, topic.retained))
        except aiomqtt.MqttError as error:
            log.debug("not sent now: %s: %s", path, error)

    async def _request_missed(self) -> None:
        """Have the broker send retained messages once more, after some were dropped."""
        if self._connection is None or not self.inbox.has_missed():
            return
        try:
            await self._subscribe(self._connection)
        except aiomqtt.MqttError as error:
            log.debug("could not request again: %s", error)

    async def _reconnect(
        self,
        address: BrokerAddress,
        identity: tuple[str, str, str],
        will: Will | None,
        backoff: Backoff,
    ) -> None:
        """Connect, and connect again after each break, until the broker refuses us."""
        refusals = 0
        while self._failure is None:
            try:
                async with connection(address, identity, will, self._arrived) as (mqtt, broken):
                    refusals = 0
                    await self._serve(mqtt, broken, backoff)
            except (aiomqtt.MqttError, OSError) as error:
                refusals = refusals + 1 if is_refusal(error) else 0
                level = logging.WARNING if backoff.failures == 0 else logging.DEBUG
                log.log(level, "no connection to the broker at %s: %s", address, error)
                if refusals >= REFUSALS_MAX:
                    self._fail(_refusal(address, identity[0], error))
            except Refused as refusal:
                self._fail(str(refusal))
            except Exception as error:  # a bug of ours: without this everyone would wait for ever
                log.error("connecting to the broker failed", exc_info=error)
                self._fail(f"The connection to the broker at {address} failed: {error!r}.")
            finally:
                self._connection = None
                if self._failure is None:
                    self._settled.clear()
            if self._failure is None:
                await asyncio.sleep(backoff.next_s())

    async def _serve(
        self, mqtt: aiomqtt.Client, broken: "asyncio.Task[None]", backoff: Backoff
    ) -> None:
        """Use a connection until it breaks."""
        started_s = asyncio.get_running_loop().time()
        await self._subscribe(mqtt)
        self._connection = mqtt
        await self._republish(mqtt)
        self.connection_count += 1
        self._settled.set()
        log.info("connected to the broker")
        try:
            await broken
        finally:
            if asyncio.get_running_loop().time() - started_s > _LASTED_S:
                backoff.reset()

    async def _subscribe(self, mqtt: aiomqtt.Client) -> None:
        for topic_filter in self._subscriptions:
            (code,) = await in_time(mqtt.subscribe(topic_filter, qos=1))
            if getattr(code, "value", code) >= 0x80:
                raise Refused(f"The broker does not let us read {topic_filter}.")

    async def _republish(self, mqtt: aiomqtt.Client) -> None:
        """Publish every retained message again, as it is when its turn comes: it may be removed
        meanwhile."""
        paths = list(self._retained)
        for start in range(0, len(paths), _REPUBLISHED_AT_ONCE):
            chunk = paths[start : start + _REPUBLISHED_AT_ONCE]
            messages = [(path, *self._retained[path]) for path in chunk if path in self._retained]
            await asyncio.gather(*(in_time(mqtt.publish(*one, retain=True)) for one in messages))

    def _arrived(self, message: aiomqtt.Message) -> None:
        self.inbox.put(str(message.topic), message.payload, retained=bool(message.retain))

    def _fail(self, sentence: str) -> None:
        self._failure = ControlError(sentence)
        self._settled.set()
        self.inbox.wake()


def _refusal(address: BrokerAddress, username: str, error: Exception) -> str:
    if is_certificate_refused(error):
        return (
            f"The broker at {address} shows another certificate than the coordinator has told: "
            "somebody else answers there, or its operator has changed it."
        )
    return f"The broker at {address} does not let {username} in: {error}."
