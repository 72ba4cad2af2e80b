import asyncio
from random import Random

import pytest

from molink.control.certificate import own_certificate
from molink.control.client import ControlClient
from molink.control.messages.payloads import CoordinatorPresence, NodeHealth, NodeState, Presence
from molink.wire.protocol import PROTOCOL_VERSION
from tests.control.brokers import KINDS, broker_of
from tests.control.raw_client import RawClient

PASSWORD = "a-random-token-of-a-node"


def presence(online=True, name="pc"):
    return Presence(
        name=name,
        incarnation="12345678",
        started_unix_s=1.0,
        version="1",
        protocol=PROTOCOL_VERSION,
        online=online,
    )


def health():
    return NodeHealth(incarnation="12345678", state=NodeState.STANDBY, uptime_s=1.0)


def coordinator_presence(session="session"):
    return CoordinatorPresence(online=True, session=session)


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(autouse=True)
def quick_reconnects(monkeypatch):
    monkeypatch.setattr("molink.control.client.RECONNECT_FIRST_S", 0.05)


@pytest.fixture
async def broker(kind, tmp_path):
    """Running, of either kind, with nodes n1, n2 and n10."""
    one = broker_of(kind, tmp_path)
    for name in ("n1", "n2", "n10"):
        await one.allow(name, PASSWORD)
    await one.start()
    yield one
    await one.stop()


@pytest.fixture
async def raw(broker):
    """Connects raw clients and cuts them at the end."""
    clients = []

    async def connect(username, password=None, **more):
        if password is None:
            password = broker.coordinator.password if username == "coordinator" else PASSWORD
        clients.append(await RawClient.connect(broker.address, username, password, **more))
        return clients[-1]

    yield connect
    for client in clients:
        client.die()


@pytest.fixture
async def coordinator(raw):
    """A raw client that reads everything."""
    client = await raw("coordinator")
    assert await client.subscribe("molink/#") == [1]
    return client


@pytest.fixture
def open_client(broker):
    """`async with open_client("n1", ...) as client`, with reconnects that are seeded."""

    def opened(username, **more):
        password = broker.coordinator.password if username == "coordinator" else PASSWORD
        return ControlClient.open(broker.address, username, password, random=Random(1), **more)

    return opened


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """A coordinator's own."""
    return own_certificate(tmp_path_factory.mktemp("tls"))


async def until(check):
    """Poll a thing that tells nobody when it changes."""
    async with asyncio.timeout(15):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
