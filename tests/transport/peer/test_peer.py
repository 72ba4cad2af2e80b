"""The service that lets itself be measured, and those who measure: results, and every limit."""

import asyncio
import json
import socket
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink.transport.peer import service as service_module
from molink.transport.peer.measuring import (
    REPORTS_MIN,
    START_SHARE,
    Asking,
    ByteArrivals,
    measure,
    measure_download,
    peer_handshake,
)
from molink.transport.peer.protocol import (
    BULK_BYTES_MAX,
    GIVE_BYTES_MAX,
    PEER_FRAMES,
    Bulk,
    Echo,
    Give,
    probe_key,
    probe_token,
)
from molink.transport.peer.service import (
    ALLOWANCE_BYTES,
    ALLOWANCE_BYTES_PER_S,
    RATES_MAX,
    WAITING_PER_NODE_MAX,
    Allowance,
    PeerService,
)
from molink.transport.preamble import PreambleRefusedError
from molink.transport.sockets import address_of, connect
from tests.transport.relay.nodes import ANNA, BERT, CARL, SECRET, WITHIN_S, EchoPort, until

KEY = probe_key(SECRET, BERT)


def asking(node_id: str, key: str = KEY) -> Asking:
    return Asking(node_id, probe_token(key, node_id))


@pytest.fixture
async def bert():
    service = PeerService(KEY, "127.0.0.1")
    await service.start()
    yield service
    await service.stop()


async def greeted(service: PeerService, who: str = ANNA) -> socket.socket:
    connection = await connect(service.address)
    await peer_handshake(connection, asking(who))
    return connection


def received_bytes(service: PeerService) -> float:
    """Since the start, but for what the allowance has regained."""
    return ALLOWANCE_BYTES - service._receive_allowance.left_bytes


async def test_a_round_trip_and_a_rate_are_measured(bert):
    measured = await measure(await greeted(bert), bulk_s=0.3)
    assert 0 < measured.rtt_s < 1
    assert measured.rate_bytes_per_s > 1e6
    await until(lambda: received_bytes(bert) > 0)
    assert received_bytes(bert) <= BULK_BYTES_MAX


async def test_the_service_keeps_what_it_has_seen_whatever_the_sender_says():
    heard = []
    bert = PeerService(KEY, "127.0.0.1", on_rate=lambda *rate: heard.append(rate))
    await bert.start()
    measured = await measure(await greeted(bert), bulk_s=0.3, cap_bytes_per_s=4e6)
    await until(lambda: heard)
    assert bert.rates == dict(heard)
    assert bert.rates[ANNA] == pytest.approx(measured.rate_bytes_per_s, rel=0.3)
    for number in range(RATES_MAX + 5):
        bert._note_rate(f"node {number}", 1.0)
    assert len(bert.rates) == RATES_MAX and ANNA not in bert.rates
    await bert.stop()


async def test_a_download_is_measured_where_a_service_gives(bert):
    assert await measure_download(await greeted(bert), 0.3) == 0.0, "volunteers send nothing"
    giver = PeerService(KEY, "127.0.0.1", allow_download=True)
    await giver.start()
    assert await measure_download(await greeted(giver), 0.5) > 1e6
    giver._give_allowance.left_bytes = 0.0
    assert await measure_download(await greeted(giver), 0.5) == 0.0
    await giver.stop()


async def test_what_is_given_is_bounded_in_bytes_and_seconds(monkeypatch):
    monkeypatch.setattr(service_module, "GIVE_BYTES_MAX", 200_000)
    monkeypatch.setattr(service_module, "GIVE_S_MAX", 0.2)
    giver = PeerService(KEY, "127.0.0.1", allow_download=True)
    await giver.start()
    connection = await greeted(giver)
    await PEER_FRAMES.write(connection, Give())
    loop, total = asyncio.get_running_loop(), 0
    async with asyncio.timeout(WITHIN_S):
        while piece := await loop.sock_recv(connection, 65536):
            total += len(piece)
    assert total == 200_000
    monkeypatch.setattr(service_module, "GIVE_BYTES_MAX", GIVE_BYTES_MAX)
    silent = await greeted(giver)
    await PEER_FRAMES.write(silent, Give())
    await until(lambda: not giver._slot.locked())
    silent.close()
    await giver.stop()


