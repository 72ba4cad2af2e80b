"""An operator's orders over HTTP, for whoever has an admin key.

    POST /cluster/nodes/{id}/drain     hand over what it does, then do nothing
    POST /cluster/nodes/{id}/resume    serve again, after a quarantine, too
    POST /cluster/nodes/{id}/remove    throw the PC out with all its devices, for good
    POST /cluster/invites              {"expires_s": 86400, "uses": 5, "name": ""}: a new invite
    POST /cluster/intake               {"paused": true}: refuse new requests, or take them again
    POST /cluster/cache/clear          forget what all rings have cached of prompts and answers

Their content type must be JSON as of every post, so that no web page can send one unasked
(`access`); a body may be empty where it has no fields.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aiohttp import web

from molink.api.body import body_pieces, parse_json_object
from molink.api.callers import caller_of
from molink.api.errors import NAME_CHARS_SHOWN, ApiError, unknown_field
from molink.coordinator.admin import ClusterAdmin, UnknownNodeError
from molink.errors import ControlError, UserError
from molink.json_object import JsonObject
from molink.report.orders import NodeOrdered
from molink.report.plain import to_plain

NODE_PATH = "/cluster/nodes/{id}/{order}"
INVITES_PATH = "/cluster/invites"
INTAKE_PATH = "/cluster/intake"
CLEAR_CACHE_PATH = "/cluster/cache/clear"


NodeOrder = Callable[[str, str], Awaitable[NodeOrdered]]

ORDER_BYTES_MAX = 4096
"""Most bytes of an order's body, which has three short fields."""

INVITE_S = 24 * 3600.0
INVITE_USES = 5
"""Uses of an invite for which nothing else is asked, as `molink invite` makes it."""


def add_admin_routes(app: web.Application, admin: ClusterAdmin) -> None:
    """Serve the orders; answers are JSON objects. Status 404: the node is no member; 400: the wish
    cannot be met; 503: the registry cannot be written."""
    routes = _Orders(admin)
    app.add_routes(
        [
            web.post(NODE_PATH, routes.post_node),
            web.post(INVITES_PATH, routes.post_invite),
            web.post(INTAKE_PATH, routes.post_intake),
            web.post(CLEAR_CACHE_PATH, routes.post_clear_cache),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Orders:
    """Handlers of the orders to one cluster."""

    admin: ClusterAdmin

    async def post_node(self, request: web.Request) -> web.Response:
        """Carry out an order for one node."""
        admin = self.admin
        known: Mapping[str, NodeOrder] = {
            "drain": admin.drain,
            "resume": admin.resume,
            "remove": admin.remove,
        }
        order = known.get(request.match_info["order"])
        if order is None:
            raise web.HTTPNotFound
        await body_of(request, {})
        done = order(request.match_info["id"], caller_of(request).name)
        return web.json_response(await carried_out(done))

    async def post_invite(self, request: web.Request) -> web.Response:
        """Make an invite for PCs that shall join."""
        body = await body_of(request, {"expires_s": (int, float), "uses": (int,), "name": (str,)})
        done = self.admin.invite(
            body.get("expires_s", INVITE_S),
            body.get("uses", INVITE_USES),
            body.get("name", ""),
            caller_of(request).name,
        )
        return web.json_response(await carried_out(done))

    async def post_intake(self, request: web.Request) -> web.Response:
        """Pause the intake of requests, or end the pause."""
        body = await body_of(request, {"paused": (bool,)})
        if "paused" not in body:
            raise ApiError("'paused' is missing: add it to the request.", param="paused")
        return web.json_response(
            to_plain(self.admin.pause_intake(body["paused"], caller_of(request).name))
        )

    async def post_clear_cache(self, request: web.Request) -> web.Response:
        """Clear the rings' prefix caches."""
        await body_of(request, {})
        return web.json_response(to_plain(self.admin.clear_caches(caller_of(request).name)))


async def carried_out(
    done: Awaitable[object], unknown: type[UserError] = UnknownNodeError, code: str = "unknown_node"
) -> JsonObject:
    """Fields of what an order has done. Raises ApiError, of status 404 and this code for an error
    that says that somebody is `unknown`."""
    try:
        return to_plain(await done)
    except unknown as error:
        raise ApiError(str(error), status=404, code=code) from None
    except ControlError as error:
        raise ApiError(str(error), status=503, code="registry_unavailable") from None
    except UserError as error:
        raise ApiError(str(error)) from None


async def body_of(request: web.Request, kinds: Mapping[str, tuple[type, ...]]) -> JsonObject:
    """The body's fields, all of them known and of their kind. Raises ApiError for others."""
    raw = b"".join([piece async for piece in body_pieces(request, ORDER_BYTES_MAX)])
    body = parse_json_object(raw) if raw.strip() else {}
    for name, value in body.items():
        if name not in kinds:
            raise unknown_field(name[:NAME_CHARS_SHOWN])
        if type(value) not in kinds[name]:
            wanted = " or ".join(kind.__name__ for kind in kinds[name])
            raise ApiError(f"'{name}' must be of type {wanted}: correct it.", param=name)
    return body
