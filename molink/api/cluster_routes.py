"""Routes that forecast plans for the cluster.

`GET /plan` is the best plan for the PCs that are here now, `GET /plan?split=even` an even split
over them; `molink plan --url` asks for it. `GET /catalogue` is what each known model would be on
these PCs; `molink models --for cluster` asks for it.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from molink.errors import InvalidRequestError, RingError
from molink.json_object import JsonObject
from molink_scheduler.placement import SPLITS, Plan, Shortage

PLAN_PATH = "/plan"

PLAN_FRESH_S = 5.0
"""A plan that was just made is told again: each takes a process, and PCs come in minutes."""

CATALOGUE_PATH = "/catalogue"

CATALOGUE_FRESH_S = 60.0
"""A catalogue takes seconds of a core, and what one could serve instead is no news of a minute."""

FindPlan = Callable[[str | None], Awaitable[Plan | Shortage]]


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
        """The best plan for the PCs that are here now, or with `split` `even` an even one."""
        split = request.query.get("split")
        if split is not None and split not in SPLITS:
            splits = ", ".join(SPLITS)
            raise InvalidRequestError(f"split must be one of {splits}, got {split!r:.80}.", "split")
        at_s, answer = made.get(split, (-math.inf, {}))
        if clock() - at_s < PLAN_FRESH_S:
            return web.json_response(answer)
        if planning.locked():
            raise RingError("Another plan is being made: try again in some seconds.")
        async with planning:
            found = await plan(split)
        made[split] = clock(), (answer := {"model": model, **_fields(found)})
        return web.json_response(answer)

    app.add_routes([web.get(PLAN_PATH, get_plan)])


def add_catalogue_route(
    app: web.Application,
    find: Callable[[], Awaitable[JsonObject]],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Serve the known models as JSON, with what each would be on the PCs that are here; one answer
    is made at a time, and told again for a minute."""
    planning = asyncio.Lock()
    made: list[tuple[float, JsonObject]] = []

    async def get_catalogue(request: web.Request) -> web.Response:
        """The known models, the most useful first, and what each would be on the PCs here."""
        if planning.locked():
            raise RingError("A catalogue is being made: try again in some seconds.")
        async with planning:
            if not made or clock() - made[0][0] >= CATALOGUE_FRESH_S:
                made[:] = [(clock(), await find())]
        return web.json_response(made[0][1])

    app.add_routes([web.get(CATALOGUE_PATH, get_catalogue)])


def _fields(found: Plan | Shortage) -> dict[str, Any]:
    return {"shortage": found.sentence} if isinstance(found, Shortage) else {"plan": asdict(found)}
