"""Endpoints of a coordinator for its cluster: where agents join, and what a plan would be.

Agents join with one sealed request and one sealed answer. `GET /plan` is the best plan for
the PCs that are here now, `GET /plan?split=even` an even split over them; `molink plan --url` asks
for it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from molink.api.body import body_pieces
from molink.coordinator.services import JoinService
from molink.errors import ControlError, InvalidRequestError, JoinRefusedError, RingError
from molink_scheduler.placement import SPLITS, Plan, Shortage

__all__ = ["JOIN_PATH", "PLAN_PATH", "add_join_route", "add_plan_route"]

JOIN_PATH = "/agents/join"
PLAN_PATH = "/plan"

JOIN_BYTES_MAX = 64 * 2**10
"""A sealed request is 2 KB."""

PLAN_FRESH_S = 5.0
"""A plan that was just made is told again: each takes a process, and PCs come in minutes."""

FindPlan = Callable[[str | None], Awaitable[Plan | Shortage]]


def add_join_route(app: web.Application, joining: JoinService) -> None:
    """Serve `POST /agents/join`: 200 with the answer, 403 with the reason, 400 for other things."""

    async def join(request: web.Request) -> web.Response:
        body = b"".join([piece async for piece in body_pieces(request, JOIN_BYTES_MAX)])
        try:
            answer = await joining.join(body)
        except JoinRefusedError as error:
            return _refusal(str(error), 403)
        except ControlError as error:
            return _refusal(str(error), 400)
        return web.Response(body=answer, content_type="application/json")

    app.add_routes([web.post(JOIN_PATH, join)])


def _refusal(message: str, status: int) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)


def add_plan_route(
    app: web.Application,
    model: str,
    plan: FindPlan,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve the plan as JSON: `{"model", "plan"}`, or `{"model", "shortage"}` with a sentence.

    `plan` takes the way to split (None: the coordinator's own); it may take seconds and a process,
    so one is made at a time, and told again for some seconds.
    """
    planning = asyncio.Lock()
    made: dict[str | None, tuple[float, dict[str, Any]]] = {}

    async def get_plan(request: web.Request) -> web.Response:
        split = request.query.get("split")
        if split is not None and split not in SPLITS:
            splits = ", ".join(SPLITS)
            raise InvalidRequestError(f"split must be one of {splits}, got {split!r:.80}.", "split")
        at_s, told = made.get(split, (-math.inf, {}))
        if clock() - at_s < PLAN_FRESH_S:
            return web.json_response(told)
        if planning.locked():
            raise RingError("Another plan is being made: try again in some seconds.")
        async with planning:
            found = await plan(split)
        made[split] = clock(), (told := {"model": model, **_fields(found)})
        return web.json_response(told)

    app.add_routes([web.get(PLAN_PATH, get_plan)])


def _fields(found: Plan | Shortage) -> dict[str, Any]:
    return {"shortage": found.sentence} if isinstance(found, Shortage) else {"plan": asdict(found)}
