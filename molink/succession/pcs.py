"""PCs of the coordinator that comes after this one: they go on asking at the address that they
know, and this one passes their joins on, and their downloads of the other model's weights.

So nothing is typed on a PC. The answer to a join is sealed by the key that both coordinators have,
and names the broker at which the PC is commanded from then on.
"""

import json
from collections.abc import Callable
from pathlib import Path

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler, Middleware

from molink.agents_api.app import JOIN_PATH, Joins
from molink.api.errors import ApiError
from molink.control.identity import node_id_of
from molink.control.messages.joining import open_request
from molink.control.registry.registry import Registry
from molink.control.registry.succession import Successor, moved_pcs, successor_of
from molink.errors import ControlError, JoinRefusedError
from molink.succession.forwarding import forwarded, short_answer

AWAY = "The coordinator that this PC was handed to is away: it is asked again."


class JoinsLedOn:
    """Joins of PCs that stay here, and of those that were moved, whose requests are passed on."""

    def __init__(self, joining: Joins, registry: Registry) -> None:
        self._joining, self._registry = joining, registry

    async def join(self, sealed: bytes) -> bytes:
        """The sealed answer of whoever commands the PC. Raises as the joins that stay do: also
        JoinRefusedError with the reason of the other coordinator, and ControlError when that does
        not answer with either."""
        after = _commander(self._registry, lambda: self._pc(sealed))
        if after is None:
            return await self._joining.join(sealed)
        try:
            where = Path(after.folder), after.agents_port
            status, body = await short_answer(*where, "POST", JOIN_PATH, {}, sealed)
            if status == 200:
                return body
            if status == 403:
                raise JoinRefusedError(json.loads(body)["error"]["message"])
        except (ApiError, ValueError, KeyError, TypeError):
            pass
        raise ControlError(AWAY)

    def _pc(self, sealed: bytes) -> str | None:
        """Id of the PC that asks. Raises ControlError for what is no request."""
        opened = open_request(sealed, self._registry.coordinator)
        if opened.pc_key is not None:
            return node_id_of(opened.pc_key)
        member = self._registry.member(node_id_of(opened.key))
        return None if member is None else member.pc


def downloads_led_on(registry: Registry) -> Middleware:
    """Middleware: what a PC that was moved asks for with its token is answered by the coordinator
    that commands it. So is a token that is not known here, once anybody was moved: a device that
    has joined there anew has one."""

    @web.middleware
    async def led_on(request: web.Request, handler: Handler) -> web.StreamResponse:
        token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")[2].strip()
        after = _commander(registry, lambda: registry.pc_of_token(token), new=True)
        if not token or after is None or request.method != "GET":
            return await handler(request)
        return await forwarded(request, Path(after.folder), after.agents_port)

    return led_on


def _commander(
    registry: Registry, pc: Callable[[], str | None], *, new: bool = False
) -> Successor | None:
    """The coordinator beside, if the PC was moved to it; None: it is ours. Who asks is looked up
    only where some were moved. `new`: whoever is not known here may be its own."""
    after = successor_of(registry)
    moved = moved_pcs(registry) if after is not None else frozenset()
    if not moved:
        return None
    asks = pc()
    return after if asks in moved or (new and asks is None) else None
