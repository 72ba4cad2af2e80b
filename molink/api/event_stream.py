"""An answer as server-sent events: one JSON object for each event, then `[DONE]`.

The response starts with the first event, not before it: a request that fails until then still gets
a proper status. A failure after that is sent as an event with an error object, which OpenAI's
clients raise, and the stream ends without `[DONE]`. Each event is one write, and asyncio's sockets
send small writes at once (TCP_NODELAY is on).
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aiohttp import ClientConnectionResetError, web

from molink.api.errors import as_api_error, error_body

__all__ = ["EventStream", "answer_with_events", "json_text"]

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
"""The last one asks nginx, which people put in front, not to hold events back."""

json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""Made once: `json.dumps` with options builds an encoder on each call. Text stays readable."""


class EventStream:
    """The events of one response."""

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(headers=HEADERS)

    async def send(self, event: Mapping[str, Any]) -> None:
        """Write one event; the first one starts the response."""
        if not self.response.prepared:
            await self.response.prepare(self._request)
        await self.response.write(b"data: " + json_text(event).encode() + b"\n\n")

    async def end(self) -> None:
        """Tell the client that the answer is complete."""
        await self.response.write_eof(b"data: [DONE]\n\n")

    async def fail(self, error: Exception) -> None:
        """Tell the client in the middle of an answer why it ends."""
        await self.send(error_body(as_api_error(error)))
        await self.response.write_eof()


async def answer_with_events(
    request: web.Request, write: Callable[[EventStream], Awaitable[None]]
) -> web.StreamResponse:
    """The response whose events `write` sends; failures before the first event are raised."""
    stream = EventStream(request)
    try:
        await write(stream)
    except ClientConnectionResetError:
        raise
    except Exception as error:
        if not stream.response.prepared:
            raise
        await stream.fail(error)
    else:
        await stream.end()
    return stream.response
