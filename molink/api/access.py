"""Access to the API by keys, and the checks that keep web pages out where none is needed.

What a route asks for is in one table (`scope_of`): an inference key for answers, one to watch for
what the cluster tells of itself, an admin key for orders and for routes that nobody thought of;
`/health` and the web page are open to everybody. A key opens the same wherever it comes from.

Where a request comes from only takes rights away. Without a key somebody may ask, and watch, on
loopback, until a key is made there and if no proxy has passed the request on; with `--no-keys`
everybody may ask. An order always wants a key.

Without keys, every page in the operator's browser could use an API on loopback: its posts arrive,
and a page whose name is made to point at 127.0.0.1 (DNS rebinding) reads the answers as well. A
request without a key must therefore name a host that is known to be ours, and come from no other
origin than those that the operator has named (`headers.cors`). Addresses always count as ours: a
page can only be rebound by a name. A valid key needs none of that, since no page has it. Posts are
JSON by their content type in any case: without asking first, browsers send only others across
origins. A file comes as a form, which they do send, and then the origin alone keeps it out.

A server that needs no keys takes what OpenAI's clients send when they have none ("none", "unused"),
but refuses one of ours that is revoked or not known: who sends a key counts on its limit.
"""

import ipaddress
import math
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from molink.api.callers import CALLER, CALLERS
from molink.api.cluster_routes import CATALOGUE_PATH, PLAN_PATH
from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.headers.cors import CorsRules
from molink.api.keys.daily_usage import day_of, until_next_day_s
from molink.api.keys.live_keys import LiveKeys, RateState, run_live_keys
from molink.api.keys.store import KEY_PREFIX, ApiKey, KeyState, KeyStore, Scope
from molink.api.openapi.routes import DOCS_PATHS
from molink.api.page.routes import PAGE_PATHS, RING_PATH
from molink.client.api_client import LOOPBACK_NAMES, is_loopback
from molink.errors import UserError
from molink.serving.events import EventLedger

OPEN_PATHS = PAGE_PATHS | DOCS_PATHS | {"/health"}
"""The pages hold nothing of this server; what they ask for is checked like any other request."""

INFERENCE_PATHS = ("/detokenize", "/generate", RING_PATH, "/tokenize", "/v1/")

WATCH_PATHS = frozenset(
    {
        "/cluster",
        "/cluster/requests",
        "/cluster/events",
        "/cluster/findings",
        "/metrics",
        PLAN_PATH,
        CATALOGUE_PATH,
    }
)
"""Paths that can only be read; whatever acts on the cluster is an order."""

FORM_PATHS = frozenset({"/v1/files"})
"""Paths to which forms are posted."""

PROXY_HEADERS = ("Forwarded", "Via", "X-Forwarded-", "X-Real-Ip")
"""How headers begin that proxies add to the requests that they pass on."""

NO_KEY_YET = """\
No key opens the API yet, and without one nobody is answered: `molink key create` prints one for a
user, with --scope admin for yourself (give it the same --data-dir). `--no-keys` lets everybody ask.
"""

RATE = web.RequestKey("rate", RateState)


@dataclass(frozen=True, slots=True)
class Access:
    """Rules of one API: who may use it, and under which names it is reached."""

    keys: LiveKeys | None = None
    """None: there are none, so nobody may give orders."""
    required: bool = False
    """Whether a key is asked for though none was made: others than this machine reach it."""
    host_names: frozenset[str] = frozenset()
    """Names of this server besides those of loopback; addresses are always right."""
    now_s: Callable[[], float] = time.monotonic
    cors: CorsRules = field(default_factory=CorsRules)
    """Other origins whose pages may use the API."""
    no_keys: bool = False
    """Whether everybody may ask for answers, whatever keys there are."""

    def lets_in(self, scope: Scope, *, proxied: bool) -> bool:
        """Whether a request without a key is let in where this scope is needed."""
        if scope == "inference" and self.no_keys:
            return True
        holds_keys = self.keys is not None and self.keys.holds_keys()
        return scope != "admin" and not (proxied or self.required or holds_keys)

    @property
    def rules(self) -> str:
        """Rules for questions and for orders, as a line for the operator."""
        who = "whoever has a key"
        if self.lets_in("inference", proxied=False):
            here = "whoever is on this machine, until a key is made"
            who = "everybody who reaches it" if self.no_keys else here
        orders = "whoever has an admin key, and molink's own commands here"
        return f"Who may ask: {who}. Who may give orders: {orders}."

    @property
    def hint(self) -> str | None:
        """Advice to the operator for as long as nobody can use the API; None: none is needed."""
        if self.keys is None or self.lets_in("inference", proxied=False):
            return None
        return None if self.keys.has_usable() else NO_KEY_YET


