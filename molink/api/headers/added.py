"""The headers that every answer carries, whichever endpoint it is of."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from molink.api.errors import is_anthropic
from molink.api.headers.cors import CorsRules, add_cors_headers
from molink.api.headers.ignored_fields import IGNORED, IGNORED_HEADER
from molink.api.headers.request_id import REQUEST_ID_HEADER, SEQUENCES, request_id_of
from molink.api.headers.serving import serving_headers

__all__ = ["headers_added"]

ANTHROPIC_REQUEST_ID_HEADER = "request-id"
"""Under which Anthropic's clients look for the id."""


def headers_added(
    cors: CorsRules,
) -> Callable[[web.Request, web.StreamResponse], Awaitable[None]]:
    """Signal: add the request's id, what served it, the names of ignored fields, and what browsers
    ask for."""

    async def add(request: web.Request, response: web.StreamResponse) -> None:
        response.headers[REQUEST_ID_HEADER] = request_id_of(request)
        if is_anthropic(request.path):
            response.headers[ANTHROPIC_REQUEST_ID_HEADER] = request_id_of(request)
        response.headers.update(serving_headers(request.get(SEQUENCES, ())))
        if (ignored := request.get(IGNORED)) is not None:
            response.headers[IGNORED_HEADER] = ignored
        add_cors_headers(cors, request, response)

    return add
