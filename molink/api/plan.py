"""What would be best with the PCs that are here now: `GET /plan`, asked by `molink plan --url`.

`GET /plan?split=even` tells what an even split would do with them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict

from aiohttp import web

from molink.errors import InvalidRequestError
from molink_scheduler.placement import SPLITS, Plan, Shortage

__all__ = ["PLAN_PATH", "add_plan_route"]

PLAN_PATH = "/plan"


FindPlan = Callable[[str | None], Awaitable[Plan | Shortage]]


def add_plan_route(app: web.Application, model: str, plan: FindPlan) -> None:
    """Serve the plan as JSON: `{"model", "plan"}`, or `{"model", "shortage"}` with a sentence.

    `plan` takes the way to split (None: the coordinator's own); it may take seconds.
    """

    async def get_plan(request: web.Request) -> web.Response:
        split = request.query.get("split")
        if split is not None and split not in SPLITS:
            ways = ", ".join(SPLITS)
            raise InvalidRequestError(f"split must be one of {ways}, got {split!r:.80}.", "split")
        found = await plan(split)
        if isinstance(found, Shortage):
            return web.json_response({"model": model, "shortage": found.sentence})
        return web.json_response({"model": model, "plan": asdict(found)})

    app.add_routes([web.get(PLAN_PATH, get_plan)])
