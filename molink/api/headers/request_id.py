"""One id for a request, from its client's headers to our logs and back.

A client that sends `X-Request-Id` finds its own id in the answer's headers and in what the server
logs of the request; any other finds one made here. It may end in a log or on a terminal, so only a
short printable one is taken. An answer that can be asked for again has an `id` that was drawn.
"""

import re
import secrets

from aiohttp import web
from aiohttp.typedefs import Handler

from molink.api.headers.serving import SERVED
from molink.serving.timeline import ARRIVAL, Arrival, RequestTimeline

REQUEST_ID_HEADER = "X-Request-Id"

_GOOD_ID = re.compile(r"[\x20-\x7e]{1,128}")
"""Longer than a UUID or a trace id with all its parts."""

_MADE_BYTES = 12

TRACEPARENT_CHARS_MAX = 64
"""Version 00 has 55."""

CHAT_PATHS = frozenset({"/v1/chat/completions", "/v1/responses", "/v1/messages"})
"""Paths of conversations, for metrics; all others complete text."""

REQUEST_ID = web.RequestKey("request_id", str)

SEQUENCES = web.RequestKey("sequences", list[RequestTimeline])
"""Timelines of what is generated for a request; headers are written when its task's context has
ended."""


@web.middleware
async def request_identified(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Note the request's id and when it came, for all that happens within."""
    request[SEQUENCES] = []
    operation = "chat" if request.path in CHAT_PATHS else "text_completion"
    traceparent = request.headers.get("traceparent", "")[:TRACEPARENT_CHARS_MAX]
    arrival = ARRIVAL.set(Arrival(request_id_of(request), operation, traceparent))
    served = SERVED.set(request[SEQUENCES])
    try:
        return await handler(request)
    finally:
        ARRIVAL.reset(arrival)
        SERVED.reset(served)


def request_id_of(request: web.Request) -> str:
    """The id that the client gave the request, or else one made here."""
    if REQUEST_ID not in request:
        given = request.headers.get(REQUEST_ID_HEADER, "")
        is_good = _GOOD_ID.fullmatch(given) is not None
        request[REQUEST_ID] = given if is_good else secrets.token_hex(_MADE_BYTES)
    return request[REQUEST_ID]


def kept_id_of(request: web.Request) -> str:
    """Id under which its answer is kept: never the client's, as others may choose the same."""
    own = request_id_of(request)
    is_chosen = own == request.headers.get(REQUEST_ID_HEADER)
    return secrets.token_hex(_MADE_BYTES) if is_chosen else own
