"""MoLink's API in front of the scripted model, on a thread of its own, with a list of refusals."""

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from molink.api import create_app, start_api
from tools.clients.model import ScriptedModel

__all__ = ["Requests", "Server", "running"]

SENTENCE_CHARS_MAX = 300


@dataclass
class Requests:
    """List of what was asked, and of what was refused."""

    count: int = 0
    refused: list[str] = field(default_factory=list)
    """Method, path, status and sentence of each 4xx and 5xx of a POST."""
    ignored: set[str] = field(default_factory=set)
    """Names of fields that were passed over."""

    def forgive(self, told: Sequence[str]) -> None:
        """Forget the refusals with one of these words: they were provoked."""
        self.refused = [one for one in self.refused if not any(words in one for words in told)]

    @web.middleware
    async def noting(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Middleware around all others."""
        response = await handler(request)
        if request.method == "POST":
            self.count += 1
            self.ignored.update(response.headers.get("X-MoLink-Ignored", "").split(", "))
            if response.status >= 400:
                self.refused.append(f"{request.path} {response.status}: {_sentence(response)}")
        return response


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
    """Serve the model in the block, on a free port of this machine."""
    requests, loop = Requests(), asyncio.new_event_loop()
    app = create_app(model)
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
