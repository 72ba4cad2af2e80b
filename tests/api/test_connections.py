"""Who may connect, how often, and what becomes of a client that never asks or never reads."""

import asyncio
import contextlib
import json
import os
import resource
import socket
from dataclasses import replace

import pytest

from molink.api import create_app, start_api
from molink.api.connections import (
    CONNECTIONS_MAX,
    ConnectionGuard,
    ConnectionLimits,
)
from molink.control.certificate import own_certificate
from molink.tasks import LoopErrors

WITHIN_S = 20
"""Only a hung test reaches this."""

ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
async def port_of(service):
    """Starts servers, given their options, and tells their ports."""
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(WITHIN_S):

        async def start(**options):
            runner = await start_api(create_app(service), "127.0.0.1", 0, **options)
            stack.push_async_callback(runner.cleanup)
            return runner.addresses[0][1]

        yield start


async def connect(port, source="127.0.0.1", **tls):
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0), **tls)


async def status_of(reader):
    head = await reader.readuntil(b"\r\n\r\n")
    return int(head.split()[1])


async def test_an_address_has_its_share_and_leaves_the_others_theirs(port_of):
    port = await port_of(limits=ConnectionLimits(total=5, per_address=3))
    mine = [await connect(port) for _ in range(3)]
    reader, _ = await connect(port)
    assert await status_of(reader) == 503
    assert json.loads(await reader.read())["error"]["code"] == "too_many_connections"

    other_reader, other = await connect(port, "127.0.0.2")
    other.write(ASK)
    assert await status_of(other_reader) == 200

    for reader, writer in mine:
        writer.write(ASK)
        assert await status_of(reader) == 200


async def test_who_never_begins_tls_is_counted(port_of, tmp_path, monkeypatch):
    monkeypatch.setattr("molink.api.connections.HANDSHAKE_S", 10 * WITHIN_S)
    files = own_certificate(tmp_path)
    limits = ConnectionLimits(total=3, per_address=2)
    port = await port_of(tls=files.server_context(), limits=limits)
    silent = [await connect(port) for _ in range(2)]
    reader, _ = await connect(port)
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(WITHIN_S):
            assert await reader.read() == b"", "closed before any handshake"

    context = files.trust.ssl_context()
    reader, writer = await connect(port, "127.0.0.2", ssl=context)
    writer.write(ASK)
    assert await status_of(reader) == 200

    for _, writer in silent:
        writer.write(b"GET / HTTP/1.1\r\n\r\n")
    for reader, _ in silent:
        await reader.read()
    mine = [await connect(port, ssl=context) for _ in range(2)]
    for reader, writer in mine:
        writer.write(ASK)
        assert await status_of(reader) == 200


async def test_a_server_that_stops_leaves_no_handshake(service, tmp_path):
    tls = own_certificate(tmp_path).server_context()
    runner = await start_api(create_app(service), "127.0.0.1", 0, tls=tls)
    (site,) = runner.sites
    async with asyncio.timeout(WITHIN_S):
        reader, _ = await connect(runner.addresses[0][1])
        while not site._handshakes.open:  # noqa: ASYNC110 - asyncio does not say when it accepts
            await asyncio.sleep(0)
        await runner.cleanup()
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    assert not site._handshakes.open and not site._guard.open


async def test_who_leaves_makes_room(port_of):
    port = await port_of(limits=ConnectionLimits(total=1, per_address=1))
    for _ in range(3):
        reader, writer = await connect(port)
        writer.write(ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answer = await reader.read()
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200")


async def test_all_addresses_together_have_a_limit(port_of):
    port = await port_of(limits=ConnectionLimits(total=3, per_address=2))
    held = [await connect(port, f"127.0.0.{k}") for k in (2, 3, 4)]
    reader, _ = await connect(port, "127.0.0.5")
    assert await status_of(reader) == 503
    assert len(held) == 3


@pytest.mark.parametrize("said", [b"", b"POST /generate HTTP/1.1\r\nHost: 127"])
async def test_who_asks_nothing_is_closed(port_of, said):
    port = await port_of(idle_s=0.01)
    reader, writer = await connect(port)
    writer.write(said)
    assert await reader.read() == b""


async def test_who_never_reads_a_stream_is_closed(port_of, service):
    """The answer is larger than what the kernels' buffers hold, and the client reads nothing."""
    service.card = replace(service.card, model_len_max=10**9)
    service.token_limit = 10**9
    port = await port_of(limits=ConnectionLimits(unread_s=0.05))
    body = json.dumps({"prompt": "x", "max_tokens": 10**6, "logprobs": 20, "stream": True}).encode()
    _, writer = await connect(port)
    writer.write(
        b"POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        + f"Content-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    writer.transport.pause_reading()
    await service.closed.acquire()
    assert service.closed.locked(), "its one stream has ended, although it never read on"
    writer.close()


async def test_a_server_without_descriptors_goes_on(port_of, caplog):
    """The kernel takes the connection, the server does as soon as it has a descriptor again."""
    errors = LoopErrors()
    asyncio.get_running_loop().set_exception_handler(errors)
    port = await port_of()
    with socket.socket() as client, no_descriptors():
        client.connect(("127.0.0.1", port))
        while not errors.not_accepted:  # noqa: ASYNC110 - asyncio does not say when it has tried
            await asyncio.sleep(0)
    assert 1 <= len(caplog.records) <= 12 and "Too many open files" in caplog.text
    reader, writer = await connect(port)
    writer.write(ASK)
    assert await status_of(reader) == 200


@contextlib.contextmanager
def no_descriptors():
    """All that this process may have are taken in the block."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.dup(0)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 64, limits[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for one in taken:
            os.close(one)


def test_a_guard_counts_each_address():
    guard = ConnectionGuard(ConnectionLimits(total=3, per_address=2))
    assert [guard.admit("a"), guard.admit("a"), guard.admit("a")] == [True, True, False]
    assert [guard.admit("b"), guard.admit("c")] == [True, False]
    guard.leave("a")
    assert guard.admit("c") and guard.refused == 2
    for address in "abc":
        guard.leave(address)
    assert not guard.open


@pytest.mark.parametrize(
    ("descriptors", "connections"),
    [(256, 64), (2**20, CONNECTIONS_MAX), (resource.RLIM_INFINITY, CONNECTIONS_MAX)],
)
def test_most_descriptors_are_left_to_others(monkeypatch, descriptors, connections):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (descriptors, descriptors))
    limits = ConnectionLimits.of_process()
    assert (limits.total, limits.per_address) == (connections, connections // 4)
