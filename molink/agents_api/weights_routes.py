"""The endpoints where nodes fetch the files of their layers.

`GET /weights/manifest` lists what there is (see `checkpoint.weights_manifest`), `GET
/weights/files/NAME` gives any range of it; below `/weights/drafter` lies so a model that drafts.
All want a node's bearer token. Only names of the manifest are served, so no path leads out of the
model's directory.

Until every file is hashed the manifest is answered with 503 and a time to come back. Giving out
each file as soon as its sums are known was rejected: the sums come at several times the rate of a
home upload and are kept for later starts, so little would be won, and a manifest that grows would
make every node poll and merge.

Bytes are written from here, not by aiohttp's FileResponse: its sendfile would be cheaper, but
cannot be paced, and the upload of a home coordinator is what has to be shared: weights and tokens
leave the coordinator's PC by the same line. A download takes a *slot* for one request (`slots.py`);
one that finds none waits in line for a while and is then sent away with a time to come back. Nodes
ask for a few blocks at a time, so slots change hands and a slow node delays no other for long.
"""

import asyncio
import gzip
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from aiohttp import ClientConnectionResetError, hdrs, web

from molink.agents_api.offered_files import FileState, OfferedFiles
from molink.agents_api.slots import (
    DOWNLOADS_MAX,
    Download,
    DownloadSlots,
    NoSlotError,
    RateCap,
    TakenOverError,
)
from molink.api.errors import ApiError
from molink.checkpoint.weights_manifest import DRAFTER_PART
from molink.control.versions import PROTOCOL_HEADER, PROTOCOL_IF_UNSTATED, own_protocols
from molink.token_bucket import TokenBucket

CHUNK_BYTES = 256 * 2**10
"""Bytes written at once: steps of a cap, and under a millisecond of the event loop."""

STALL_S = 60.0
"""Seconds for one chunk to leave; a node that reads slower than 4 KB/s gives the slot back."""

RETRY_AFTER_S = 5
"""Seconds to wait after a 503: hashing a few GB takes about that."""

MANIFEST_PERIOD_S, MANIFESTS_FREE = 10.0, 16
"""Seconds between a PC's manifests, and how many it may fetch at once before: it wants one at each
start of each device, and a manifest may be a megabyte."""

PcOfToken = Callable[[str], str | None]
"""The PC of the node with this bearer token; None: no node that may fetch weights has it. Must not
block."""

MadeWait = Callable[[str], None]
"""Callback with a PC whose download waits for the coordinator, or has not the whole of its line."""


@dataclass(slots=True)
class WeightsRoutes:
    """Handlers of the weights' endpoints, with the slots and the cap that they share."""

    offered: OfferedFiles
    pc_of_token: PcOfToken
    made_wait: MadeWait
    slots: DownloadSlots
    cap: RateCap
    bytes_sent: int = 0
    """Bytes of files, to all nodes."""
    _packed: "asyncio.Task[bytes] | None" = None
    """The manifest, once somebody has asked."""
    _asked: dict[str, TokenBucket] = field(default_factory=dict)
    """Limit by PC on how often it may fetch the manifest."""

    async def get_manifest(self, request: web.Request) -> web.Response:
        """The manifest: all files with their checksums, compressed once for everybody."""
        pc = self._pc(request)
        manifest = self._ready(pc)
        asked = self._asked.setdefault(pc, TokenBucket(1 / MANIFEST_PERIOD_S, MANIFESTS_FREE))
        if asked.wait_s(now := time.monotonic()):
            raise _busy("This PC has the manifest: it comes once in a while.")
        asked.spend(1, now)
        if "gzip" not in request.headers.get(hdrs.ACCEPT_ENCODING, ""):
            return web.Response(body=manifest, content_type="application/json")
        if self._packed is None:
            self._packed = asyncio.create_task(asyncio.to_thread(gzip.compress, manifest, mtime=0))
        return web.Response(
            body=await asyncio.shield(self._packed),
            content_type="application/json",
            headers={hdrs.CONTENT_ENCODING: "gzip"},
        )

    async def get_file(self, request: web.Request) -> web.StreamResponse:
        """A file, or the range of it that is asked for."""
        pc = self._pc(request)
        self._ready(pc)
        name = request.match_info["name"]
        path, size = self._file(name)
        start, stop = _range(request, name, size)
        try:
            self._note_wait(pc)
            async with self.slots.one(pc) as download:
                return await self._send(request, path, size, start, stop, download)
        except NoSlotError:
            self._note_wait(pc)
            raise _busy("Other nodes are downloading: come back in a moment.") from None
        except TakenOverError:
            _abort(request, "the PC has asked anew")

    def _pc(self, request: web.Request) -> str:
        pc = pc_that_asks(request, self.pc_of_token, "Weights are")
        told = request.headers.get(PROTOCOL_HEADER, "")
        number = int(told) if told.isdecimal() and len(told) < 10 else PROTOCOL_IF_UNSTATED
        if trouble := own_protocols().trouble(number):
            raise ApiError(trouble, status=409, code="outdated")
        return pc

    def _note_wait(self, pc: str) -> None:
        """Excuse a PC that has not the whole line to itself."""
        if self.slots.has_others(pc) or self.cap.bytes_per_s is not None:
            self.made_wait(pc)

    def _ready(self, pc: str) -> bytes:
        if self.offered.failure is not None:
            raise ApiError(self.offered.failure, status=500, code="weights_unreadable")
        if self.offered.manifest_json is None:
            self.made_wait(pc)
            done = int(100 * self.offered.progress)
            raise _busy(f"Checksums of the weights are being computed ({done} %): come back soon.")
        return self.offered.manifest_json

    def _file(self, name: str) -> tuple[Path, int]:
        offered = self.offered.files.get(name)
        if offered is None:
            raise ApiError(
                f"The model has no file {name[:200]!r}: see /weights/manifest.", status=404
            )
        path, state = offered
        try:
            same = FileState.of(path) == state
        except OSError:
            same = False
        if not same:
            raise ApiError(
                f"{name} has changed on the coordinator's disk since it started: restart it.",
                status=500,
                code="weights_changed",
            )
        return path, state.size

    async def _send(
        self,
        request: web.Request,
        path: Path,
        size: int,
        start: int,
        stop: int,
        download: Download,
    ) -> web.StreamResponse:
        whole = (start, stop) == (0, size) and hdrs.RANGE not in request.headers
        response = web.StreamResponse(status=200 if whole else 206)
        response.content_type = "application/octet-stream"
        response.content_length = stop - start
        response.headers[hdrs.ACCEPT_RANGES] = "bytes"
        if not whole:
            response.headers[hdrs.CONTENT_RANGE] = f"bytes {start}-{stop - 1}/{size}"
        await response.prepare(request)
        if request.method != hdrs.METH_HEAD:
            try:
                await self._send_bytes(response, path, start, stop, download)
            except TimeoutError:
                _abort(request, "the node reads nothing any more")
        return response

    async def _send_bytes(
        self, response: web.StreamResponse, path: Path, start: int, stop: int, download: Download
    ) -> None:
        file = await asyncio.to_thread(path.open, "rb")
        try:
            await asyncio.to_thread(file.seek, start)
            while start < stop:
                data = await asyncio.to_thread(file.read, min(CHUNK_BYTES, stop - start))
                if not data:
                    raise ClientConnectionResetError(f"{path} became shorter while it was read")
                await self.cap.take(len(data))
                async with asyncio.timeout(STALL_S):
                    await response.write(data)
                start += len(data)
                self.bytes_sent += len(data)
                download.sent_bytes += len(data)
                self._note_wait(download.pc)
        finally:
            await asyncio.to_thread(file.close)


