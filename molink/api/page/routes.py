"""The page's files and `GET /ring`, with the headers that keep the page to itself.

The files are read once and held: they are few and small. What a model writes is shown in this page,
so its policy allows no script and no style but these files, no request to anybody else, and no way
to turn text into HTML (`require-trusted-types-for`).

The files are open to everybody under any name: they hold nothing of this server. What they ask for
afterwards passes the checks of `access` like any other request.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import resources
from typing import Any

from aiohttp import hdrs, web

from molink.api.page.ring_view import ring_view
from molink.serving.service import GenerationService

__all__ = ["PAGE_PATHS", "RING_PATH", "add_page_routes"]

RING_PATH = "/ring"

RING_FRESH_S = 0.5
"""Every open page asks once a second, and the stages' figures are up to a second old: the view is
made twice a second, however many look at it."""

CONTENT_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}

MODULES = ("announcer", "answer", "api", "dom", "main", "markdown", "ring", "settings")

FILES = {"/": "index.html"} | {
    f"/page/{name}": name
    for name in ("icon.svg", "page.css", *(f"{module}.js" for module in MODULES))
}
"""By path."""

PAGE_PATHS = frozenset(FILES)

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""A browser may keep a file but asks each time whether it is still the same: after an update all
files are of one version."""


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file of the page, in memory."""

    body: bytes
    content_type: str
    etag: str


def add_page_routes(
    app: web.Application,
    service: GenerationService,
    now_s: Callable[[], float] = time.monotonic,
) -> None:
    """Serve the page, its files, and the view of the rings that it shows."""
    app.add_routes([web.get(path, partial(_get_file, name)) for path, name in FILES.items()])
    seen_at, seen = -RING_FRESH_S, dict[str, Any]()

    async def get_ring(request: web.Request) -> web.Response:
        """The rings, reduced to what a user may see: stages, links, and whether they serve."""
        nonlocal seen_at, seen
        if now_s() - seen_at >= RING_FRESH_S or not seen:
            seen_at, seen = now_s(), ring_view(service.cluster(), service.unready_reason)
        return web.json_response(seen, headers={"Cache-Control": "no-store"})

    app.add_routes([web.get(RING_PATH, get_ring)])


async def _get_file(name: str, request: web.Request) -> web.Response:
    """A page to chat in, with the rings beside it."""
    file = _file(name)
    headers = HEADERS | {hdrs.ETAG: f'"{file.etag}"'}
    known = request.if_none_match or ()
    if any(tag.value in (file.etag, "*") for tag in known):
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=file.body, content_type=file.content_type, charset="utf-8", headers=headers
    )


@lru_cache
def _file(name: str) -> PageFile:
    body = resources.files("molink.api.page").joinpath(name).read_bytes()
    content_type = CONTENT_TYPES[name[name.rindex(".") :]]
    return PageFile(body, content_type, hashlib.sha256(body).hexdigest()[:32])
