"""MoLink's API in front of the scripted model, or a proxy in front of all of MoLink.

Each runs on a thread of its own, and has a list of what was refused.
"""

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
from aiohttp import web
from aiohttp.typedefs import Handler

from molink.api import create_app, start_api
from molink.serving.answers.live_state import LiveState
from tools.clients.model import MODEL_NAME, ScriptedModel

__all__ = ["Requests", "Server", "in_front_of", "running"]

BODY_BYTES_MAX = 2**26
"""As large as MoLink takes by far."""

OF_ONE_HOP = {"Host", "Connection", "Content-Length", "Transfer-Encoding"}
"""Headers that a proxy writes anew."""

SENTENCE_CHARS_MAX = 300


@dataclass
class Requests:
    """List of what was asked, and of what was refused."""

    count: int = 0
    refused: list[str] = field(default_factory=list)
    """Method, path, status and sentence of each 4xx and 5xx of a POST."""
    ignored: set[str] = field(default_factory=set)
    """Names of fields that were passed over."""
    silence_s: float = 0.0
    """Longest time without a byte in a stream, from its request on; a proxy notes it."""

    def forgive(self, told: Sequence[str]) -> int:
        """Forget the refusals with one of these words, which were provoked; how many they were."""
        kept = [one for one in self.refused if not any(words in one for words in told)]
        forgiven, self.refused = len(self.refused) - len(kept), kept
        return forgiven

    @web.middleware
    async def noting(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware around all others."""
        self.count += request.method == "POST"  # Before the answer: a client may go away meanwhile.
        request[NOTED] = self
        response = await handler(request)
        if request.method == "POST":
            self.ignored.update(response.headers.get("X-MoLink-Ignored", "").split(", "))
            if response.status >= 400:
                self.refused.append(f"{request.path} {response.status}: {_sentence(response)}")
        return response


NOTED = web.RequestKey("noted", Requests)
"""Where a request has the list that it stands in."""


def _sentence(response: web.StreamResponse) -> str:
    body = response.body if isinstance(response, web.Response) else None
    try:
        return str(json.loads(bytes(body or b""))["error"]["message"])[:SENTENCE_CHARS_MAX]  # type: ignore[arg-type]
    except (ValueError, KeyError, TypeError):
        return ""


@dataclass(frozen=True)
class Server:
    """Address of a running server, and the requests that it was sent."""

    url: str
    requests: Requests


@contextmanager
def running(model: ScriptedModel) -> Iterator[Server]:
    """Serve the model in the block, with answers kept as `molink serve` keeps them."""
    with tempfile.TemporaryDirectory(prefix="molink-answers-") as folder:
        live = LiveState.open(Path(folder), MODEL_NAME, time.time())
        with listening(create_app(model, live=live)) as server:
            yield server
        live.close()


@contextmanager
def in_front_of(url: str) -> Iterator[Server]:
    """A proxy that notes what another server is asked."""
    app = web.Application(client_max_size=BODY_BYTES_MAX)
    app.router.add_route("*", "/{path:.*}", partial(_passed_on, url))
    with listening(app) as server:
        yield server


async def _passed_on(url: str, request: web.Request) -> web.StreamResponse:
    headers = {name: value for name, value in request.headers.items() if name not in OF_ONE_HOP}
    noted = request[NOTED]
    heard_at = time.monotonic()
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(), auto_decompress=False) as session,
        session.request(
            request.method, url + str(request.rel_url), headers=headers, data=await request.read()
        ) as answer,
    ):
        told = {name: value for name, value in answer.headers.items() if name not in OF_ONE_HOP}
        if answer.status >= 400:
            return web.Response(status=answer.status, headers=told, body=await answer.read())
        response = web.StreamResponse(status=answer.status, headers=told)
        await response.prepare(request)
        is_stream = answer.content_type == "text/event-stream"
        async for piece in answer.content.iter_any():
            now = time.monotonic()
            if is_stream:
                noted.silence_s = max(noted.silence_s, now - heard_at)
            heard_at = now
            await response.write(piece)
        return response


@contextmanager
def listening(app: web.Application) -> Iterator[Server]:
    """Run an app in the block, on a free port of this machine, and note its requests."""
    requests, loop = Requests(), asyncio.new_event_loop()
    app.middlewares.insert(0, requests.noting)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        starting = start_api(app, "127.0.0.1", 0)
        runner = asyncio.run_coroutine_threadsafe(starting, loop).result()
        yield Server(f"http://127.0.0.1:{runner.addresses[0][1]}", requests)
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
