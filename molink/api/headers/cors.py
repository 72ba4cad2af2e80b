"""Web pages of other origins that a browser lets use the API (CORS).

None, unless the operator names them. A page whose origin is named may use a server without keys,
as the server's own pages may. `*` stands for any page that sends a key: a server without keys never
answers pages that nobody named, because any page that the operator happens to open could then use
it (`access`). Cookies are never involved, so credentials in CORS' sense are not allowed.

Browsers ask first (a preflight: OPTIONS with the method and the headers that are to come), without
a key, so that is answered before anything else is checked.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from molink.errors import UserError

ANY_ORIGIN = "*"

PREFLIGHT_S = 600
"""Seconds for which a browser need not ask again; Chromium takes at most 7,200."""

ASKED_CHARS_MAX = 2048
"""Names of headers that a page may announce; OpenAI's client announces some 400 characters."""

_HEADER_NAMES = re.compile(r"[-\w!#$%&'*+.^`|~, ]*", re.ASCII)

METHODS = "GET, POST, DELETE"

OUR_HEADERS: Mapping[str, str] = {
    "X-Request-Id": "The request's own `X-Request-Id`, or one made here.",
    "X-MoLink-Ignored": "Fields of the request that were ignored.",
    "X-MoLink-Ring": "Numbers of the rings that served it.",
    "X-MoLink-Nodes": "Names of the nodes that served it.",
    "X-MoLink-Queue-Ms": "Milliseconds that it waited.",
    "X-MoLink-Prefill-Ms": "Milliseconds from there to the first token.",
    "X-MoLink-Decode-Ms": "From there to the last; not of a stream.",
    "X-MoLink-Audited": "pending: another ring will compute it, too.",
}
"""Headers of an answer that are ours, and what each says."""

RATE_HEADERS = tuple(f"x-ratelimit-{one}-requests" for one in ("limit", "remaining", "reset"))

EXPOSED = ", ".join(("Retry-After", *OUR_HEADERS, *RATE_HEADERS))
"""Headers of an answer that a page may read."""


@dataclass(frozen=True, slots=True)
class CorsRules:
    """Origins whose pages may use the API."""

    origins: frozenset[str] = frozenset()
    """Origins as browsers send them, `https://chat.example:8443`; or `*`."""

    @classmethod
    def of(cls, origins: Iterable[str]) -> "CorsRules":
        """The rules of `--cors-origin`. Raises UserError for what no browser would send."""
        return cls(frozenset(_checked(one) for one in origins))

    def allows(self, origin: str) -> bool:
        """Whether a page of this origin may read answers."""
        return ANY_ORIGIN in self.origins or self.names(origin)

    def names(self, origin: str) -> bool:
        """Whether the operator has named this very origin."""
        return origin.lower() in self.origins


def _checked(origin: str) -> str:
    """The origin as a browser writes it, in small letters."""
    if origin == ANY_ORIGIN:
        return origin
    plain = origin.lower().removesuffix("/")
    try:
        url = urlsplit(plain)
        is_origin = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_origin = False
    if not is_origin or plain != f"{url.scheme}://{url.netloc}" or "@" in plain:
        raise UserError(
            f"--cors-origin takes an origin such as https://chat.example:8443, or *, "
            f"got {origin!r:.100}."
        )
    return plain


def preflight_answered(rules: CorsRules) -> Middleware:
    """Middleware that answers a browser that asks whether a page may send a request."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        is_preflight = (
            request.method == hdrs.METH_OPTIONS
            and hdrs.ACCESS_CONTROL_REQUEST_METHOD in request.headers
        )
        if not is_preflight or not rules.allows(request.headers.get(hdrs.ORIGIN, "")):
            return await handler(request)
        headers = {
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: METHODS,
            hdrs.ACCESS_CONTROL_MAX_AGE: str(PREFLIGHT_S),
        }
        asked = request.headers.get(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, "")
        if len(asked) <= ASKED_CHARS_MAX and _HEADER_NAMES.fullmatch(asked):
            headers[hdrs.ACCESS_CONTROL_ALLOW_HEADERS] = asked
        return web.Response(status=204, headers=headers)

    return answer


def add_cors_headers(rules: CorsRules, request: web.Request, response: web.StreamResponse) -> None:
    """Let a page of an allowed origin read the answer, whatever it is."""
    if not rules.origins:
        return
    response.headers.add(hdrs.VARY, hdrs.ORIGIN)
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and rules.allows(origin):
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
        response.headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = EXPOSED
