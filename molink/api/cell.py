"""Cells over HTTP, for whoever has an admin key: who lends memory to whom in a LAN.

    GET  /cell              PCs and pairs, those that could be confirmed as well
    POST /cell/confirm      {"pcs": ["anna", "ben"]}: let two PCs lend to each other
    POST /cell/forget       the same: end what they have lent each other

PCs are named by ids or names. All answer with what `GET /cell` does.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from molink.api.admin import body_of, carried_out
from molink.api.callers import caller_of
from molink.api.errors import ApiError
from molink.coordinator.cell.orders import CellOrders, UnknownPcError
from molink.report.cell import CellReport
from molink.report.plain import to_plain

CELL_PATH = "/cell"
CONFIRM_PATH = "/cell/confirm"
FORGET_PATH = "/cell/forget"

Order = Callable[[str, str, str], Awaitable[CellReport]]


def add_cell_routes(app: web.Application, cell: CellOrders) -> None:
    """Serve them. Status 404: a PC is no member; 400: the wish cannot be met; 503: the registry
    cannot be written."""
    routes = _Cell(cell)
    app.add_routes(
        [
            web.get(CELL_PATH, routes.get),
            web.post(CONFIRM_PATH, routes.confirm),
            web.post(FORGET_PATH, routes.forget),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Cell:
    """Handlers of one cluster's cells."""

    cell: CellOrders

    async def get(self, request: web.Request) -> web.Response:
        """Tell which PCs lend to each other or could, and what each has lent."""
        return web.json_response(to_plain(self.cell.report()))

    async def confirm(self, request: web.Request) -> web.Response:
        """Let two PCs lend to each other."""
        return await _carried_out(request, self.cell.confirm)

    async def forget(self, request: web.Request) -> web.Response:
        """End what two PCs have lent each other."""
        return await _carried_out(request, self.cell.forget)


async def _carried_out(request: web.Request, order: Order) -> web.Response:
    pcs: list[object] = (await body_of(request, {"pcs": (list,)})).get("pcs", [])
    names = [one for one in pcs if isinstance(one, str)]
    if not len(names) == len(pcs) == 2:
        raise ApiError("'pcs' must hold the ids or names of two PCs: correct it.", param="pcs")
    done = order(names[0], names[1], caller_of(request).name)
    return web.json_response(await carried_out(done, UnknownPcError, "unknown_pc"))