def add_weights_routes(
    app: web.Application,
    offered: OfferedFiles,
    pc_of_token: PcOfToken,
    made_wait: MadeWait = lambda pc: None,
    *,
    drafter: OfferedFiles | None = None,
    downloads_max: int = DOWNLOADS_MAX,
    bytes_per_s_max: float | None = None,
) -> WeightsRoutes:
    """Serve `offered` under /weights/ to those whose token is one of a PC, and a `drafter` under
    /weights/drafter/.

    `bytes_per_s_max` caps all downloads together. The app needs the middleware of `create_app`,
    which turns refusals into answers. The routes returned count the bytes that went out of
    `offered`.
    """
    routes = WeightsRoutes(
        offered, pc_of_token, made_wait, DownloadSlots(downloads_max), RateCap(bytes_per_s_max)
    )
    _add_routes(app, "/weights", routes)
    if drafter is not None:
        beside = WeightsRoutes(drafter, pc_of_token, made_wait, routes.slots, routes.cap)
        _add_routes(app, f"/weights/{DRAFTER_PART}", beside)
    return routes


def _add_routes(app: web.Application, path: str, routes: WeightsRoutes) -> None:
    app.add_routes(
        [
            web.get(f"{path}/manifest", routes.get_manifest),
            web.get(f"{path}/files/{{name}}", routes.get_file),
        ]
    )


def pc_that_asks(request: web.Request, pc_of_token: PcOfToken, what_is: str) -> str:
    """Id of the PC whose request this is. Raises ApiError for a stranger's, which begins with
    `what_is`."""
    kind, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise ApiError(
            f"{what_is} for this cluster's nodes: send the node's token as a bearer token.",
            status=401,
            headers={"WWW-Authenticate": "Bearer"},
        )
    pc = pc_of_token(token.strip())
    if pc is None:
        raise ApiError(
            "This token is of no node of the cluster: join with an invite first.", status=403
        )
    return pc


def _abort(request: web.Request, why: str) -> NoReturn:
    """Drop the connection of a node that reads it no more, with what waits to be sent."""
    if request.transport is not None:
        request.transport.abort()
    raise ClientConnectionResetError(why)


def _busy(message: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(message, status=503, code="weights_busy", headers=headers)


def _range(request: web.Request, name: str, size: int) -> tuple[int, int]:
    """First byte of a range and the byte after its last."""
    try:
        start, stop, _ = request.http_range.indices(size)
    except ValueError:
        start, stop = size, size
    if start >= stop and size > 0:
        raise ApiError(
            f"{name} has {size} bytes: ask for a range that lies in them.",
            status=416,
            headers={"Content-Range": f"bytes */{size}"},
        )
    return start, stop
