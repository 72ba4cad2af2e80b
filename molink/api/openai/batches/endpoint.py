"""`/v1/files` and `/v1/batches`: OpenAI's batch API over a folder of this server.

Each key sees its own files and batches alone, an admin's too; who asks without a key sees those of
all who do. A folder serves one server at a time: another one says so when it is asked.
"""

import re
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from aiohttp import web

from molink.api.backend import Backend
from molink.api.body import checked_body
from molink.api.callers import caller_of
from molink.api.errors import NAME_CHARS_SHOWN, ApiError
from molink.api.openai.batches.asking import ENDPOINTS, ask, owners_caller
from molink.api.openai.batches.idle_service import IdleService
from molink.api.openai.batches.refusals import on_disk, refused
from molink.api.openai.batches.runner import BatchRunner
from molink.api.openai.batches.schemas import BatchBody
from molink.api.openai.batches.store import (
    UNFINISHED_MAX,
    BatchStore,
    StoredBatch,
    StoredFile,
    removed,
)
from molink.api.openai.batches.uploads import checked_lines, left_to, received
from molink.config.data_dir import only_one
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.tasks import cancel, spawn

FOLDER, LOCK_FILE = "batches", "lock"

UPLOADS_MAX = 8
"""Uploads at a time."""

WINDOWS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WINDOW_S_MAX = 7 * 86400

LIST_MAX, LIST_DEFAULT = 100, 20

Listed = TypeVar("Listed", StoredFile, StoredBatch)


def add_batch_routes(app: web.Application, backend: Backend, data_dir: Path) -> None:
    """Serve files and batches that lie below `data_dir`, and run the batches while `app` runs."""
    handlers = BatchHandlers(data_dir / FOLDER, backend)
    app.cleanup_ctx.append(handlers.serve)
    app.add_routes(
        [
            web.post("/v1/files", handlers.post_file),
            web.get("/v1/files", handlers.get_files),
            web.get("/v1/files/{id}", handlers.get_file),
            web.delete("/v1/files/{id}", handlers.delete_file),
            web.get("/v1/files/{id}/content", handlers.get_content),
            web.post("/v1/batches", handlers.post_batch),
            web.get("/v1/batches", handlers.get_batches),
            web.get("/v1/batches/{id}", handlers.get_batch),
            web.post("/v1/batches/{id}/cancel", handlers.post_cancel),
        ]
    )


@dataclass(slots=True)
class BatchHandlers:
    """Handlers over one folder."""

    folder: Path
    backend: Backend
    trouble: str = "Batches are not ready yet: send yours again later."
    """Why nothing is served, while nothing is."""
    _store: BatchStore | None = None
    _runner: BatchRunner | None = None
    _uploads: int = 0

    async def serve(self, app: web.Application) -> AsyncIterator[None]:
        """Hold the folder and run its batches, until the application is cleaned up."""
        with ExitStack() as stack:
            try:
                stack.enter_context(only_one("A server with batches", self.folder / LOCK_FILE))
                store = stack.enter_context(closing(BatchStore.open(self.folder)))
            except UserError as error:
                self.trouble = str(error)
                yield
                return
            idle = IdleService(self.backend.service)
            beside = Backend(idle, self.backend.texts, self.backend.format)
            asked = partial(ask, app, beside)
            runner = BatchRunner(store, asked, partial(owners_caller, app), lambda: idle.wants_more)
            self._store, self._runner = store, runner
            running = spawn(idle.run()), spawn(runner.run())
            yield
            self._store = self._runner = None
            await cancel(*running)

    # -- files ------------------------------------------------------------------------------------

    async def post_file(self, request: web.Request) -> web.Response:
        """Keep a file of requests, one a line: form fields `purpose` ("batch"), `file`
        and `expires_after`."""
        if self._uploads >= UPLOADS_MAX:
            raise refused(f"{UPLOADS_MAX} files come already: send yours later.", 429, None)
        store, owner, now = self._opened, _owner(request), int(time.time())
        left = left_to(await self._files(owner))
        draft = store.draft()
        self._uploads += 1
        try:
            upload = await received(request, draft, left)
            lines = await on_disk(checked_lines, draft)
            file = await on_disk(store.keep, draft, owner, upload.name, lines, now, upload.kept_s)
        finally:
            self._uploads -= 1
            removed(draft)
        return web.json_response(file.api_object)

    async def get_files(self, request: web.Request) -> web.Response:
        """The caller's files, newest first."""
        files = await self._files(_owner(request))
        purpose = request.query.get("purpose")
        wanted = [one for one in files if purpose in (None, one.purpose)]
        return _page(request, [one.api_object for one in wanted])

    async def get_file(self, request: web.Request) -> web.Response:
        """One file, without its content."""
        return web.json_response((await self._file(request)).api_object)

    async def get_content(self, request: web.Request) -> web.StreamResponse:
        """The lines of a file."""
        file = await self._file(request)
        headers = {"Content-Type": "application/jsonl"}
        return web.FileResponse(self._opened.path(file.file_id), headers=headers)

    async def delete_file(self, request: web.Request) -> web.Response:
        """Remove a file, unless a batch still reads it."""
        file = await self._file(request)
        for batch in await on_disk(self._opened.unfinished):
            if batch.api_object["input_file_id"] == file.file_id:
                raise refused(f"The batch {batch.batch_id} reads it: cancel that first.", 409, "id")
        await on_disk(self._opened.delete, file)
        return web.json_response({"id": file.file_id, "object": "file", "deleted": True})

    # -- batches ----------------------------------------------------------------------------------

    async def post_batch(self, request: web.Request) -> web.Response:
        """Answer each line of a file in idle room, within `completion_window`."""
        store, owner, now = self._opened, _owner(request), int(time.time())
        async with checked_body(request, BatchBody, self.backend.card) as body:
            expires_at = now + _window_s(body.completion_window)
            if body.endpoint not in ENDPOINTS:
                known = ", ".join(ENDPOINTS)
                raise refused(f"'endpoint' is not served in batches: use {known}.", 400, "endpoint")
        file = _of_id(await self._files(owner), body.input_file_id)
        if file is None or file.purpose != "batch":
            raise refused(
                "'input_file_id' is no file of yours with the purpose 'batch': upload one to "
                "/v1/files.",
                404,
                "input_file_id",
            )
        unfinished = sum(not one.has_ended for one in await on_disk(store.batches, owner))
        if unfinished >= UNFINISHED_MAX:
            raise refused(f"{UNFINISHED_MAX} batches of yours are under way: wait.", 429, None)
        batch = _new_batch(owner, body, file, now, expires_at)
        await on_disk(store.save, batch)
        self._running.changed()
        return web.json_response(batch.api_object)

    async def get_batches(self, request: web.Request) -> web.Response:
        """The caller's batches, newest first."""
        found = await on_disk(self._opened.batches, _owner(request))
        return _page(request, [self._running.api_object(one) for one in found])

    async def get_batch(self, request: web.Request) -> web.Response:
        """How far a batch is."""
        return web.json_response(self._running.api_object(await self._batch(request)))

    async def post_cancel(self, request: web.Request) -> web.Response:
        """Ask no further line of a batch; what was answered is kept."""
        async with self._running.lock:
            batch = await self._batch(request)
            if batch.has_ended:
                raise refused(f"The batch is {batch.api_object['status']} already.", 409, "id")
            if batch.api_object["status"] != "cancelling":
                batch = batch.changed(status="cancelling", cancelling_at=int(time.time()))
                await on_disk(self._opened.save, batch)
            self._running.changed()
            return web.json_response(self._running.api_object(batch) | {"status": "cancelling"})

    # ---------------------------------------------------------------------------------------------

    @property
    def _opened(self) -> BatchStore:
        if self._store is None:
            raise ApiError(self.trouble, status=503, code="batches_unavailable")
        return self._store

    @property
    def _running(self) -> BatchRunner:
        if self._runner is None:
            raise ApiError(self.trouble, status=503, code="batches_unavailable")
        return self._runner

    async def _files(self, owner: str) -> list[StoredFile]:
        """The owner's files that have not expired, newest first."""
        await on_disk(self._opened.drop_old, time.time())
        return await on_disk(self._opened.files, owner)

    async def _file(self, request: web.Request) -> StoredFile:
        found = _of_id(await self._files(_owner(request)), request.match_info["id"])
        return _found(found, "file", request)

    async def _batch(self, request: web.Request) -> StoredBatch:
        found = await on_disk(self._opened.batch, _owner(request), request.match_info["id"])
        return _found(found, "batch", request)


