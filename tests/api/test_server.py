import asyncio
import logging
import socket

import pytest
from aiohttp import web

from molink.api import create_app, start_api
from molink.api.server import check_port_free
from molink.errors import UserError


@pytest.fixture
def taken_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


async def test_a_port_in_use_is_one_sentence(service, taken_port):
    with pytest.raises(UserError, match=f"port {taken_port} on 127.0.0.1 is in use"):
        await start_api(create_app(service), "127.0.0.1", taken_port)
    with pytest.raises(UserError, match="is in use"):
        check_port_free("127.0.0.1", taken_port)


@pytest.mark.parametrize(("host", "port"), [("127.0.0.1", 99_999), ("203.0.113.7", 8000)])
async def test_an_address_that_cannot_be_listened_on(service, host, port):
    with pytest.raises(UserError, match="cannot listen on"):
        await start_api(create_app(service), host, port)
    with pytest.raises(UserError, match="cannot listen on"):
        check_port_free(host, port)


def test_a_free_port_passes():
    check_port_free("127.0.0.1", 0)


async def test_small_events_are_sent_at_once(service, http):
    """asyncio sets TCP_NODELAY; a stream would stutter by 40 ms without it."""

    async def get_no_delay(request):
        peer = request.transport.get_extra_info("socket")
        return web.json_response(peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    app = create_app(service)
    app.router.add_get("/no-delay", get_no_delay)
    runner = await start_api(app, "127.0.0.1", 0)
    async with http.get(f"http://127.0.0.1:{runner.addresses[0][1]}/no-delay") as response:
        assert await response.json()
    await runner.cleanup()


NO_HTTP = b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: x\r\n\r\n"


async def test_strangers_that_speak_no_http_write_few_lines(service, caplog):
    """Each made a traceback: 16 GB a day from one slow client."""
    caplog.set_level(logging.DEBUG)
    runner = await start_api(create_app(service), "127.0.0.1", 0)
    for _ in range(33):
        reader, writer = await asyncio.open_connection(*runner.addresses[0][:2])
        writer.write(NO_HTTP)
        assert b" 400 " in await reader.readline()
        writer.close()
    await runner.cleanup()
    logged = [one for one in caplog.records if one.name == "aiohttp.server"]
    assert 1 <= len(logged) <= 6, "the 1st, 2nd, 4th, 8th, 16th and 32nd"
    assert logged[-1].getMessage().endswith(" so far)")