@asynccontextmanager
async def open_access(
    host: str,
    data_dir: Path,
    names: Iterable[str],
    *,
    no_keys: bool,
    make: bool,
    cors: CorsRules | None = None,
) -> AsyncIterator[Access]:
    """Access to an API that listens at `host` and is reached under `names`, from the pages that
    `cors` allows.

    Keys are read from `data_dir`, where a file for them is made. Raises UserError when it cannot be
    opened; where it cannot be made, only if one is needed or `make` says so.
    """
    machine = socket.gethostname()
    ours = frozenset(name.lower() for name in (*names, machine, f"{machine}.local") if name)
    required = not is_loopback(host)
    async with AsyncExitStack() as stack:
        try:
            keys = await stack.enter_async_context(run_live_keys(data_dir))
        except UserError:
            if make or (required and not no_keys) or KeyStore.exists(data_dir):
                raise
            keys = None
        yield Access(keys, required, ours, cors=cors or CorsRules(), no_keys=no_keys)


def access_checked(access: Access, events: EventLedger) -> Middleware:
    """Middleware that lets in who may, counts the request for its key, and notes its caller; the
    use of a key that opens nothing any more becomes an event."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in OPEN_PATHS:
            _admit(access, request, events)
        return await handler(request)

    return check


async def add_rate_limit_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal: add OpenAI's headers about a key's limit to each answer."""
    state = request.get(RATE)
    if state is not None:
        response.headers["x-ratelimit-limit-requests"] = str(state.limit)
        response.headers["x-ratelimit-remaining-requests"] = str(state.remaining)
        response.headers["x-ratelimit-reset-requests"] = _duration(state.reset_s)


def _admit(access: Access, request: web.Request, events: EventLedger) -> None:
    """Raise ApiError: 401 without a key or with a wrong one, 403 where it opens nothing, 415 for
    another content type, 429 over its rate."""
    scope = _scope(request)
    key = _key(access, request, scope, events)
    if key is None:
        _check_keyless(access, request)
    elif key.scope not in (scope, "admin"):
        raise ApiError(
            f"A key of scope '{key.scope}' does not open {request.path[:NAME_CHARS_SHOWN]}: use "
            f"one that was made with `molink key create --scope {scope}`.",
            status=403,
            code="insufficient_permissions",
        )
    is_served = request.match_info.http_exception is None
    if is_served and request.method == hdrs.METH_POST:
        _check_content_type(request)
    request[CALLER] = request.app[CALLERS].find(request.remote, key)
    if key is not None and access.keys is not None and request.method == hdrs.METH_POST:
        _spend(access, access.keys, key, request)


def _check_content_type(request: web.Request) -> None:
    is_form = request.path in FORM_PATHS
    wanted = "multipart/form-data" if is_form else "application/json"
    says = "The body must be a form" if is_form else "The body must be JSON"
    if request.content_type != wanted:
        raise ApiError(
            f"{says}: send the header 'Content-Type: {wanted}'.",
            status=415,
            code="unsupported_media_type",
        )


def scope_of(method: str, path: str) -> Scope:
    """Scope that a key must open for a route, as its application names it, beside OPEN_PATHS."""
    if path.startswith(INFERENCE_PATHS):
        return "inference"
    is_read = method in (hdrs.METH_GET, hdrs.METH_HEAD)
    return "watch" if is_read and path in WATCH_PATHS else "admin"


def _scope(request: web.Request) -> Scope:
    """Scope by the route that will answer, however its path is written; without one, inference."""
    resource = request.match_info.route.resource
    return "inference" if resource is None else scope_of(request.method, resource.canonical)


# -- keys -----------------------------------------------------------------------------------------


def _key(access: Access, request: web.Request, scope: Scope, events: EventLedger) -> ApiKey | None:
    """The usable key that was sent; None: none was, and none is needed."""
    secret, proxy = _secret(request), _proxy(request)
    if not secret.startswith(KEY_PREFIX):
        if access.lets_in(scope, proxied=proxy is not None):
            return None
        if proxy is not None:
            raise _unauthorised(
                f"This request came through a proxy ({proxy}) and without a key: send "
                "'Authorization: Bearer KEY' with one of `molink key create`."
            )
    if not secret:
        what = "An order wants an admin key" if scope == "admin" else "This server wants a key"
        raise _unauthorised(
            f"{what} (molink key create --scope {scope}): send 'Authorization: Bearer KEY' or "
            "'X-Api-Key: KEY' (molink: --key)."
        )
    key = access.keys.find(secret) if access.keys is not None else None
    if key is None:
        raise _unauthorised(
            "This server does not know your key: check it, or get a new one (molink key create)."
        )
    assert access.keys is not None, "it has found the key"
    state = key.state(access.keys.clock())
    if state != "usable":
        told, sentence = _why_refused(key, state)
        if access.keys.is_news(key):
            events.add("key_refused", told)
        raise _unauthorised(sentence)
    return key


