"""How a coordinator starts."""

import asyncio
import threading
import tracemalloc

import pytest

from molink.config.data_dir import only_one
from molink.config.setting import settings_of
from molink.config.settings import UpSettings
from molink.control.certificate import own_certificate
from molink.coordinator import start
from molink.errors import UserError
from molink.serving import served_model


async def test_the_model_is_read_beside_the_loop_and_before_there_is_a_broker(
    tmp_path, monkeypatch
):
    """Reading a tokenizer takes seconds, after which a broker gives up a client that is silent."""
    threads = []

    def reads(description):
        threads.append(threading.current_thread())
        raise UserError("far enough")

    monkeypatch.setattr(served_model, "load_tokenizer", reads)
    monkeypatch.setattr(start, "open_broker", lambda *arguments: pytest.fail("too early"))
    settings = settings_of(
        UpSettings, model="demo", data_dir=tmp_path, host="127.0.0.1", public_host="127.0.0.1"
    )
    with pytest.raises(UserError, match="far enough"):
        async with start.start_coordinator(settings, 8000, 8003):
            pass
    assert threads and threads[0] is not threading.main_thread()


async def test_idle_tls_connections_are_small(tmp_path, monkeypatch):
    """asyncio's own buffers were 280 MB for a thousand agents."""
    monkeypatch.setattr(asyncio.sslproto.SSLProtocol, "max_size", 2**18)
    monkeypatch.setattr(start, "open_broker", lambda *arguments: pytest.fail("far enough"))
    settings = settings_of(
        UpSettings, model="demo", data_dir=tmp_path, host="127.0.0.1", public_host="127.0.0.1"
    )
    with pytest.raises(pytest.fail.Exception):
        async with start.start_coordinator(settings, 8000, 8003):
            pass
    own = own_certificate(tmp_path)
    trust = own.pinned.ssl_context()
    server = await asyncio.start_server(idle, "127.0.0.1", 0, ssl=own.server_context())
    address = server.sockets[0].getsockname()
    tracemalloc.start()
    try:
        ends = [await asyncio.open_connection(*address, ssl=trust) for _ in range(4)]
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4 * 2 * 2**17, "both ends are here"
    for _, writer in ends:
        writer.close()
    server.close()


async def idle(reader, writer):
    await reader.read()
    writer.close()


async def test_two_coordinators_never_share_a_data_directory(tmp_path, monkeypatch):
    opened = []

    def open_broker(*arguments):
        opened.append(arguments)
        raise UserError("far enough")

    monkeypatch.setattr(start, "open_broker", open_broker)
    settings = settings_of(
        UpSettings, model="demo", data_dir=tmp_path, host="127.0.0.1", public_host="127.0.0.1"
    )
    with only_one("A coordinator", tmp_path / start.LOCK_FILE), pytest.raises(UserError) as refused:
        async with start.start_coordinator(settings, 8000, 8003):
            pass
    assert f"runs with {tmp_path} already: give each its own --data-dir" in str(refused.value)
    assert not opened
    with pytest.raises(UserError, match="far enough"):
        async with start.start_coordinator(settings, 8000, 8003):
            pass


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["--port", "--agents-port", "--broker-port", "--relay-port"]),
        ({"broker": "mqtt://a:b@c:1883"}, ["--port", "--agents-port", "--relay-port"]),
        ({"relay": "a:1", "relay_secret_file": "x"}, ["--port", "--agents-port", "--broker-port"]),
        ({"broker": "embedded"}, ["--port", "--agents-port", "--broker-port", "--relay-port"]),
    ],
)
def test_only_ports_that_are_used_must_be_free(tmp_path, options, expected):
    settings = settings_of(UpSettings, model="demo", data_dir=tmp_path, **options)
    assert [option for option, _ in settings.ports()] == expected
