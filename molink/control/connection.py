"""One connection of aiomqtt to the broker, from its start to its break."""

import asyncio
import contextlib
import math
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeVar, cast

import aiomqtt
from paho.mqtt.reasoncodes import ReasonCode
from pydantic import BaseModel

from molink.control.addresses import BrokerAddress
from molink.control.messages.topics import Topic
from molink.tasks import cancel

Answer = TypeVar("Answer")

Will = tuple[Topic[Any], str, BaseModel]
"""Topic, node id, message: what the broker publishes for us when our connection breaks."""

KEEPALIVE_S = 3
"""A broker gives up on a client after 1.5 of it: 4.5 s. paho looks once a second whether a ping is
due, so less would leave too little for a line that stalls."""
_TIMEOUT_S = 5.0
"""For any answer of the broker; by then the keep-alive has run out too."""
_PENDING_CALLS_QUIET = 1000
"""aiomqtt warns of more than ten messages under way; we publish a hundred at once again."""
_REFUSALS = {"protocol": 0x84, "client id": 0x85, "password": 0x86, "not authorised": 0x87}
"""Reason codes as paho gives them, for MQTT 3.1.1 too; all others may pass."""


class Refused(Exception):
    """Raised when the broker does not let us do what we cannot do without."""


class _Forwarder(asyncio.Queue[aiomqtt.Message]):
    """Queue for aiomqtt that hands on at once what is put into it, and stays empty.

    aiomqtt's iterator over messages starts a task for each, which a thousand nodes' heartbeats make
    expensive. So nothing ever waits there, and the iterator only ends when the connection breaks.
    """

    def __init__(self, arrived: Callable[[aiomqtt.Message], None]) -> None:
        super().__init__()
        self._arrived = arrived

    def put_nowait(self, item: aiomqtt.Message) -> None:
        self._arrived(item)


async def in_time(answer: Awaitable[Answer]) -> Answer:
    """What the broker answers to a call of aiomqtt. Raises MqttError when that takes too long.

    aiomqtt's own time-out is `asyncio.wait_for`, which in Python 3.11 swallows a cancellation that
    comes together with the answer: a task that was cancelled then would go on.
    """
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await answer
    except TimeoutError:
        raise aiomqtt.MqttError("the broker did not answer in time") from None


def is_refusal(error: Exception) -> bool:
    """Whether trying again is likely to be answered in the same way: we are not let in, or do not
    accept the broker's certificate."""
    if is_certificate_refused(error):
        return True
    code = error.rc if isinstance(error, aiomqtt.MqttCodeError) else None
    return isinstance(code, ReasonCode) and code.value in _REFUSALS.values()


def is_certificate_refused(error: Exception) -> bool:
    """Whether the broker shows another certificate than it must; aiomqtt hides the cause."""
    return isinstance(error.__context__, ssl.SSLCertVerificationError)


@contextlib.asynccontextmanager
async def connection(
    address: BrokerAddress,
    identity: tuple[str, str, str],
    will: Will | None,
    arrived: Callable[[aiomqtt.Message], None],
) -> AsyncIterator[tuple[aiomqtt.Client, "asyncio.Task[None]"]]:
    """A connection, and a task that raises MqttError when it breaks. Raises MqttError, OSError."""
    mqtt = _client(address, identity, will, arrived)
    await _enter(mqtt)
    mqtt.timeout = math.inf  # From here on `in_time` has ours.
    broken = asyncio.create_task(_until_broken(mqtt))
    try:
        yield mqtt, broken
    finally:
        await cancel(broken)
        with contextlib.suppress(aiomqtt.MqttError):  # it must not hide a cancellation
            await in_time(mqtt.__aexit__(None, None, None))


def _client(
    address: BrokerAddress,
    identity: tuple[str, str, str],
    will: Will | None,
    arrived: Callable[[aiomqtt.Message], None],
) -> aiomqtt.Client:
    username, password, client_id = identity
    mqtt = aiomqtt.Client(
        address.host,
        address.port,
        username=username,
        password=password,
        identifier=client_id,
        protocol=aiomqtt.ProtocolVersion.V311,
        clean_session=True,
        will=_aiomqtt_will(will),
        keepalive=KEEPALIVE_S,
        timeout=_TIMEOUT_S,
        tls_context=address.ssl_context(),
        queue_type=cast(Any, lambda maxsize: _Forwarder(arrived)),
    )
    mqtt.pending_calls_threshold = _PENDING_CALLS_QUIET
    return mqtt


async def _enter(mqtt: aiomqtt.Client) -> None:
    """Connect. aiomqtt does so in a thread; cancelled, that would leave a connection without
    owner."""
    entering = asyncio.ensure_future(mqtt.__aenter__())
    try:
        await asyncio.shield(entering)
    except asyncio.CancelledError:
        await asyncio.wait([entering])
        if entering.exception() is None:
            await mqtt.__aexit__(None, None, None)
        raise


async def _until_broken(mqtt: aiomqtt.Client) -> NoReturn:
    async for _ in mqtt.messages:
        raise AssertionError("the inbox keeps nothing")
    raise AssertionError("aiomqtt ends its iterator by raising")


def _aiomqtt_will(will: Will | None) -> aiomqtt.Will | None:
    if will is None:
        return None
    topic, node_id, message = will
    payload = message.model_dump_json().encode()
    return aiomqtt.Will(topic.of(node_id), payload, topic.qos, topic.retained)
