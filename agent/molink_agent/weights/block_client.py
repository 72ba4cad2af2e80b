"""Asks the coordinator for the manifest and for runs of blocks, and sorts what can go wrong.

Three kinds of failure: what passes (`Unreachable`: no connection, a reset, a 5xx), what only needs
patience (`ComeBack`: a 503 with its time), and what stays however often one asks (WeightsError: a
wrong token, a file that is not there, a manifest that is none).
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError

from molink.checkpoint.weights_manifest import FileEntry, WeightsManifest
from molink.errors import WeightsError
from molink_agent.weights.source import CoordinatorSource

__all__ = ["BlockClient", "ComeBack", "Unreachable", "open_client"]

MANIFEST_BYTES_MAX = 64 * 2**20
"""The largest models known (90,000 tensors, 140,000 blocks) come to 20 MB."""

TIMEOUTS = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=45.0)
"""No bound on the whole: home lines are slow. A read may wait as long as the coordinator lets nodes
stand in line (30 s), and some."""

BUFFER_BYTES = 2**20
"""Of what has come and is not taken yet. With aiohttp's 64 KB a download costs half as much
processor time again."""

RETRY_AFTER_S_MAX = 60.0
"""However long a server asks to wait."""

RETRY_AFTER_S_MIN = 0.2
"""However soon a server says."""

MESSAGE_CHARS_MAX = 300
"""Of a server's own words in ours."""

LASTING = ("weights_unreadable", "weights_changed")
"""Errors of the coordinator that only its operator can mend."""


class Unreachable(Exception):
    """Raised when it may work a moment later; the message says what happened."""


class ComeBack(Exception):
    """Raised when the coordinator is there but not ready for us."""

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class BlockClient:
    """One coordinator, over one session."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url.rstrip("/")

    async def manifest(self) -> WeightsManifest:
        """What is on offer."""
        async with self._get(f"{self.url}/manifest", {}) as response:
            body = bytearray()
            async for data in response.content.iter_chunked(2**16):
                body += data
                if len(body) > MANIFEST_BYTES_MAX:
                    raise WeightsError(f"the manifest at {self.url} is too long to be one")
        try:
            return await asyncio.to_thread(WeightsManifest.model_validate_json, bytes(body))
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise WeightsError(
                f"what {self.url}/manifest answers is no list of weights ({problem}): "
                "is this the coordinator, and of the same version?"
            ) from error

    async def blocks(
        self, entry: FileEntry, first: int, last: int, block_bytes: int
    ) -> AsyncGenerator[tuple[int, bytes]]:
        """Blocks `first` to `last` of a file, in order, as they come; not checked."""
        start, stop = first * block_bytes, min((last + 1) * block_bytes, entry.size)
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        async with self._get(f"{self.url}/files/{quote(entry.name)}", headers) as response:
            _check_range(response, entry, start, stop)
            for block in range(first, last + 1):
                size = min(block_bytes, entry.size - block * block_bytes)
                yield block, await response.content.readexactly(size)

    @asynccontextmanager
    async def _get(
        self, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as response:
                await _check_status(response)
                yield response
        except aiohttp.InvalidURL as error:
            raise WeightsError(f"{url} is no address of a coordinator") from error
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, TimeoutError) as error:
            raise Unreachable(str(error) or type(error).__name__) from error


@asynccontextmanager
async def open_client(source: CoordinatorSource) -> AsyncIterator[BlockClient]:
    """A client of the coordinator's shelf."""
    headers = {"Authorization": f"Bearer {source.token}"}
    async with aiohttp.ClientSession(
        headers=headers, timeout=TIMEOUTS, read_bufsize=BUFFER_BYTES
    ) as session:
        yield BlockClient(session, source.url)


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status in (200, 206):
        return
    message, code = await _message_and_code(response)
    if response.status == 503:
        raise ComeBack(message, _retry_after_s(response))
    if response.status >= 500 and code not in LASTING:
        raise Unreachable(message)
    raise WeightsError(f"the coordinator refuses weights: {message}")


async def _message_and_code(response: aiohttp.ClientResponse) -> tuple[str, str]:
    """One line of what the server says, and its word for the kind of error."""
    fallback = f"{response.status} {response.reason} at {response.url.path}"
    try:
        error = (await response.json())["error"]
        message, code = str(error["message"]), str(error["code"])
    except (aiohttp.ContentTypeError, ValueError, KeyError, TypeError):
        return fallback, ""
    return " ".join(message.split())[:MESSAGE_CHARS_MAX] or fallback, code


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    asked = float(text) if text.isdecimal() else 0.0
    return min(max(asked, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)


def _check_range(response: aiohttp.ClientResponse, entry: FileEntry, start: int, stop: int) -> None:
    said = response.headers.get("Content-Range")
    if response.status != 206 or said != f"bytes {start}-{stop - 1}/{entry.size}":
        raise WeightsError(
            f"{response.url.host} does not give bytes {start} to {stop} of {entry.name}, "
            f"but {said or 'the whole file'}: a proxy between here and the coordinator may not "
            "know ranges"
        )