@pytest.mark.parametrize(("mbps", "one_way_ms"), [(5, 20), (100, 30)])
async def test_a_home_link_is_measured_as_what_it_is(bert, mbps, one_way_ms):
    emulator = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "molink.transport.emulator"),
        *(f"0,{mbps},{one_way_ms}", bert.address),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    (port,) = json.loads(await emulator.stdout.readline())["ports"]
    connection = await connect(f"127.0.0.1:{port}")
    await peer_handshake(connection, asking(ANNA))
    measured = await measure(connection, bulk_s=0.7)
    emulator.stdin.close()
    await emulator.wait()
    assert measured.rate_bytes_per_s * 8 / 1e6 == pytest.approx(mbps, rel=0.15)
    await until(lambda: bert.rates)
    assert bert.rates[ANNA] * 8 / 1e6 == pytest.approx(mbps, rel=0.2)
    assert 2 * one_way_ms <= measured.rtt_s * 1e3 < 2 * one_way_ms + 60


async def test_the_owners_cap_is_kept(bert):
    cap_bytes_per_s = 1e6
    measured = await measure(await greeted(bert), bulk_s=0.5, cap_bytes_per_s=cap_bytes_per_s)
    assert measured.rate_bytes_per_s < 1.5 * cap_bytes_per_s
    assert received_bytes(bert) < 0.5 * cap_bytes_per_s + 100_000


@pytest.mark.parametrize(
    "wrong", [asking(ANNA, probe_key(SECRET, CARL)), Asking(CARL, asking(ANNA).token)]
)
async def test_a_token_is_for_one_pair(bert, wrong):
    connection = await connect(bert.address)
    with pytest.raises(PreambleRefusedError, match="proof"):
        await peer_handshake(connection, wrong)
    connection.close()


async def test_another_nodes_service_is_not_taken_for_the_peers(bert):
    """Somebody else's PC at the same private address knows no token of this pair."""

    async def pretend(reader, writer):
        from molink.transport.peer.protocol import Ready
        from molink.transport.preamble import Hello

        writer.write(PEER_FRAMES.encode(Hello.draw()))
        await reader.read(100)
        writer.write(PEER_FRAMES.encode(Ready(ANNA, b"a guess")))

    stranger = await asyncio.start_server(pretend, "127.0.0.1", 0)
    connection = await connect(address_of(stranger.sockets[0]))
    with pytest.raises(ConnectionError, match="another node"):
        await peer_handshake(connection, asking(ANNA))
    connection.close()
    stranger.close()


async def test_what_is_no_peer_service_is_an_error():
    async with EchoPort() as port:
        connection = await connect(port.address)
        connection.send(b"\0\1\0")
        with pytest.raises(ConnectionError):
            await peer_handshake(connection, asking(ANNA))
        connection.close()


async def test_one_is_served_at_a_time_and_the_next_waits_its_turn(bert):
    first = await greeted(bert)
    second = await connect(bert.address)
    waiting = asyncio.create_task(peer_handshake(second, asking(CARL)))
    await until(lambda: bert._waiting.total() == 1)
    assert not waiting.done()
    first.close()
    async with asyncio.timeout(WITHIN_S):
        await waiting
    second.close()


async def test_one_node_cannot_take_the_places_of_all(bert):
    first = await greeted(bert)
    impatient = [await connect(bert.address) for _ in range(WAITING_PER_NODE_MAX)]
    waiting = [asyncio.create_task(peer_handshake(one, asking(CARL))) for one in impatient]
    await until(lambda: bert._waiting.total() == WAITING_PER_NODE_MAX)
    next_one = await connect(bert.address)
    with pytest.raises(PreambleRefusedError, match="wait to measure already"):
        await peer_handshake(next_one, asking(CARL))
    other = await connect(bert.address)
    patient = asyncio.create_task(peer_handshake(other, asking(ANNA)))
    await until(lambda: bert._waiting.total() == WAITING_PER_NODE_MAX + 1)
    for task in (*waiting, patient):
        task.cancel()
    for one in (first, next_one, other, *impatient):
        one.close()


