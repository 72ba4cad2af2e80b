"""Servers of this machine's user: their TLS, and orders to them without a key that is typed.

Each listens at a socket in its data directory, too, which only its owner may open: who
answers there has proven itself, which no port of loopback does. And who may write the directory's
keys may have one: a command makes itself an admin key, which ends with it, or a minute after it was
killed. It is sent to that socket and nowhere else.
"""

import asyncio
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    ExitStack,
    asynccontextmanager,
    closing,
    suppress,
)
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from molink.config import data_dir as folders
from molink.errors import MolinkError, UserError
from molink.terminal.tables import DATA_FOLDER

if TYPE_CHECKING:
    from ssl import SSLContext

    from molink.api.access import Access
    from molink.api.keys.store import ApiKey, KeyStore
    from molink.client.api_client import ApiClient
    from molink.config.groups import ApiSettings

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})

ANSWER_WITHIN_S = 3.0
"""A coordinator on this machine answers in milliseconds; a list is printed without it, too."""

RENEWAL_S = 20.0
"""A key that is in use is renewed three times before it would end."""


def api_tls(api: "ApiSettings", directory: Path, access: "Access") -> "SSLContext | None":
    """What an API presents itself with; None: it is plain HTTP. Raises UserError for files that
    cannot be used."""
    from molink.control.addresses import TlsFiles
    from molink.control.certificate import api_certificate

    if not api.api_tls:
        return None
    if api.api_tls_cert:
        return TlsFiles(api.api_tls_cert, api.api_tls_key).server_context()
    return api_certificate(directory, access.host_names | LOOPBACK).server_context()


def client_of(
    url: str, key: str | None, data_dir: str | None, *, silence_s_max: float | None = None
) -> AbstractAsyncContextManager["ApiClient"]:
    """A client of the server at `url` with this key; without one, if the server is of this machine
    and of the data directory that is given, or else the user's, with a key of the command's own."""
    from molink.client.api_client import SILENCE_S_MAX, ApiClient

    silence_s = silence_s_max or SILENCE_S_MAX
    path = None if key else socket_of(url, data_dir)
    if path is None:
        return ApiClient(url, key, silence_s_max=silence_s)
    return own_client(path, silence_s_max=silence_s)


@asynccontextmanager
async def own_client(path: Path, *, silence_s_max: float) -> AsyncIterator["ApiClient"]:
    """A client of the server that listens at this socket of a data directory. It has an admin key
    of the command's own, or none where none can be made, as on a full disk."""
    from molink.api.keys.store import KeyStore
    from molink.client.api_client import ApiClient
    from molink.tasks import background_tasks

    with ExitStack() as stack:
        secret = None
        with suppress(MolinkError, sqlite3.Error):
            store = stack.enter_context(closing(KeyStore.open(path.parent)))
            key, secret = stack.enter_context(store.temporary_admin(time.time()))
        client = ApiClient("http://localhost", secret, silence_s_max=silence_s_max, socket=path)
        async with background_tasks() as tasks, client:
            if secret is not None:
                tasks.create_task(_renew(store, key))
            yield client


async def _renew(store: "KeyStore", key: "ApiKey") -> None:
    while True:
        await asyncio.sleep(RENEWAL_S)
        with suppress(sqlite3.Error):  # The disk is full: it may have room before the key ends.
            store.renew(key, time.time())


def socket_of(url: str, data_dir: str | None) -> Path | None:
    """`own_socket` of the server at `url`, if that is on loopback."""
    from molink.client.api_client import is_loopback, server_url

    parts = urlsplit(server_url(url))
    if not is_loopback(parts.hostname or ""):
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return own_socket(port, data_dir)


def own_socket(port: int, data_dir: str | None) -> Path | None:
    """Socket at which the server of this data directory with its API at `port` answers; None where
    none listens: a socket alone may be left from a crash."""
    path = folders.api_socket(folders.data_dir(DATA_FOLDER, data_dir), port)
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
        probe.connect(str(path))
        return path
    return None


def is_taken(url: str) -> bool:
    """Whether anybody listens on this machine at the port of `url`."""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), ANSWER_WITHIN_S),
    ):
        return True
    return False


def live_nodes(url: str | None, data_dir: str | None) -> dict[str, Mapping[str, Any]] | None:
    """`nodes` of GET /cluster by id; None when this data directory's own coordinator, whose API is
    at `url`, does not answer. Nobody else is asked."""
    port = urlsplit(url).port if url else None
    path = own_socket(port, data_dir) if port else None
    return None if path is None else asyncio.run(_nodes_at(path))


async def _nodes_at(path: Path) -> dict[str, Mapping[str, Any]] | None:
    try:
        async with own_client(path, silence_s_max=ANSWER_WITHIN_S) as client:
            report = await client.get("/cluster")
        return {str(node["id"]): node for node in report["nodes"]}
    except (UserError, KeyError, TypeError):
        return None
