"""`GET /openapi.json`, and `GET /docs`: a page that makes a form of each endpoint.

The page is ours: viewers of OpenAPI documents that others wrote weigh megabytes or load from
elsewhere. It asks nobody but this server, which its content security policy makes sure of.
"""

from functools import cache

from aiohttp import web

from molink.api.answers import json_text
from molink.api.openapi.document import openapi_document
from molink.api.page.routes import add_file_routes

FILES = {"/docs": "docs.html", "/docs/docs.css": "docs.css", "/docs/docs.js": "docs.js"}
"""Names of files by path."""

DOCS_PATHS = frozenset({"/openapi.json", *FILES})
"""Paths that hold nothing of this server; a browser that opens a page sends no key."""


def add_openapi_routes(app: web.Application) -> None:
    """Serve the document of the application's routes, and the page."""

    @cache
    def document() -> str:
        return json_text(openapi_document(app))

    async def get_document(request: web.Request) -> web.Response:
        """The OpenAPI document of this server."""
        return web.Response(text=document(), content_type="application/json")

    app.add_routes([web.get("/openapi.json", get_document)])
    add_file_routes(app, "molink.api.openapi", FILES)
