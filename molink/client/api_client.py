"""A lean client of MoLink's REST API: JSON in, the events of a stream out.

The load generator shares the machine with the server that it measures, so events are cut out of the
raw bytes and parsed once; the command line's `generate` and `chat` use the same few functions.
Failures come out as UserError with one sentence: the server's own where it gave one.
"""

import ipaddress
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from molink.errors import UserError
from molink.json_object import JsonObject

LOOPBACK_NAMES = frozenset({"localhost", "ip6-localhost"})

CONNECT_S_MAX = 10.0
"""A server that does not answer the handshake by then is not there."""

SILENCE_S_MAX = 600.0
"""Longest wait for the next bytes: a long prompt on slow links may take minutes until its first
token."""

ANSWER_BYTES_MAX = 64 * 2**20
"""Most bytes of one JSON answer: some 4 KB for each of the nodes that a coordinator takes at most,
and as much for its requests. Whatever else listens at an address shall not fill the memory."""

EVENT_END = b"\n\n"
DATA = b"data: "
COMMENT = b":"
"""Mark of the lines by which a server that has nothing to tell keeps a stream alive."""

DONE = b"[DONE]"


class RefusedError(UserError):
    """Raised when a server answers with another status than 200; the message is its sentence."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def server_url(url: str) -> str:
    """`url` with a scheme, no slash at its end and without `/v1`, which OpenAI's clients want;
    UserError when it is none."""
    whole = (url if "://" in url else f"http://{url}").rstrip("/")
    whole = whole.removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(whole)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"'{url}' is no server's address: give one like http://127.0.0.1:8000")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise UserError(
            "a server's address holds no key and no question: give the key by --key, or better in "
            "MOLINK_API_KEY"
        )
    return whole


def is_loopback(host: str) -> bool:
    """Whether a server that listens at `host` can only be reached from its own machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in LOOPBACK_NAMES


class ApiClient:
    """HTTP client of one server, over connections that are kept."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        silence_s_max: float = SILENCE_S_MAX,
        socket: Path | None = None,
    ) -> None:
        """`key` is of the server's API; None where it wants none. With `socket` the server is
        asked there, not at its URL."""
        self._url = server_url(url)
        self._silence_s_max = silence_s_max
        self._socket = socket
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def __aenter__(self) -> "ApiClient":
        connector: aiohttp.BaseConnector
        if self._socket is None:
            connector = aiohttp.TCPConnector(limit=0)
        else:
            connector = aiohttp.UnixConnector(str(self._socket))
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=connector,
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_S_MAX, sock_read=self._silence_s_max
            ),
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        """The JSON at a path. Raises UserError: RefusedError when the server refuses."""
        return await self._json("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON answer to a post. Raises UserError: RefusedError when the server refuses."""
        return await self._json("POST", path, body)

    async def _json(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        try:
            url = f"{self._url}{path}"
            async with self._session.request(method, url, json=body) as response:
                await self._check(response)
                return json.loads(await _whole(response))
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError) as error:
            raise self._lost(error) from error

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[JsonObject, None]:
        """The events of a streamed answer; `body` gets "stream": true."""
        try:
            async with self._session.post(
                f"{self._url}{path}", json={**body, "stream": True}
            ) as response:
                await self._check(response)
                async for event in _events(response.content):
                    yield event
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._lost(error) from error

    async def _check(self, response: aiohttp.ClientResponse) -> None:
        if response.status != 200:
            sentence = server_sentence(response.status, await _whole(response))
            raise RefusedError(sentence, response.status)

    def _lost(self, error: Exception) -> UserError:
        match error:
            case aiohttp.ClientConnectorError():
                why = "cannot reach"
            case TimeoutError():
                why = "waited too long for"
            case ValueError() | RecursionError():
                why = "got an answer that is not MoLink's from"
            case _:
                why = "lost the connection to"
        return UserError(f"{why} {self._url}: check that `molink serve` or `molink up` runs there")


@dataclass(frozen=True, slots=True)
class ListedModel:
    """The model behind a server, by its /v1/models."""

    name: str
    max_model_len: int
    vocabulary_size: int

    @classmethod
    async def ask(cls, client: ApiClient) -> "ListedModel":
        """Ask the server. Raises UserError when it is not a MoLink server."""
        listed = await client.get("/v1/models")
        try:
            entry = listed["data"][0]
            return cls(entry["id"], entry["max_model_len"], entry["vocabulary_size"])
        except (KeyError, IndexError, TypeError):
            raise UserError(
                "the server's /v1/models tells no vocabulary size: give the --url of a MoLink "
                "server"
            ) from None


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    """The bytes of an answer. Raises ValueError for more than an answer of ours has."""
    raw = bytearray()
    async for piece in response.content.iter_any():
        raw += piece
        if len(raw) > ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
    return bytes(raw)


async def _events(content: aiohttp.StreamReader) -> AsyncGenerator[JsonObject, None]:
    """Events up to [DONE]; UserError when one is an error or the stream ends early."""
    rest = b""
    async for piece in content.iter_any():
        *whole, rest = (rest + piece).split(EVENT_END)
        for line in whole:
            if line == DATA + DONE:
                return
            if line.startswith(COMMENT):
                continue
            event = _event(line)
            if "error" in event:
                raise UserError(_sentence_of(event) or "the server failed in the middle")
            yield event
    raise UserError("the server ended its answer early: look into its log")


def _event(line: bytes) -> JsonObject:
    """The JSON object of one line. Raises ValueError when there is none in it."""
    try:
        event = json.loads(line.removeprefix(DATA))
    except RecursionError:
        raise ValueError("an event is nested too deeply") from None
    if not isinstance(event, dict):
        raise ValueError("an event is no object")
    return event


def server_sentence(status: int, raw: bytes) -> str:
    """Sentence in which a server explains its refusal, or what its status may mean."""
    try:
        sentence = _sentence_of(json.loads(raw))
    except (ValueError, RecursionError):
        sentence = None
    return sentence or f"the server answered with HTTP status {status}: is it a MoLink server?"


def _sentence_of(body: Any) -> str | None:
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None
