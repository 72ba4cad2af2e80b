"""The application of the port for agents: joins, weights, what a PC has given; nothing else.

A port of its own, because it must be open to every volunteer's network, and the user's API need not
be. It is served with TLS. Agents join with one sealed request and one sealed answer.
"""

from collections.abc import Callable
from typing import Protocol

from aiohttp import web

from molink.agents_api.offered_files import OfferedFiles
from molink.agents_api.weights_routes import (
    MadeWait,
    PcOfToken,
    add_weights_routes,
    pc_that_asks,
)
from molink.api.body import body_pieces
from molink.api.errors import ApiError, errors_in_shape
from molink.control.messages.sealing import SEALED_BYTES_MAX
from molink.errors import ControlError, ErrorGuard, JoinRefusedError, StorageError
from molink.report.nodes import ContributionReport
from molink.report.plain import to_plain
from molink.report.thanks import ThanksReport

JOIN_PATH = "/agents/join"
GIVEN_PATH = "/agents/given"
THANKS_PATH = "/agents/thanks"
ECHO_PATH = "/agents/echo"

ECHO_BYTES_MAX = 4096
"""Bytes that are sent back to whoever asks: three full packets of a line, and no more than came."""

NOT_NOW = (
    "The coordinator cannot take in PCs just now; its operator can see why. It is asked again."
)
"""Message to a PC while the registry cannot be written: the reason, a path, is the operator's."""


class Joins(Protocol):
    """Service that admits nodes."""

    async def join(self, sealed: bytes) -> bytes:
        """The answer to a request, sealed for its sender; see `coordinator.services.JoinService`
        for what is raised."""


GivenBy = Callable[[str], ContributionReport]
"""Function that tells what the PC with this id has given, with all its devices."""


ThanksFor = Callable[[str, bool], ThanksReport]
"""Function that tells a PC how many people it has helped; whether its owner agrees to be named."""


def create_agents_app(
    joining: Joins,
    offered: OfferedFiles,
    pc_of_token: PcOfToken,
    given_by: GivenBy,
    made_wait: MadeWait = lambda pc: None,
    *,
    drafter: OfferedFiles | None = None,
    bytes_per_s_max: float | None = None,
    thanks_for: ThanksFor | None = None,
) -> web.Application:
    """The application where agents join, fetch the `offered` weights and those of a `drafter` (see
    `add_weights_routes`), and are told what they have given and, with `thanks_for`, to whom."""
    app = web.Application(middlewares=[errors_in_shape], client_max_size=SEALED_BYTES_MAX)
    add_join_route(app, joining)
    add_weights_routes(
        app,
        offered,
        pc_of_token,
        made_wait,
        drafter=drafter,
        bytes_per_s_max=bytes_per_s_max,
    )
    _add_given_route(app, pc_of_token, given_by)
    if thanks_for is not None:
        _add_thanks_route(app, pc_of_token, thanks_for)
    app.add_routes([web.post(ECHO_PATH, _echo)])
    app.add_routes([web.route("*", "/{path:.*}", _nothing_here)])
    return app


async def _echo(request: web.Request) -> web.Response:
    """The body itself: a doctor sees by it whether full packets pass in both directions."""
    return web.Response(
        body=b"".join([piece async for piece in body_pieces(request, ECHO_BYTES_MAX)])
    )


async def _nothing_here(request: web.Request) -> web.Response:
    raise ApiError(
        "This port is for agents: the API listens at the address that `molink up` shows.",
        status=404,
        code="not_found",
    )


def add_join_route(app: web.Application, joining: Joins) -> None:
    """Serve `POST /agents/join`: 200 with the answer, 403 with the reason, 503 while the
    registry cannot be written, 400 for other things."""
    trouble = ErrorGuard("A PC's request to join")

    async def join(request: web.Request) -> web.Response:
        body = b"".join([piece async for piece in body_pieces(request, SEALED_BYTES_MAX)])
        try:
            answer = await joining.join(body)
        except JoinRefusedError as error:
            return _refusal(str(error), 403)
        except StorageError as error:
            with trouble:
                raise error
            return _refusal(NOT_NOW, 503)
        except ControlError as error:
            return _refusal(str(error), 400)
        return web.Response(body=answer, content_type="application/json")

    app.add_routes([web.post(JOIN_PATH, join)])


def _add_given_route(app: web.Application, pc_of_token: PcOfToken, given_by: GivenBy) -> None:
    """Serve `GET /agents/given`, which tells each PC its own figures alone."""

    async def given(request: web.Request) -> web.Response:
        pc = pc_that_asks(request, pc_of_token, "What a PC has given is")
        return web.json_response(to_plain(given_by(pc)))

    app.add_routes([web.get(GIVEN_PATH, given)])


def _add_thanks_route(app: web.Application, pc_of_token: PcOfToken, thanks_for: ThanksFor) -> None:
    """Serve `GET /agents/thanks`; with `?named=1` its owner agrees to be in the ranking."""

    async def thanks(request: web.Request) -> web.Response:
        pc = pc_that_asks(request, pc_of_token, "Whom a PC has helped is")
        return web.json_response(to_plain(thanks_for(pc, request.query.get("named") == "1")))

    app.add_routes([web.get(THANKS_PATH, thanks)])


def _refusal(message: str, status: int) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
