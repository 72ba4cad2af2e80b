"""One link's path over real sockets: relayed while it must be, direct when it can."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from molink.transport.paths.choose import PathPeriods
from molink.transport.paths.keeper import LinkEnd, PathKeeper
from molink.transport.relay.client import Pauses, RelayReceiver
from molink.transport.relay.server import RelayServer
from tests.transport.relay.nodes import ANNA, BERT, SECRET, WITHIN_S, caller_of, free_address, until

KEPT: list[zmq.asyncio.Socket] = []
"""A socket that nobody refers to is closed."""

QUICKLY = PathPeriods(confirm_s=0.01, retry_first_s=0.02, retry_max_s=0.05, lost_retry_s=0.02)


@pytest.fixture
async def relay():
    async with RelayServer(SECRET, "127.0.0.1") as relay:
        yield relay


@pytest.fixture
def context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)
    KEPT.clear()


@asynccontextmanager
async def bert_at(relay, address):
    receiver = RelayReceiver(caller_of(BERT, relay.address), Pauses(0.01, 0.05))
    receiver.open("ring", address)
    running = asyncio.create_task(receiver.run())
    await receiver.registered.wait()
    yield
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@asynccontextmanager
async def keeping(addresses, caller, periods=QUICKLY):
    """(keeper, paths as they are taken)."""
    paths = asyncio.Queue()
    end = LinkEnd(BERT, "ring", addresses)
    keeper = PathKeeper(end, caller, paths.put, periods, direct_within_s=0.2)
    running = asyncio.create_task(keeper.run())

    async def next_path():
        async with asyncio.timeout(WITHIN_S):
            return await paths.get()

    yield keeper, next_path
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def listening(context, address="127.0.0.1:*"):
    """(socket, host:port) of a link's receiving end, open as long as the context."""
    socket = context.socket(zmq.DEALER)
    KEPT.append(socket)
    socket.bind(f"tcp://{address}")
    return socket, socket.last_endpoint.decode().removeprefix("tcp://")


async def heard(socket):
    async with asyncio.timeout(WITHIN_S):
        return await socket.recv()


async def test_a_link_that_can_be_direct_is(relay, context):
    _, address = listening(context)
    async with keeping([free_address(), address], caller_of(ANNA, relay.address)) as (_, next_path):
        path = await next_path()
    assert (path.kind, path.address) == ("direct", address)
    assert relay.statistics.dials == 0


async def test_a_relayed_link_moves_when_the_direct_address_comes_up(relay, context):
    inside, hidden = listening(context)
    public = free_address()
    sender = context.socket(zmq.DEALER)
    async with (
        bert_at(relay, hidden),
        keeping([public], caller_of(ANNA, relay.address)) as (keeper, next_path),
    ):
        relayed = await next_path()
        assert relayed.kind == "relay"
        sender.connect(f"tcp://{relayed.address}")
        await sender.send(b"through the relay")
        assert await heard(inside) == b"through the relay"
        inside.bind(f"tcp://{public}")
        direct = await next_path()
        assert (direct.kind, direct.address) == ("direct", public)
        sender.disconnect(f"tcp://{relayed.address}")
        sender.connect(f"tcp://{direct.address}")
        await sender.send(b"straight")
        assert await heard(inside) == b"straight"
        assert keeper.path == direct
        keeper.failed(direct)
        assert (await next_path()) == relayed
    assert relay.statistics.dials == 1


async def test_without_a_relay_it_keeps_trying(context):
    address = free_address()
    async with keeping([address], None) as (keeper, next_path):
        assert keeper.path.kind == "none"
        listening(context, address)
        assert (await next_path()).address == address
        keeper.failed(keeper.path)
        assert (await next_path()).kind == "none"
        assert (await next_path()).kind == "direct"


async def test_news_of_a_path_that_is_no_longer_used_changes_nothing(relay, context):
    _, address = listening(context)
    async with keeping([address], caller_of(ANNA, relay.address)) as (keeper, next_path):
        direct = await next_path()
        keeper.failed(type(direct)("relay", "127.0.0.1:1"))
        await asyncio.sleep(0.05)
        assert keeper.path == direct


async def test_a_relay_that_is_away_is_a_sentence(context):
    async with keeping([], caller_of(ANNA, free_address())) as (keeper, next_path):
        relayed = await next_path()
        socket = context.socket(zmq.DEALER)
        socket.connect(f"tcp://{relayed.address}")
        await until(lambda: bool(keeper.trouble))
        assert "relay at" in keeper.trouble
