"""The owner's page, served by the agent on loopback: its files, its state, three orders.

The page is a client of the agent's local socket, as `molink agent status` is. Every program of this
PC reaches loopback, those of other accounts and pages in any browser too, so what the page asks for
carries a token that only the owner can read: `molink agent page` opens the page with it, behind a
#, which no server is sent. A request must also name this PC as its host (a name that was made to
point here is refused), and come from no other page.
"""

import hmac
import json
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler

from molink.api.page.routes import add_file_routes
from molink.client.api_client import is_loopback
from molink.control.private_file import read_private, write_private
from molink.errors import MolinkError, UserError
from molink_agent.daemon.given import GivenLedger
from molink_agent.daemon.membership import load_membership
from molink_agent.limits.limits import SET_COMMAND
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.owner_policy import PAUSED_FILE
from molink_agent.local_socket import ask_agent
from molink_agent.page.orders import change_limit
from molink_agent.page.view import PageView, page_view
from molink_agent.status_text import ShownStatus
from molink_agent.thanks.fetched import Thanks

PAGE_FILE = "page.json"
"""Where the page is and what opens it; only the owner may read it."""

FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js"}
ICON = "/icon.svg"

TOKEN_BYTES = 24
TOKEN_HEADER = "X-Molink-Token"
BODY_BYTES_MAX = 4096

HOST = "127.0.0.1"

DATA_DIR = web.AppKey("data_dir", Path)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PagePlace:
    """Address of an agent's page, kept so that it stays where its owner has bookmarked it."""

    port: int = 0
    """0: not known yet."""
    token: str = ""

    @property
    def url(self) -> str:
        """Address that opens it."""
        return f"http://{HOST}:{self.port}/#{self.token}"

    @classmethod
    def load(cls, data_dir: Path) -> "PagePlace":
        """The place of last time; a new one where there was none."""
        with suppress(ValueError, TypeError, UserError):
            if (text := read_private(data_dir / PAGE_FILE)) is not None:
                return cls(**json.loads(text))
        return cls(token=secrets.token_urlsafe(TOKEN_BYTES))


@asynccontextmanager
async def page_served(data_dir: Path) -> AsyncIterator[None]:
    """Serve the page while the block runs; where no port can be had the agent goes on without."""
    place = PagePlace.load(data_dir)
    runner = web.AppRunner(page_app(data_dir, place.token), access_log=None)
    await runner.setup()
    try:
        try:
            port = await _listen(runner, place.port)
            write_private(data_dir / PAGE_FILE, json.dumps(asdict(PagePlace(port, place.token))))
        except (OSError, UserError) as error:
            log.warning("The page of this PC is not served: %s", error)
        yield
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, port: int) -> int:
    """Listen at the port of last time if it is free, else at another. Raises OSError for none."""
    try:
        await web.TCPSite(runner, HOST, port).start()
    except OSError:
        await web.TCPSite(runner, HOST, 0).start()
    return int(runner.addresses[0][1])


def page_app(data_dir: Path, token: str) -> web.Application:
    """Application of the page over the agent in this data directory, for who has this token."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            _check(request, token)
            return await handler(request)
        except MolinkError as error:
            said = str(error).removeprefix(f"{SET_COMMAND}: ")  # Nobody has typed it here.
            return web.json_response({"error": said}, status=409)

    app = web.Application(middlewares=[check], client_max_size=BODY_BYTES_MAX)
    app[DATA_DIR] = data_dir
    add_file_routes(app, "molink_agent.page", FILES)
    add_file_routes(app, "molink.api.page", {ICON: "icon.svg"})
    app.add_routes(
        [
            web.get("/state", _get_state),
            web.post("/pause", _order),
            web.post("/resume", _order),
            web.post("/limits", _set_limit),
        ]
    )
    return app


def _check(request: web.Request, token: str) -> None:
    """Raise 403 for a page of somebody else's, 401 where the owner's token is missing."""
    if not is_loopback(_name(f"//{request.host}")):
        raise web.HTTPForbidden(text="This page answers to 127.0.0.1 alone.")
    origin = request.headers.get("Origin")
    if origin is not None and urlsplit(origin).netloc != request.host:
        raise web.HTTPForbidden(text="Another page may not use this one.")
    if request.path in FILES or request.path == ICON:
        return
    given = request.headers.get(TOKEN_HEADER, "")
    if not hmac.compare_digest(given.encode(errors="replace"), token.encode()):
        raise web.HTTPUnauthorized(text="Open this page with: molink agent page")


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


async def _get_state(request: web.Request) -> web.Response:
    return _json(await read_view(request.app[DATA_DIR]))


async def _order(request: web.Request) -> web.Response:
    """Pause, or lend again."""
    await ask_agent(request.app[DATA_DIR], {"command": request.path.strip("/")})
    return _json(await read_view(request.app[DATA_DIR]))


async def _set_limit(request: web.Request) -> web.Response:
    try:
        body = await request.json()
        key, value = str(body["key"]), str(body["value"])
    except (ValueError, KeyError, TypeError):
        raise UserError("A limit is {'key': ..., 'value': ...}.") from None
    said = await change_limit(request.app[DATA_DIR], key, value)
    return _json(await read_view(request.app[DATA_DIR]), said)


async def read_view(data_dir: Path) -> PageView:
    """What the page shows of an agent now. Raises UserError where none runs."""
    status = cast(ShownStatus, await ask_agent(data_dir, {"command": "status"}))
    membership, limits = load_membership(data_dir), LimitsFile(data_dir)
    limits.reload()  # Mistakes in it are in the status.
    model = None if membership is None else membership.answer.model
    return page_view(
        status,
        GivenLedger.load(data_dir),
        limits.limits,
        datetime.now(),
        paused=(data_dir / PAUSED_FILE).exists(),
        model_layers=None if model is None else model.layers,
        thanks=Thanks.load(data_dir),
    )


def _json(state: PageView, said: list[str] | None = None) -> web.Response:
    body = {"state": state, "said": said or []}
    return web.json_response(body, headers={"Cache-Control": "no-store"})
