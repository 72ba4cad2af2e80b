import pytest
from aiohttp import web

from molink.api.answers import COMMENT
from molink.client.api_client import ApiClient, server_url
from molink.errors import UserError


@pytest.mark.parametrize(
    ("given", "whole"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("127.0.0.1:8000/", "http://127.0.0.1:8000"),
        ("https://example.org/molink/", "https://example.org/molink"),
    ],
)
def test_addresses(given, whole):
    assert server_url(given) == whole


@pytest.mark.parametrize("given", ["", "ftp://host", "http://", "http://host:port", "host:99999"])
def test_what_is_no_address(given):
    with pytest.raises(UserError, match="is no server's address"):
        server_url(given)


@pytest.fixture
async def answer_with():
    """`await answer_with(status, pieces)`: a server that answers any POST with these bytes."""
    runners = []

    async def start(status, pieces):
        async def handle(request):
            response = web.StreamResponse(status=status)
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
            return response

        app = web.Application()
        app.router.add_post("/generate", handle)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def stream(url):
    async with ApiClient(url) as client:
        return [event async for event in client.stream("/generate", {})]


async def test_events_cut_anywhere(answer_with):
    raw = 'data: {"text":"é\\n\\n"}\n\ndata: {"text":"b"}\n\ndata: [DONE]\n\n'.encode()
    for size in (1, 3, 7, len(raw)):
        pieces = [raw[i : i + size] for i in range(0, len(raw), size)]
        events = await stream(await answer_with(200, pieces))
        assert events == [{"text": "é\n\n"}, {"text": "b"}]


async def test_what_keeps_a_silent_stream_alive_is_passed_over(answer_with):
    """As while a ring is mended, or a long prompt is computed."""
    pieces = [COMMENT, b'data: {"text": "a"}\n\n', COMMENT + COMMENT, b"data: [DONE]\n\n"]
    assert await stream(await answer_with(200, pieces)) == [{"text": "a"}]


@pytest.mark.parametrize(
    ("status", "raw", "sentence"),
    [
        (400, b'{"error": {"message": "Lower max_tokens."}}', "Lower max_tokens."),
        (502, b"<html>", "HTTP status 502"),
        (404, b'{"error": "gone"}', "HTTP status 404"),
        (200, b'data: {"error": {"message": "Stage 2 was lost."}}\n\n', "Stage 2 was lost."),
        (200, b'data: {"text": "a"}\n\n', "ended its answer early"),
        (200, b"data: nonsense\n\n", "not MoLink's"),
    ],
)
async def test_failures_are_one_sentence(answer_with, status, raw, sentence):
    url = await answer_with(status, [raw])
    with pytest.raises(UserError, match=sentence):
        await stream(url)
