"""`GET /openapi.json`, and `GET /docs`: a page that makes a form of each endpoint.

The page is ours: viewers of OpenAPI documents that others wrote weigh megabytes or load from
elsewhere. It asks nobody but this server, which its content security policy makes sure of.
"""

from functools import cache, partial
from importlib import resources

from aiohttp import web

from molink.api.answers import json_text
from molink.api.openapi.document import openapi_document

__all__ = ["DOCS_PATHS", "add_openapi_routes"]

FILES = {"/docs": "docs.html", "/docs/docs.css": "docs.css", "/docs/docs.js": "docs.js"}
"""By path."""

DOCS_PATHS = frozenset({"/openapi.json", *FILES})
"""They hold nothing of this server, and a browser that opens a page sends no key."""

CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def add_openapi_routes(app: web.Application) -> None:
    """Serve the document of the application's routes, and the page."""

    @cache
    def document() -> str:
        return json_text(openapi_document(app))

    async def get_document(request: web.Request) -> web.Response:
        """The OpenAPI document of this server."""
        return web.Response(text=document(), content_type="application/json")

    app.add_routes([web.get("/openapi.json", get_document)])
    app.add_routes([web.get(path, partial(_get_file, name)) for path, name in FILES.items()])


async def _get_file(name: str, request: web.Request) -> web.Response:
    """A page that asks this server and nobody else."""
    content_type = CONTENT_TYPES[name[name.rindex(".") :]]
    return web.Response(
        body=_file(name), content_type=content_type, charset="utf-8", headers=HEADERS
    )


@cache
def _file(name: str) -> bytes:
    return resources.files("molink.api.openapi").joinpath(name).read_bytes()
