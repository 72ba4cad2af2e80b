"""Asks the coordinator for the manifest and for runs of blocks, and tries again where that helps.

Three kinds of failure: what passes (`Unreachable`: no connection, a reset, a 5xx), what only needs
patience (`RetryLater`: a 503 with its time), and what stays however often one asks (WeightsError: a
wrong token, a file that is not there, a manifest that is none).
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar
from urllib.parse import quote

import aiohttp
from pydantic import ValidationError

from molink.checkpoint.weights_manifest import FileEntry, WeightsManifest
from molink.control.versions import PROTOCOL_HEADER, own_protocols
from molink.errors import WeightsError
from molink_agent.weights.source import CoordinatorSource, WeightsLimits

MANIFEST_BYTES_MAX = 64 * 2**20
"""The largest models known (90,000 tensors, 140,000 blocks) come to 20 MB."""

TIMEOUTS = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=45.0)
"""Timeouts without a bound on the whole: home lines are slow. A read may wait as long as the
coordinator lets nodes stand in line (30 s), and some."""

BUFFER_BYTES = 2**20
"""Bytes that have come and are not taken yet. With aiohttp's 64 KB a download costs half as much
processor time again."""

RETRY_AFTER_S_MIN, RETRY_AFTER_S_MAX = 0.2, 60.0
"""Bounds of the pause that a server asks for."""

LASTING = ("weights_unreadable", "weights_changed")
"""Errors of the coordinator that only its operator can mend."""


class Unreachable(Exception):
    """Raised when it may work a moment later; the message says what happened."""


class RetryLater(Exception):
    """Raised when the coordinator is there but not ready for us."""

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class BlockClient:
    """HTTP client of one coordinator's weights."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self.url = url.rstrip("/")

    async def manifest(self) -> WeightsManifest:
        """The list of files that the coordinator offers."""
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
        except aiohttp.ClientConnectorCertificateError as error:
            raise WeightsError(
                f"{url} shows another certificate than the coordinator's: is its address still the "
                "same? If its operator has changed it, join with a new invite"
            ) from error
        except aiohttp.InvalidURL as error:
            raise WeightsError(f"{url} is no address of a coordinator") from error
        except (aiohttp.ClientError, asyncio.IncompleteReadError, OSError, TimeoutError) as error:
            raise Unreachable(_why(error)) from error


@asynccontextmanager
async def open_client(source: CoordinatorSource) -> AsyncIterator[BlockClient]:
    """Open a client of the coordinator's weights."""
    speaks = str(own_protocols().newest)
    headers = {"Authorization": f"Bearer {source.token}", PROTOCOL_HEADER: speaks}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=source.tls.ssl_context()),
        headers=headers,
        timeout=TIMEOUTS,
        read_bufsize=BUFFER_BYTES,
    ) as session:
        yield BlockClient(session, source.url)


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status in (200, 206):
        return
    message = f"it answered {response.status}"
    code = await _code(response)
    if response.status == 503:
        raise RetryLater(message, _retry_after_s(response))
    if response.status >= 500 and code not in LASTING:
        raise Unreachable(message)
    if code == "outdated":
        message = "it speaks another protocol: update MoLink on the older side"
    raise WeightsError(f"the coordinator refuses weights: {message}")


async def _code(response: aiohttp.ClientResponse) -> str:
    """The server's code for the kind of error. Of its own words nothing is passed on: they would
    reach the coordinator, and who answers here may be somebody else."""
    try:
        return str((await response.json())["error"]["code"])
    except (aiohttp.ClientError, ValueError, KeyError, TypeError):
        return ""


def _why(error: Exception) -> str:
    """The reason in our own words."""
    match error:
        case TimeoutError():
            return "no answer in time"
        case OSError(errno=int(number)) if number > 0:
            return os.strerror(number)
        case _:
            return type(error).__name__


def _retry_after_s(response: aiohttp.ClientResponse) -> float:
    text = response.headers.get("Retry-After", "")
    asked = float(text) if text.isdecimal() else 0.0
    return min(max(asked, RETRY_AFTER_S_MIN), RETRY_AFTER_S_MAX)


def _check_range(response: aiohttp.ClientResponse, entry: FileEntry, start: int, stop: int) -> None:
    found = response.headers.get("Content-Range")
    if response.status != 206 or found != f"bytes {start}-{stop - 1}/{entry.size}":
        raise WeightsError(
            f"{response.url.host} does not give bytes {start} to {stop} of {entry.name}, "
            f"but {found or 'the whole file'}: a proxy between here and the coordinator may not "
            "know ranges"
        )


Result = TypeVar("Result")


class Retries:
    """Repeats calls with exponential backoff; every good block starts the count anew."""

    def __init__(self, limits: WeightsLimits) -> None:
        self._limits = limits
        self.reset()

    def reset(self) -> None:
        """Forget earlier failures: something good has come."""
        self._failures = 0
        self._busy_s = 0.0

    async def __call__(self, call: Callable[[], Awaitable[Result]]) -> Result:
        """The result of a call that is repeated while it fails in a way that passes. Raises
        WeightsError when it has failed too often."""
        while True:
            try:
                return await call()
            except Unreachable as error:
                pause_s = self._pause_after_failure(error)
            except RetryLater as error:
                pause_s = self._pause_after_busy(error)
            await asyncio.sleep(pause_s)

    def _pause_after_failure(self, error: Unreachable) -> float:
        self._failures += 1
        if self._failures > self._limits.failures_max:
            raise WeightsError(
                f"the coordinator does not give weights, {self._failures} tries failed in a row "
                f"({error}); what has come is kept: try again when it can be reached"
            ) from error
        pause_s = self._limits.pause_s * 2.0 ** (self._failures - 1)
        return min(pause_s, self._limits.pause_s_max)

    def _pause_after_busy(self, error: RetryLater) -> float:
        self._busy_s += error.after_s
        if self._busy_s > self._limits.busy_s_max:
            raise WeightsError(
                f"the coordinator has been too busy for {self._limits.busy_s_max:.0f} s ({error}): "
                "try again later"
            ) from error
        return error.after_s
