"""What would be best with the PCs that are here now: `GET /plan`, asked by `molink plan --url`.

`GET /plan?split=even` tells what an even split would do with them.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict

from aiohttp import web

from molink.errors import InvalidRequestError, RingError
from molink_scheduler.placement import SPLITS, Plan, Shortage

__all__ = ["PLAN_PATH", "add_plan_route"]

PLAN_PATH = "/plan"


FindPlan = Callable[[str | None], Awaitable[Plan | Shortage]]


def add_plan_route(app: web.Application, model: str, plan: FindPlan) -> None:
    """Serve the plan as JSON: `{"model", "plan"}`, or `{"model", "shortage"}` with a sentence.

    `plan` takes the way to split (None: the coordinator's own); it may take seconds and a process,
    so one is made at a time.
    """
    planning = asyncio.Lock()

    async def get_plan(request: web.Request) -> web.Response:
        split = request.query.get("split")
        if split is not None and split not in SPLITS:
            ways = ", ".join(SPLITS)
            raise InvalidRequestError(f"split must be one of {ways}, got {split!r:.80}.", "split")
        if planning.locked():
            raise RingError("Another plan is being made: try again in some seconds.")
        async with planning:
            found = await plan(split)
        if isinstance(found, Shortage):
            return web.json_response({"model": model, "shortage": found.sentence})
        return web.json_response({"model": model, "plan": asdict(found)})

    app.add_routes([web.get(PLAN_PATH, get_plan)])
