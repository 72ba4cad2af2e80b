"""One line of a batch asked as the request that its owner would have sent to its endpoint.

The endpoints' own handlers answer, so that a line means what it means over HTTP; only the
connection is missing.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiohttp import HttpVersion11, StreamReader, hdrs, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from molink.api.backend import Backend
from molink.api.callers import CALLER, CALLERS, Caller
from molink.api.errors import errors_in_shape
from molink.api.headers.request_id import request_id_of, request_identified
from molink.api.openai.chat import post_chat_completions
from molink.api.openai.completions import post_completions
from molink.api.openai.responses.endpoint import post_responses
from molink.json_object import JsonObject

ENDPOINTS: Mapping[str, Callable[[Backend, web.Request], Awaitable[web.StreamResponse]]] = {
    "/v1/chat/completions": post_chat_completions,
    "/v1/completions": post_completions,
    "/v1/responses": post_responses,
}

NOT_KEPT = "/v1/responses"
"""Endpoint that would keep its answers to be read again; those of a batch are in its file."""

READ_BYTES = 2**16

HEADERS = CIMultiDictProxy(CIMultiDict({hdrs.CONTENT_TYPE: "application/json"}))


NOBODY: Any = SimpleNamespace(ssl_context=None, peername=None, sockname=None, transport=None)
"""Connection of a request that came over none."""

APP = web.RequestKey("app", web.Application)


class LineRequest(web.Request):
    """Request to an application that no client has sent."""

    def __init__(self, app: web.Application, path: str, body: bytes) -> None:
        """The POST of a JSON body, from within the running event loop."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None, "a line is asked by a task"
        message = RawRequestMessage(
            "POST", path, HttpVersion11, HEADERS, (), False, None, False, False, URL(path)
        )
        content = StreamReader(BaseProtocol(loop), READ_BYTES, loop=loop)
        content.feed_data(body)
        content.feed_eof()
        size = len(body)
        super().__init__(message, content, NOBODY, NOBODY, task, loop, client_max_size=size)
        self[APP] = app

    @property
    def app(self) -> web.Application:
        """The application whose handler answers."""
        return self[APP]


async def ask(
    app: web.Application, backend: Backend, endpoint: str, body: JsonObject, caller: Caller
) -> tuple[int, str, JsonObject]:
    """Status, request id and body of what the endpoint answers `caller`."""
    asked = body | {"store": False} if endpoint == NOT_KEPT else body
    request = LineRequest(app, endpoint, json.dumps(asked, ensure_ascii=False).encode())
    request[CALLER] = caller
    post = partial(ENDPOINTS[endpoint], backend)
    answer = await request_identified(request, lambda same: errors_in_shape(same, post))
    assert isinstance(answer, web.Response) and isinstance(answer.body, bytes), "it is no stream"
    return answer.status, request_id_of(request), json.loads(answer.body)


def owners_caller(app: web.Application, owner: str) -> Caller | None:
    """The owner as a caller beside those who ask now: what batches hold is not in their share.
    None: his key opens nothing any more. Raises sqlite3.Error when keys cannot be read."""
    callers = app[CALLERS]
    caller = Caller(f"batches of {owner}", shares_cache=callers.shares_cache)
    if not owner:
        return caller
    if (keys := callers.keys) is None:
        return None
    for key in (one.key for one in keys.store.list_keys()):
        if key.key_id == owner and key.state(keys.clock()) == "usable":
            caller.key_id, caller.usage = owner, keys.usage(key)
            caller.has_tokens = keys.quota_left(key) != 0
            return caller
    return None
