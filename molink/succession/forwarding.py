"""A request that is answered by the coordinator beside: passed on to a socket in its data folder,
which only this machine's operator can open, and answered as that one answers, piece by piece."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from aiohttp import hdrs, web
from multidict import CIMultiDict

from molink.api.errors import ApiError
from molink.config.data_dir import api_socket

NOT_PASSED_ON = frozenset(
    {
        hdrs.CONNECTION,
        hdrs.CONTENT_LENGTH,
        hdrs.KEEP_ALIVE,
        hdrs.PROXY_AUTHENTICATE,
        hdrs.PROXY_AUTHORIZATION,
        hdrs.TE,
        hdrs.TRAILER,
        hdrs.TRANSFER_ENCODING,
        hdrs.UPGRADE,
    }
)
"""Headers of one connection (RFC 9110, 7.6.1), and the length, which is told anew."""

CONNECT_S = 5.0
"""A process of this machine accepts at once."""

SHORT_S = 10.0
"""For an answer that is held whole: a join, or the list of models."""

NOT_ADDED = (hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.USER_AGENT)
"""Headers that are passed on as our client sends them, or not at all."""

GONE = (
    "The coordinator that takes over from this one does not answer: ask again in a moment; its "
    "operator can see why."
)


def without_hops(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Headers that mean the same on the next connection."""
    named = {str(name).lower() for name in NOT_PASSED_ON}
    return CIMultiDict((name, text) for name, text in headers.items() if name.lower() not in named)


@asynccontextmanager
async def answer_of(
    folder: Path,
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> AsyncIterator[aiohttp.ClientResponse]:
    """What the server of this data folder and port answers; the body is not compressed. Raises
    ApiError when nobody is there, or it goes away before its headers came."""
    connector = aiohttp.UnixConnector(path=str(api_socket(folder, port)))
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
    passed_on = without_hops(headers)
    passed_on.popall(hdrs.CONTENT_ENCODING, None)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False, skip_auto_headers=NOT_ADDED
    ) as session:
        try:
            answer = await session.request(
                method,
                f"http://localhost{path}",
                headers=passed_on,
                data=body,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError):
            raise ApiError(GONE, status=503, code="successor_away") from None
        async with answer:
            yield answer


async def short_answer(
    folder: Path,
    port: int,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> tuple[int, bytes]:
    """Status and body of a short answer. Raises ApiError as above, and when it breaks off or takes
    long."""
    try:
        async with (
            asyncio.timeout(SHORT_S),
            answer_of(folder, port, method, path, headers, body) as answer,
        ):
            return answer.status, await answer.read()
    except (aiohttp.ClientError, TimeoutError):
        raise ApiError(GONE, status=503, code="successor_away") from None


async def forwarded(
    request: web.Request, folder: Path, port: int, body: bytes | None = None
) -> web.StreamResponse:
    """The answer of the server at this port of the data folder to a request whose body was read,
    as it comes. When our client goes away, so do we; where the answer breaks off, ours does. Raises
    ApiError as above."""
    wanted = request.method, request.path_qs, request.headers
    async with answer_of(folder, port, *wanted, body) as answer:
        response = web.StreamResponse(status=answer.status, headers=without_hops(answer.headers))
        response.content_length = answer.content_length
        await response.prepare(request)
        try:
            async for piece in answer.content.iter_any():
                await response.write(piece)
        except aiohttp.ClientPayloadError:
            if request.transport is not None:
                request.transport.abort()
            raise aiohttp.ClientConnectionResetError("The answer has broken off.") from None
        await response.write_eof()
        return response
