"""What would be best with the PCs that are here now: `GET /plan`, asked by `molink plan --url`."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict

from aiohttp import web

from molink_scheduler.placement import Plan, Shortage

__all__ = ["PLAN_PATH", "add_plan_route"]

PLAN_PATH = "/plan"


Prepare = Callable[[], Callable[[], Plan | Shortage]]


def add_plan_route(app: web.Application, model: str, plan: Prepare) -> None:
    """Serve the plan as JSON: `{"model", "plan"}`, or `{"model", "shortage"}` with a sentence.

    `plan` takes what is known now, at once; what it returns may compute for seconds, in a thread.
    """

    async def get_plan(request: web.Request) -> web.Response:
        found = await asyncio.to_thread(plan())
        if isinstance(found, Shortage):
            return web.json_response({"model": model, "shortage": found.sentence})
        return web.json_response({"model": model, "plan": asdict(found)})

    app.add_routes([web.get(PLAN_PATH, get_plan)])
