"""Files as they come: forms, written to the disk in pieces, within what their owner may keep."""

import asyncio
import shutil
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from pathlib import Path

from aiohttp import BodyPartReader, web

from molink.api.errors import ApiError
from molink.api.openai.batches.lines import read_lines
from molink.api.openai.batches.refusals import FULL, on_disk, refused
from molink.api.openai.batches.schemas import EXPIRES_S_MIN, ExpiresAfter
from molink.api.openai.batches.store import FILES_MAX, KEPT_S, OWNER_BYTES_MAX, StoredFile
from molink_scheduler.units import GIB

LINES_MAX, FILE_BYTES_MAX = 50_000, 200 * 2**20
"""Lines and bytes of a file, as many as OpenAI takes."""

FREE_BYTES_MIN = GIB
"""Bytes of the disk that files leave to the rest of the coordinator."""

PIECE_BYTES, PIECE_S = 2**20, 30.0
"""Bytes of an upload that are held, and how long the next ones may take."""

FIELD_BYTES_MAX = 4096

FIELDS = "purpose", "expires_after[anchor]", "expires_after[seconds]"
"""Fields of the form beside the file; clients flatten objects so."""


def left_to(files: list[StoredFile]) -> int:
    """Bytes that an owner of these files may still send."""
    left = OWNER_BYTES_MAX - sum(one.size for one in files)
    if len(files) >= FILES_MAX or left <= 0:
        sentence = f"You have {FILES_MAX} files or {OWNER_BYTES_MAX} bytes: delete some first."
        raise ApiError(sentence, status=413, code="too_many_files")
    return left


@dataclass(slots=True)
class Upload:
    """A form's file, which was written to the disk as it came."""

    name: str = ""
    """Empty: none has come."""
    kept_s: int = KEPT_S
    """Seconds for which its owner wants it kept."""


async def received(request: web.Request, draft: Path, bytes_left: int) -> Upload:
    """The form's file, in `draft`. Raises ApiError for another form."""
    upload, fields = Upload(), dict[str, str]()
    try:
        async for part in await request.multipart():
            if not isinstance(part, BodyPartReader):
                raise refused("The form holds a form: send 'purpose' and 'file'.", 400, None)
            if part.name == "file":
                upload.name = (part.filename or "file")[:256]
                await _written(part, draft, min(bytes_left, FILE_BYTES_MAX))
            elif part.name in FIELDS:
                value = await _in_time(part.read_chunk(FIELD_BYTES_MAX))
                fields[part.name] = value.decode(errors="replace")
    except (ValueError, web.RequestPayloadError):
        raise refused(
            "The body is no form with 'purpose' and 'file': send one.", 400, None
        ) from None
    if fields.pop("purpose", None) != "batch":
        raise refused("'purpose' must be 'batch': nothing else is kept here.", 400, "purpose")
    if not upload.name:
        raise refused("'file' is missing: add it to the form.", 400, "file")
    if fields:
        upload.kept_s = _expiry(fields).seconds
    return upload


def _expiry(fields: Mapping[str, str]) -> ExpiresAfter:
    try:
        seconds = int(fields.get("expires_after[seconds]", ""))
        anchor = fields.get("expires_after[anchor]")
        return ExpiresAfter.model_validate({"anchor": anchor, "seconds": seconds})
    except ValueError:
        raise refused(
            "'expires_after' must have the anchor 'created_at' and 'seconds' from "
            f"{EXPIRES_S_MIN} to {KEPT_S}: correct it.",
            400,
            "expires_after",
        ) from None


async def _written(part: BodyPartReader, draft: Path, bytes_max: int) -> None:
    """Write a part, of which at most PIECE_BYTES are held. Raises ApiError for too much of it."""
    size = lines = 0
    with await on_disk(draft.open, "wb") as file:
        while piece := await _in_time(part.read_chunk(PIECE_BYTES)):
            size, lines = size + len(piece), lines + piece.count(b"\n")
            if size > bytes_max or lines > LINES_MAX:
                raise ApiError(
                    f"The file is over {LINES_MAX} lines or {bytes_max} bytes: send it in parts.",
                    status=413,
                    param="file",
                    code="file_too_large",
                )
            if await on_disk(_free_bytes, draft.parent) < FREE_BYTES_MIN + len(piece):
                raise ApiError(FULL, status=507, code="insufficient_storage")
            await on_disk(file.write, piece)
        await on_disk(file.flush)


def _free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


async def _in_time(piece: Awaitable[bytes]) -> bytes:
    try:
        async with asyncio.timeout(PIECE_S):
            return await piece
    except TimeoutError:
        raise refused("The file did not come in time: send all of it at once.", 408, None) from None


def checked_lines(draft: Path) -> int:
    """Lines of a file that has come. Raises ApiError where there is none."""
    lines = sum(1 for _ in read_lines(draft))
    if not lines:
        raise refused("The file holds no line: send one request a line.", 400, "file")
    return lines