def _owner(request: web.Request) -> str:
    return caller_of(request).key_id or ""


def _of_id(files: list[StoredFile], file_id: str) -> StoredFile | None:
    return next((one for one in files if one.file_id == file_id), None)


def _found(found: Listed | None, what: str, request: web.Request) -> Listed:
    if found is None:
        name = request.match_info["id"][:NAME_CHARS_SHOWN]
        raise refused(
            f"There is no {what} '{name}' of yours: check its id and your key.", 404, "id"
        )
    return found


def _window_s(window: str) -> int:
    """Seconds of a completion window. Raises ApiError for one that is over or too long."""
    found = re.fullmatch(r"(\d{1,6})([smhd])", window)
    seconds = int(found[1]) * WINDOWS[found[2]] if found else 0
    if not 0 < seconds <= WINDOW_S_MAX:
        raise refused(
            "'completion_window' must end in the future, within 7 days: send a number and s, m, h "
            "or d, such as 24h.",
            400,
            "completion_window",
        )
    return seconds


def _new_batch(
    owner: str, body: BatchBody, file: StoredFile, now: int, expires_at: int
) -> StoredBatch:
    batch_id = f"batch_{secrets.token_hex(12)}"
    api_object: JsonObject = {
        "id": batch_id,
        "object": "batch",
        "endpoint": body.endpoint,
        "errors": None,
        "input_file_id": file.file_id,
        "completion_window": body.completion_window,
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": now,
        "expires_at": expires_at,
        "request_counts": {"total": file.lines, "completed": 0, "failed": 0},
        "metadata": body.metadata,
    }
    if (kept := body.output_expires_after) is not None:
        api_object["output_expires_after"] = kept.model_dump()
    return StoredBatch(batch_id, owner, api_object)


def _page(request: web.Request, api_objects: list[JsonObject]) -> web.Response:
    """Part of a list behind `after`, at most `limit` long."""
    limit, after = request.query.get("limit", str(LIST_DEFAULT)), request.query.get("after")
    if not re.fullmatch(r"\d{1,5}", limit) or int(limit) < 1:
        raise refused(f"'limit' must be 1 to {LIST_MAX}: correct it.", 400, "limit")
    at = next((place + 1 for place, one in enumerate(api_objects) if one["id"] == after), 0)
    part = api_objects[at : at + min(LIST_MAX, int(limit))]
    return web.json_response(
        {
            "object": "list",
            "data": part,
            "first_id": part[0]["id"] if part else None,
            "last_id": part[-1]["id"] if part else None,
            "has_more": at + len(part) < len(api_objects),
        }
    )
