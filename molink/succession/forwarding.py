"""A request that is answered by the coordinator beside: passed on to a socket in its data folder,
which only this machine's operator can open, and answered as that one answers, piece by piece."""

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
    """What the server of this data folder and port answers. Raises ApiError when nobody is there,
    or it goes away before its headers came."""
    connector = aiohttp.UnixConnector(path=str(api_socket(folder, port)))
    timeout = aiohttp.ClientTimeout(total=None, connect=CONNECT_S)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, auto_decompress=False
    ) as session:
        try:
            answer = await session.request(
                method,
                f"http://localhost{path}",
                headers=without_hops(headers),
                data=body,
                allow_redirects=False,
            )
        except (aiohttp.ClientError, TimeoutError, OSError):
            raise ApiError(GONE, status=503, code="successor_away") from None
        async with answer:
            yield answer


async def forwarded(
    request: web.Request, folder: Path, port: int, body: bytes | None = None
) -> web.StreamResponse:
    """The answer of the server at this port of the data folder to a request whose body was read,
    as it comes. When our client goes away, so do we. Raises ApiError as above."""
    wanted = request.method, request.path_qs, request.headers
    async with answer_of(folder, port, *wanted, body) as answer:
        response = web.StreamResponse(status=answer.status, headers=without_hops(answer.headers))
        response.content_length = answer.content_length
        await response.prepare(request)
        async for piece in answer.content.iter_any():
            await response.write(piece)
        await response.write_eof()
        return response