async def test_too_many_that_wait_are_told_to_come_later(bert, monkeypatch):
    monkeypatch.setattr(service_module, "WAITING_MAX", 1)
    first, second, third = await greeted(bert), await connect(bert.address), None
    waiting = asyncio.create_task(peer_handshake(second, asking(CARL)))
    await until(lambda: bert._waiting.total() == 1)
    third = await connect(bert.address)
    with pytest.raises(PreambleRefusedError, match="come later"):
        await peer_handshake(third, asking(ANNA))
    waiting.cancel()
    for one in (first, second, third):
        one.close()


async def test_who_takes_too_long_is_cut_off(bert, monkeypatch):
    monkeypatch.setattr(service_module, "MEASURE_S_MAX", 0.1)
    connection = await greeted(bert)
    async with asyncio.timeout(WITHIN_S):
        assert await asyncio.get_running_loop().sock_recv(connection, 1) == b""
    connection.close()


async def test_echoes_are_counted(bert):
    connection = await greeted(bert)
    with pytest.raises(OSError):
        for number in range(service_module.ECHOES_MAX + 1):
            await PEER_FRAMES.write(connection, Echo(number))
            assert await PEER_FRAMES.read(connection) == Echo(number)
    assert number == service_module.ECHOES_MAX
    connection.close()


async def test_nobody_can_send_more_than_the_limit(bert, monkeypatch):
    monkeypatch.setattr(service_module, "BULK_BYTES_MAX", 100_000)
    connection = await greeted(bert)
    await PEER_FRAMES.write(connection, Bulk())
    with pytest.raises(OSError):
        async with asyncio.timeout(WITHIN_S):
            while True:
                await asyncio.get_running_loop().sock_sendall(connection, bytes(65536))
    assert received_bytes(bert) == 100_000
    connection.close()


async def test_without_allowance_the_round_trip_is_still_told(bert):
    bert._receive_allowance.left_bytes = -1e9
    measured = await measure(await greeted(bert), bulk_s=0.3)
    assert measured.rtt_s > 0
    assert measured.rate_bytes_per_s == 0


async def test_silent_peers_make_room_for_the_next(bert):
    bert._listener.unidentified_max = 2
    silent = [await connect(bert.address) for _ in range(5)]
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WITHIN_S):
        assert all([await loop.sock_recv(one, 100) for one in silent])
        assert await loop.sock_recv(silent[0], 100) == b""
    (await greeted(bert)).close()
    for one in silent:
        one.close()


@given(st.lists(st.tuples(st.floats(0, 1000), st.integers(0, BULK_BYTES_MAX)), max_size=60))
def test_the_allowance_bounds_what_comes_in_any_time(asked):
    now, taken = 0.0, 0
    allowance = Allowance(lambda: now)
    for passed_s, wanted in asked:
        now += passed_s
        size = min(wanted, allowance.next_bytes_max())
        assert 0 <= size <= BULK_BYTES_MAX
        allowance.take(size)
        taken += size
        assert taken <= ALLOWANCE_BYTES + now * ALLOWANCE_BYTES_PER_S + 1


@given(
    st.floats(1e3, 1e9),
    st.lists(st.floats(0.001, 1.0), min_size=REPORTS_MIN, max_size=50),
)
def test_steady_bytes_are_counted_at_their_rate(rate, gaps):
    """However unevenly they are counted."""
    now, total = 0.0, 0.0
    arrivals = ByteArrivals(lambda: now, 0.0)
    for gap_s in gaps:
        now += gap_s
        total += rate * gap_s
        arrivals.note(total)
    first_s = next(at for at, _ in arrivals.counted if at >= START_SHARE * now)
    if first_s < now:
        assert arrivals.rate_bytes_per_s == pytest.approx(rate, rel=1e-6)
    else:
        assert arrivals.rate_bytes_per_s == 0.0
