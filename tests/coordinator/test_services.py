"""Nodes reach the coordinator through its relay, wherever that runs."""

import asyncio
import time
from contextlib import asynccontextmanager

import pytest

from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.control.addresses import ServerTrust
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.identity import KeyPair
from molink.control.messages.joining import JoinAnswer, request_to_join
from molink.control.messages.sealing import open_answer, seal
from molink.control.registry.registry import Registry
from molink.coordinator.services import JoinService, RelayElsewhere, RelayHere, open_relay
from molink.errors import ControlError, UserError
from molink.transport.preamble import PreambleRefusedError
from molink.transport.relay.client import RelayCaller
from molink.transport.relay.protocol import COORDINATOR, relay_token
from molink.transport.relay.server import RelayServer

NODE = "a" * 16
SECRET = b"s" * 32


@asynccontextmanager
async def port_that_says(word: bytes):
    async def said(reader, writer):
        writer.write(word)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(said, "127.0.0.1", 0) as server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def heard(caller: RelayCaller, port_name: str) -> bytes:
    connection = await caller.dial(COORDINATOR, port_name)
    try:
        return await asyncio.get_running_loop().sock_recv(connection, 16)
    finally:
        connection.close()


@asynccontextmanager
async def relays(kind: str, tmp_path):
    """The coordinator's side, as `molink up` starts it."""
    secret = tmp_path / "relay.secret"
    secret.write_bytes(SECRET + b"\n")
    secret.chmod(0o600)
    async with RelayServer(SECRET, "127.0.0.1", 0) as rented:
        elsewhere = {"relay": rented.address, "relay_secret_file": str(secret)}
        options = elsewhere if kind == "elsewhere" else {"relay_port": 0}
        settings = settings_of(
            UpSettings,
            model="demo",
            data_dir=tmp_path,
            host="127.0.0.1",
            public_host="127.0.0.1",
            **options,
        )
        async with open_relay(settings, b"o" * 32, lambda node_id: node_id == NODE) as relay:
            assert isinstance(relay, RelayElsewhere if kind == "elsewhere" else RelayHere)
            yield relay


@pytest.mark.parametrize("kind", ["here", "elsewhere"])
async def test_a_node_reaches_a_port_of_the_coordinator(kind, tmp_path):
    async with relays(kind, tmp_path) as relay, port_that_says(b"tokens") as address:
        relay.forward("sampled-1", address)
        caller = RelayCaller(relay.address, NODE, relay_token(relay.secret, NODE))
        async with asyncio.timeout(10):
            while True:  # Until the coordinator is registered at a relay elsewhere.
                try:
                    assert await heard(caller, "sampled-1") == b"tokens"
                    break
                except PreambleRefusedError:
                    await asyncio.sleep(0.02)
        relay.forward_no_more("sampled-1")
        with pytest.raises(PreambleRefusedError):
            await heard(caller, "sampled-1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"relay": "relay.example.org:8002"}, "belong together"),
        ({"relay_secret_file": "x"}, "belong together"),
        ({"relay": "relay.example.org", "relay_secret_file": "x"}, "HOST:PORT"),
        ({"relay": "http://a:1", "relay_secret_file": "x"}, "HOST:PORT"),
    ],
)
def test_what_does_not_name_a_relay_is_refused(tmp_path, options, sentence):
    with pytest.raises(UserError, match=sentence):
        settings_of(UpSettings, model="demo", data_dir=tmp_path, **options)


async def test_a_secret_that_cannot_be_read_says_how_to_make_one(tmp_path):
    settings = settings_of(
        UpSettings,
        model="demo",
        data_dir=tmp_path,
        relay="a:1",
        relay_secret_file=str(tmp_path / "missing"),
    )
    with pytest.raises(UserError, match="openssl rand"):
        async with open_relay(settings, b"", lambda node_id: True):
            pass


async def test_who_is_suspended_is_not_let_in_by_joining_again(tmp_path):
    registry, pair = Registry.open(tmp_path), KeyPair.generate()
    joining = JoinService(registry, EmbeddedBroker("127.0.0.1", 1883), "127.0.0.1", ServerTrust())
    invite = registry.make_invite(60.0, 1, "", time.time(), "https://127.0.0.1:1")
    sealed = seal(request_to_join(invite, "pc", "1", time.time()), pair, invite.coordinator_key)
    answer = open_answer(await joining.join(sealed), pair, JoinAnswer, invite.coordinator_key)
    joining.suspensions.suspend(answer.node_id, 0.0)
    with pytest.raises(ControlError, match="far too much"):
        await joining.join(sealed)
    joining.suspensions.end(answer.node_id)
    await joining.join(sealed)
    registry.close()