def _why_refused(key: ApiKey, state: KeyState) -> tuple[str, str]:
    """What the operator is told of a key that opens nothing any more, and what its user is."""
    which = f"the key '{key.name}' ({key.key_id})"
    if state == "rotated" and key.rotated is not None:
        day = day_of(key.rotated)
        return (
            f"{which} was rotated on {day}, and somebody still uses its old secret",
            f"Your key was replaced by a new one on {day}: ask whoever runs the server for it.",
        )
    return (
        f"{which} is {state}, and somebody still uses it",
        f"Your key is {state}: whoever runs the server makes a new one (molink key create).",
    )


def _secret(request: web.Request) -> str:
    """The key as OpenAI's clients send it, or as Anthropic's do; empty: none was sent."""
    kind, _, secret = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if kind.lower() == "bearer":
        return secret.strip()
    return request.headers.get("X-Api-Key", "").strip()


def _proxy(request: web.Request) -> str | None:
    """The header by which a request shows that a proxy has passed it on; None: it shows none."""
    titles = (name.title() for name in request.headers)
    return next((title for title in titles if title.startswith(PROXY_HEADERS)), None)


def _unauthorised(sentence: str) -> ApiError:
    headers = {"WWW-Authenticate": "Bearer"}
    return ApiError(sentence, status=401, code="invalid_api_key", headers=headers)


def _spend(access: Access, keys: LiveKeys, key: ApiKey, request: web.Request) -> None:
    """Count a post for its key. Raises ApiError when it is over the key's rate or quota."""
    usage = keys.usage(key)
    usage.requests += 1
    usage.last_used = keys.clock()
    try:
        _check_rate(keys.spend(key, access.now_s()), request)
        _check_quota(keys, key)
    except ApiError:
        usage.refused += 1
        raise


def _check_rate(state: RateState | None, request: web.Request) -> None:
    """Note how the key stands with its rate. Raises ApiError when it is over that."""
    if state is not None:
        request[RATE] = state
        if not state.allowed:
            raise ApiError(
                f"Your key may send {state.limit} requests a minute: wait "
                f"{_duration(state.retry_s)}.",
                status=429,
                code="rate_limit_exceeded",
                headers={"Retry-After": str(math.ceil(state.retry_s))},
            )


def _check_quota(keys: LiveKeys, key: ApiKey) -> None:
    """Raise ApiError when the key has had its tokens of this day."""
    if keys.quota_left(key) == 0:
        wait_s = until_next_day_s(keys.clock())
        raise ApiError(
            f"Your key has {key.tokens_per_day:,} tokens a day, and they are spent: wait "
            f"{_in_words(wait_s)}, until midnight UTC.",
            status=429,
            code="insufficient_quota",
            headers={"Retry-After": str(math.ceil(wait_s))},
        )


def _duration(seconds: float) -> str:
    """A duration as OpenAI writes it: 340ms, 1s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _in_words(seconds: float) -> str:
    """What is left of a day, for people: 18 h 3 min."""
    hours, minutes = divmod(math.ceil(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


# -- web pages ------------------------------------------------------------------------------------


def _check_keyless(access: Access, request: web.Request) -> None:
    host = request.headers.get(hdrs.HOST, "")
    if not _is_ours(host, access.host_names):
        raise ApiError(
            f"This server is not known as {host[:NAME_CHARS_SHOWN]!r}: use its address, send a "
            "key, or start it with --allowed-host.",
            status=403,
            code="unknown_host",
        )
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and _place(origin) != host.lower() and not access.cors.names(origin):
        raise ApiError(
            "A web page of another origin may not use this server without a key: send one, or "
            "start the server with --cors-origin.",
            status=403,
            code="foreign_origin",
        )


def _place(origin: str) -> str | None:
    """Host and port of an origin; None when it is no URL."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _is_ours(host: str, names: frozenset[str]) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    name = name.rstrip(".")
    if name in LOOPBACK_NAMES or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
