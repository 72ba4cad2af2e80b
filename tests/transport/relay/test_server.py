"""A relay, nodes that dial and nodes that are called, over real sockets on loopback."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
import zmq
import zmq.asyncio

from molink.transport.preamble import Hello, PreambleRefusedError, sign
from molink.transport.relay import members, server
from molink.transport.relay.client import Pauses, RelayReceiver, relay_tunnel
from molink.transport.relay.protocol import RELAY_FRAMES, Answer, Dial, Ping, Register
from molink.transport.relay.server import RelayServer
from molink.transport.relay.splice import PIECE_BYTES
from molink.transport.sockets import address_of, connect, receive_exactly
from tests.transport.relay.nodes import (
    ANNA,
    BERT,
    CARL,
    SECRET,
    WITHIN_S,
    EchoPort,
    caller_of,
    free_address,
    until,
)

QUICKLY = Pauses(first_s=0.01, max_s=0.05)


@pytest.fixture
async def relay():
    async with RelayServer(SECRET, "127.0.0.1") as relay:
        yield relay


@pytest.fixture
async def bert(relay):
    """A registered node."""
    receiver = RelayReceiver(caller_of(BERT, relay.address), QUICKLY)
    running = asyncio.create_task(receiver.run())
    async with asyncio.timeout(WITHIN_S):
        await receiver.registered.wait()
    yield receiver
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.fixture
async def port():
    async with EchoPort() as port:
        yield port


async def ask(connection: socket.socket, said: bytes) -> bytes:
    await asyncio.get_running_loop().sock_sendall(connection, said)
    async with asyncio.timeout(WITHIN_S):
        return await receive_exactly(connection, len(said))


async def test_a_dial_reaches_the_port_that_it_names(relay, bert, port):
    bert.open("ring", port.address)
    connection = await caller_of(ANNA, relay.address).dial(BERT, "ring")
    assert await ask(connection, b"hello") == b"hello"
    connection.close()
    await until(lambda: relay.statistics.joined == 0 and bert.connections == 0)
    seen = relay.statistics
    assert (seen.registered, seen.dials, seen.bytes_carried) == (1, 1, 10)
    assert seen.refused == seen.unroutable == seen.spoofed == seen.held_bytes == 0


@pytest.mark.parametrize(
    ("to", "port_name", "why"),
    [
        (CARL, "ring", "not registered"),
        (BERT, "requests", "has no port requests"),
        (BERT, "silent", "does not answer"),
    ],
)
async def test_what_leads_nowhere_is_refused_with_a_sentence(relay, bert, to, port_name, why):
    bert.open("silent", free_address())
    with pytest.raises(PreambleRefusedError, match=why):
        await caller_of(ANNA, relay.address).dial(to, port_name)
    assert (relay.statistics.refused, relay.statistics.unroutable) == (1, 1)


async def test_a_receiver_that_does_not_come_is_unroutable(relay, monkeypatch):
    monkeypatch.setattr(server, "CALLED_WITHIN_S", 0.05)
    silent = await caller_of(BERT, relay.address).register()
    with pytest.raises(PreambleRefusedError, match="did not come"):
        await caller_of(ANNA, relay.address).dial(BERT, "ring")
    assert relay.statistics.unroutable == 1
    silent.close()


@pytest.mark.parametrize("kind", ["register", "dial", "answer"])
async def test_another_secret_is_refused_and_counted(relay, bert, kind):
    spoofer = caller_of(ANNA, relay.address, b"another secret")
    with pytest.raises(PreambleRefusedError, match="proof"):
        match kind:
            case "register":
                await spoofer.register()
            case "dial":
                await spoofer.dial(BERT, "ring")
            case "answer":
                await spoofer.answer(b"ticket")
    assert relay.statistics.spoofed == 1
    assert relay.statistics.registered == 1


async def test_a_node_cannot_use_its_token_in_anothers_name(relay, bert, port):
    bert.open("ring", port.address)
    connection = await connect(relay.address)
    hello = await RELAY_FRAMES.read(connection)
    own_key = caller_of(CARL, relay.address).token
    await RELAY_FRAMES.write(connection, sign(Register(BERT, b""), own_key, hello.nonce))
    assert "proof" in (await RELAY_FRAMES.read(connection)).sentence
    connection.close()
    assert relay.statistics.spoofed == 1
    honest = await caller_of(ANNA, relay.address).dial(BERT, "ring")
    assert await ask(honest, b"still Bert") == b"still Bert"
    honest.close()


async def test_what_was_overheard_is_of_no_use_on_another_connection(relay):
    caller = caller_of(ANNA, relay.address)
    connection = await connect(relay.address)
    await RELAY_FRAMES.read(connection)
    overheard = sign(Register(ANNA, b""), caller.token, Hello.draw().nonce)
    await RELAY_FRAMES.write(connection, overheard)
    assert "proof" in (await RELAY_FRAMES.read(connection)).sentence
    connection.close()


async def test_a_ticket_is_only_good_for_whom_it_was_given(relay, monkeypatch):
    monkeypatch.setattr(server, "CALLED_WITHIN_S", 0.5)
    registration = await caller_of(BERT, relay.address).register()
    dialling = asyncio.create_task(caller_of(ANNA, relay.address).dial(BERT, "ring"))
    call = await RELAY_FRAMES.read(registration)
    with pytest.raises(PreambleRefusedError, match="nobody waits"):
        await caller_of(CARL, relay.address).answer(call.ticket)
    far_end = await caller_of(BERT, relay.address).answer(call.ticket)
    with pytest.raises(PreambleRefusedError, match="nobody waits"):
        await caller_of(BERT, relay.address).answer(call.ticket)
    connection = await dialling
    for one in (connection, far_end, registration):
        one.close()


async def test_a_removed_node_is_cut_off_and_stays_out(port):
    members_now = {ANNA, BERT}
    async with RelayServer(SECRET, "127.0.0.1", authorised=members_now.__contains__) as relay:
        receiver = RelayReceiver(caller_of(BERT, relay.address), QUICKLY)
        receiver.open("ring", port.address)
        running = asyncio.create_task(receiver.run())
        await receiver.registered.wait()
        connection = await caller_of(ANNA, relay.address).dial(BERT, "ring")
        assert await ask(connection, b"hello") == b"hello"
        members_now.discard(BERT)
        relay.forbid(BERT)
        async with asyncio.timeout(WITHIN_S):
            assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""
        await until(lambda: "not a member" in receiver.trouble)
        assert relay.statistics.registered == relay.statistics.joined == 0
        running.cancel()
        connection.close()


async def test_the_newest_registration_counts(relay, port):
    older = await caller_of(BERT, relay.address).register()
    newer = await caller_of(BERT, relay.address).register()
    assert await asyncio.get_running_loop().sock_recv(older, 1) == b""
    dialling = asyncio.create_task(caller_of(ANNA, relay.address).dial(BERT, "ring"))
    assert (await RELAY_FRAMES.read(newer)).caller == ANNA
    assert relay.statistics.registered == 1
    dialling.cancel()
    for one in (older, newer):
        one.close()


async def test_registrations_are_pinged_and_silent_ones_dropped(monkeypatch):
    monkeypatch.setattr(server, "PING_PERIOD_S", 0.02)
    monkeypatch.setattr(server, "SILENT_S", 0.3)
    async with RelayServer(SECRET, "127.0.0.1") as relay:
        receiver = RelayReceiver(caller_of(BERT, relay.address), QUICKLY)
        running = asyncio.create_task(receiver.run())
        silent = await caller_of(ANNA, relay.address).register()
        assert await RELAY_FRAMES.read(silent) == Ping()
        await until(lambda: relay.statistics.registered == 1)
        assert receiver.registered.is_set()
        running.cancel()
        silent.close()


async def test_one_node_cannot_dial_without_end(relay, bert, port, monkeypatch):
    monkeypatch.setattr(members, "DIALS_PER_PAIR_MAX", 2)
    bert.open("ring", port.address)
    anna = caller_of(ANNA, relay.address)
    held = [await anna.dial(BERT, "ring") for _ in range(2)]
    with pytest.raises(PreambleRefusedError, match="2 connections to"):
        await anna.dial(BERT, "ring")
    others = await caller_of(CARL, relay.address).dial(BERT, "ring")
    held.pop().close()
    await until(lambda: relay.statistics.joined == 2)
    held.append(await anna.dial(BERT, "ring"))
    for one in (*held, others):
        one.close()


async def test_silent_peers_make_room_for_the_next(relay, bert, port):
    relay._listener.unidentified_max = 5
    bert.open("ring", port.address)
    silent = [await connect(relay.address) for _ in range(12)]
    connection = await caller_of(ANNA, relay.address).dial(BERT, "ring")
    assert await ask(connection, b"through") == b"through"
    for one in (*silent, connection):
        one.close()


async def test_noise_and_wrong_first_words_only_end_their_own_connection(relay, bert, port):
    bert.open("ring", port.address)
    loop = asyncio.get_running_loop()
    for noise in (b"\xff" * 50, b"GET / HTTP/1.1\r\n\r\n", RELAY_FRAMES.encode(Ping())):
        connection = await connect(relay.address)
        await RELAY_FRAMES.read(connection)
        await loop.sock_sendall(connection, noise)
        async with asyncio.timeout(WITHIN_S):
            try:
                while await loop.sock_recv(connection, 1000):
                    pass
            except ConnectionError:
                pass
        connection.close()
    honest = await caller_of(ANNA, relay.address).dial(BERT, "ring")
    assert await ask(honest, b"fine") == b"fine"
    honest.close()


async def test_a_relay_that_comes_back_is_found_again(port):
    relay = RelayServer(SECRET, "127.0.0.1")
    await relay.start()
    receiver = RelayReceiver(caller_of(BERT, relay.address), QUICKLY)
    receiver.open("ring", port.address)
    running = asyncio.create_task(receiver.run())
    await receiver.registered.wait()
    await relay.stop()
    await until(lambda: not receiver.registered.is_set() and receiver.trouble != "")
    back = RelayServer(SECRET, "127.0.0.1", relay_port := int(receiver._caller.address[10:]))
    await back.start()
    async with asyncio.timeout(WITHIN_S):
        await receiver.registered.wait()
    assert back.port == relay_port and receiver.trouble == ""
    connection = await caller_of(ANNA, back.address).dial(BERT, "ring")
    assert await ask(connection, b"again") == b"again"
    connection.close()
    running.cancel()
    await back.stop()


async def test_who_hears_that_the_relay_is_back_registers_at_once():
    address = free_address()
    receiver = RelayReceiver(caller_of(BERT, address), Pauses(first_s=3600.0, max_s=3600.0))
    running = asyncio.create_task(receiver.run())
    await until(lambda: receiver.trouble != "")
    async with RelayServer(SECRET, "127.0.0.1", int(address.rpartition(":")[2])):
        receiver.retry()
        async with asyncio.timeout(WITHIN_S):
            await receiver.registered.wait()
        assert receiver.trouble == ""
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_receiver_that_does_not_read_holds_the_dialling_side_up(relay, bert):
    taken = asyncio.get_running_loop().create_future()
    waiting = await asyncio.start_server(
        lambda reader, writer: taken.set_result((reader, writer)), "127.0.0.1", 0, limit=1024
    )
    bert.open("ring", address_of(waiting.sockets[0]))
    connection = await caller_of(ANNA, relay.address).dial(BERT, "ring")
    reader, writer = await taken
    sent, piece, held_max = 0, bytes(2**20), 0
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                sent += connection.send(piece)
            except BlockingIOError:
                held_max = max(held_max, relay.statistics.held_bytes)
                carried = relay.statistics.bytes_carried
                if relay.statistics.held_bytes:
                    for _ in range(50):
                        await asyncio.sleep(0)
                    if carried == relay.statistics.bytes_carried:
                        break
            await asyncio.sleep(0)
    assert 0 < held_max <= PIECE_BYTES
    assert bert._splicer.held_bytes <= PIECE_BYTES
    connection.shutdown(socket.SHUT_WR)
    received = 0
    async with asyncio.timeout(WITHIN_S):
        while part := await reader.read(2**20):
            received += len(part)
    assert received == sent
    writer.close()
    connection.close()
    waiting.close()


async def test_the_coordinators_own_ports_need_no_registration(relay, port):
    relay.forward("coordinator", "peer", port.address)
    connection = await caller_of(ANNA, relay.address).dial("coordinator", "peer")
    assert await ask(connection, b"hello") == b"hello"
    relay.forward("coordinator", "peer", free_address())
    with pytest.raises(PreambleRefusedError, match="did not come"):
        await caller_of(ANNA, relay.address).dial("coordinator", "peer")
    relay.forward_no_more("coordinator", "peer")
    with pytest.raises(PreambleRefusedError, match="not registered"):
        await caller_of(ANNA, relay.address).dial("coordinator", "peer")
    connection.close()


@pytest.fixture
def zmq_context():
    context = zmq.asyncio.Context()
    yield context
    context.destroy(linger=0)


@asynccontextmanager
async def zmq_line(zmq_context, relay, bert, curve: bool):
    """(sender, receiver): two DEALER sockets joined through the relay."""
    receiver, sender = zmq_context.socket(zmq.DEALER), zmq_context.socket(zmq.DEALER)
    if curve:
        public, secret = zmq.curve_keypair()
        receiver.curve_server = True
        receiver.curve_publickey, receiver.curve_secretkey = public, secret
        sender.curve_serverkey = public
        sender.curve_publickey, sender.curve_secretkey = zmq.curve_keypair()
    bert.open("ring", f"127.0.0.1:{receiver.bind_to_random_port('tcp://127.0.0.1')}")
    async with relay_tunnel(caller_of(ANNA, relay.address), BERT, "ring") as tunnel:
        sender.connect(f"tcp://{tunnel.address}")
        yield sender, receiver


async def test_zeromq_messages_arrive_in_order_both_ways(relay, bert, zmq_context):
    async with zmq_line(zmq_context, relay, bert, curve=False) as (sender, receiver):
        sizes = [1, 70_000, 16_384, 0, 1_000_000, 5]
        for number, size in enumerate(sizes * 5):
            await sender.send_multipart([b"%d" % number, bytes(size)])
        async with asyncio.timeout(WITHIN_S):
            for number, size in enumerate(sizes * 5):
                head, body = await receiver.recv_multipart()
                assert (int(head), len(body)) == (number, size)
            await receiver.send(b"acknowledged")
            assert await sender.recv() == b"acknowledged"


@pytest.mark.parametrize("curve", [False, True])
async def test_a_relay_sees_no_payload_of_an_encrypted_link(relay, bert, zmq_context, curve):
    async with zmq_line(zmq_context, relay, bert, curve) as (sender, receiver):
        payload = b"what a volunteer's neighbours say" * 10
        await sender.send(payload)
        async with asyncio.timeout(WITHIN_S):
            assert await receiver.recv() == payload
        assert (payload[:30] in bytes(relay._splicer.buffer)) is not curve


async def test_a_tunnel_tells_why_it_leads_nowhere_and_tries_again(relay, bert, port):
    heard = []
    caller = caller_of(ANNA, relay.address)
    async with relay_tunnel(caller, BERT, "ring", heard.append) as tunnel:
        first = await connect(tunnel.address)
        async with asyncio.timeout(WITHIN_S):
            assert await asyncio.get_running_loop().sock_recv(first, 1) == b""
        assert "no port ring" in heard[-1]
        bert.open("ring", port.address)
        second = await connect(tunnel.address)
        assert await ask(second, b"hello") == b"hello"
        assert heard[-1] == "" and tunnel.bytes_carried == 10
    first.close()
    second.close()


async def test_an_answer_that_nobody_asked_for_is_refused(relay):
    with pytest.raises(PreambleRefusedError, match="nobody waits"):
        await caller_of(ANNA, relay.address).answer(b"no ticket")
    assert Answer(ANNA, b"", b"x").ticket == b"x"


async def test_what_is_no_relay_is_told_apart(port):
    async with asyncio.timeout(WITHIN_S):
        with pytest.raises(OSError):
            await caller_of(ANNA, free_address()).register()


def test_a_dial_names_a_node_and_a_port():
    assert Dial(ANNA, b"", "coordinator", "peer").to == "coordinator"
