"""The page's files and `GET /ring`, with the headers that keep the page to itself.

The files are read once and held: they are few and small. What a model writes is shown in this page,
so its policy allows no script and no style but these files, no request to anybody else, and no way
to turn text into HTML (`require-trusted-types-for`). A reader may ask another coordinator: then
the page loads itself anew with that one origin named (`/?with=https://other.example`), and this one
view of it may ask there. A link on somebody else's page cannot have that where a browser says who
opened the view (`Sec-Fetch-Site`): over HTTPS, and at localhost. Over plain HTTP it can, but the
page itself leaves a view whose origin its reader has not chosen.

The files are open to everybody under any name: they hold nothing of this server. What they ask for
afterwards passes the checks of `access` like any other request.

The view of the rings is made from the cluster's report by naming what is let through, so that
what is added there stays with the operator until somebody decides otherwise here. Figures are as
PCs report them: one that no JSON can hold becomes null, or a single PC could break the page of all.
"""

import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import resources
from typing import TypedDict

from aiohttp import hdrs, web

from molink.report.cluster import COORDINATOR, ClusterReport, RingLink, RingReport, StageReport
from molink.report.events import ClusterEvent
from molink.serving.service import GenerationService

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

MODULES = (
    "addresses",
    "announcer",
    "answer",
    "answering",
    "api",
    "attach",
    "chat",
    "dom",
    "history",
    "links",
    "main",
    "markdown",
    "math",
    "ring",
    "settings",
)

FILES = {"/": "index.html"} | {
    f"/page/{name}": name
    for name in ("icon.svg", "page.css", *(f"{module}.js" for module in MODULES))
}
"""Names of files by path."""

PAGE_PATHS = frozenset(FILES)

OTHER_ORIGIN_CHARS_MAX = 270
"""A name of a host has 253 at most."""

_OTHER_ORIGIN = re.compile(r"https?://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?")
"""What may stand in a policy: no sign that means something there."""

_NOT_BY_ITSELF = ("cross-site", "same-site")
"""`Sec-Fetch-Site` of a page that was opened from another one."""

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


def add_page_routes(
    app: web.Application,
    service: GenerationService,
    now_s: Callable[[], float] = time.monotonic,
) -> None:
    """Serve the page, its files, and the view of the rings that it shows."""
    add_file_routes(app, "molink.api.page", FILES)
    seen: RingsView | None = None
    seen_at = -RING_FRESH_S

    async def get_ring(request: web.Request) -> web.Response:
        """The rings, reduced to what a user may see: stages, links, and whether they serve."""
        nonlocal seen_at, seen
        if now_s() - seen_at >= RING_FRESH_S or seen is None:
            lost = lost_stages(service.events.after(0))
            seen_at, seen = now_s(), ring_view(service.cluster(), service.unready_reason, lost)
        return web.json_response(seen, headers={"Cache-Control": "no-store"})

    app.add_routes([web.get(RING_PATH, get_ring)])


def add_file_routes(app: web.Application, package: str, files: Mapping[str, str]) -> None:
    """Serve files of a package, each at its path, in the browser's sight of this server alone."""
    app.add_routes([web.get(path, partial(_get_file, package, one)) for path, one in files.items()])


def _policy(request: web.Request) -> str:
    """The policy of one view of the page: of another origin that it may ask, the reader has chosen
    it."""
    other = request.query.get("with", "")
    if len(other) > OTHER_ORIGIN_CHARS_MAX or not _OTHER_ORIGIN.fullmatch(other):
        return POLICY
    if request.headers.get("Sec-Fetch-Site") in _NOT_BY_ITSELF:
        return POLICY
    return POLICY.replace("connect-src 'self'", f"connect-src 'self' {other}")


async def _get_file(package: str, name: str, request: web.Request) -> web.Response:
    """A page that asks this server and nobody else, but for what its reader has chosen.

    Its tag is of its policy, too: a browser that is told 304 goes on with the policy it has."""
    file = _file(package, name)
    is_index = (package, name) == ("molink.api.page", FILES["/"])
    policy = _policy(request) if is_index else POLICY
    etag = hashlib.sha256(policy.encode() + file.body).hexdigest()[:32]
    headers = HEADERS | {"Content-Security-Policy": policy, hdrs.ETAG: f'"{etag}"'}
    known = request.if_none_match or ()
    if any(tag.value in (etag, "*") for tag in known):
        return web.Response(status=304, headers=headers)
    return web.Response(
        body=file.body, content_type=file.content_type, charset="utf-8", headers=headers
    )


@lru_cache
def _file(package: str, name: str) -> PageFile:
    body = resources.files(package).joinpath(name).read_bytes()
    content_type = CONTENT_TYPES[name[name.rindex(".") :]]
    return PageFile(body, content_type)


# -- rings ----------------------------------------------------------------------------------------


class StageView(TypedDict):
    """One stage, as a user may see it."""

    node: str
    layers: tuple[int, int]
    """[first, behind the last]."""
    busy_share: float | None


RingLinkView = TypedDict(
    "RingLinkView", {"from": str, "to": str, "rate_mbps": float | None, "rtt_ms": float | None}
)
"""One link between two stages, as a user may see it."""


class RingView(TypedDict):
    """One ring, as a user may see it."""

    ring: int
    stages: list[StageView]
    links: list[RingLinkView]
    waits_for: str | None
    """Node whose stage is lost or silent; null: the ring goes round."""


class RingsView(TypedDict):
    """The body of GET /ring."""

    model: str
    serving: bool
    reason: str | None
    """Why nothing serves; null: it does."""
    rings: list[RingView]


def lost_stages(events: Iterable[ClusterEvent]) -> dict[int, str]:
    """Name of the node that each ring has lost and still waits for, by the ring's number."""
    lost: dict[int, str] = {}
    for event in events:
        if event.kind == "stage_lost" and event.ring is not None:
            lost[event.ring] = event.node
        elif event.kind in ("ring_resumed", "ring_serving", "ring_ended") and event.ring in lost:
            del lost[event.ring]
    return lost


def ring_view(
    report: ClusterReport, unready_reason: str | None, lost: Mapping[int, str] | None = None
) -> RingsView:
    """The body of GET /ring, of a report, the reason why nothing serves (None: it does), and the
    nodes that rings have lost. A silent stage is waited for, too: it is lost seconds later."""
    rings = sorted(report.rings, key=lambda ring: ring.number)
    return {
        "model": report.model,
        "serving": unready_reason is None,
        "reason": unready_reason,
        "rings": [_ring(ring, (lost or {}).get(ring.number)) for ring in rings],
    }


def _ring(ring: RingReport, lost: str | None) -> RingView:
    silent = next((stage.node for stage in ring.stages if stage.silent_s > 0), None)
    return {
        "ring": ring.number,
        "stages": [_stage(stage) for stage in ring.stages],
        "links": [_link(link) for link in ring.links if COORDINATOR not in link.ends],
        "waits_for": lost or silent,
    }


def _stage(stage: StageReport) -> StageView:
    busy_share = _finite(stage.busy_share)
    return {"node": stage.node, "layers": stage.layers, "busy_share": busy_share}


def _link(link: RingLink) -> RingLinkView:
    return {
        "from": link.source,
        "to": link.target,
        "rate_mbps": _finite(link.rate_mbps),
        "rtt_ms": _finite(link.rtt_ms),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
