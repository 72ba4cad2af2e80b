"""Polls a coordinator: three GETs a look, and waits longer while nobody answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from molink.client.api_client import ApiClient, RefusedError
from molink.dashboard.model.fields import Json, count, objects
from molink.dashboard.model.observation import EVENTS_MAX, Observation
from molink.errors import UserError
from molink.printable import printable_line

__all__ = ["PERIOD_S", "Poller"]

PERIOD_S = 0.5
"""Between two looks; stages report about as often."""

AWAY_S_MAX = 5.0
"""Longest wait for the next attempt while nobody answers: a coordinator that was restarted is seen
at once, one that is gone is not hammered."""

NOT_FOUND = 404


@dataclass(slots=True)
class Poller:
    """Maker of observations of one server."""

    client: ApiClient
    clock: Callable[[], float] = time.time
    _after: int = 0
    """Number of the last event that was taken."""
    _lacks: set[str] = field(default_factory=set)
    """Paths that this server does not have."""

    async def first(self) -> Observation:
        """The first look. Raises UserError when there is no MoLink server that lets us in."""
        cluster = await self.client.get("/cluster")
        if not isinstance(cluster, dict) or not isinstance(cluster.get("stages"), list):
            raise UserError("that is no MoLink server: give the --url of `molink up` or `serve`")
        return await self._look(cluster)

    async def look(self) -> Observation:
        """One look; why there is none is in it."""
        try:
            cluster = await self.client.get("/cluster")
            if not isinstance(cluster, dict):
                raise UserError("what answers there is no MoLink server")
            return await self._look(cluster)
        except UserError as error:
            return Observation(self.clock(), trouble=printable_line(str(error)))

    async def looks(self, period_s: float = PERIOD_S) -> AsyncIterator[Observation]:
        """One look after the other, until cancelled."""
        wait_s = period_s
        while True:
            began = asyncio.get_running_loop().time()
            seen = await self.look()
            yield seen
            wait_s = min(AWAY_S_MAX, 2 * wait_s) if seen.trouble else period_s
            taken_s = asyncio.get_running_loop().time() - began
            await asyncio.sleep(max(0.05, wait_s - taken_s))

    async def _look(self, cluster: Json) -> Observation:
        requests, events = await self._requests(), await self._events()
        return Observation(self.clock(), cluster, requests, events)

    async def _events(self) -> tuple[Json, ...] | None:
        body = await self._optional(f"/cluster/events?after={self._after}")
        if body is None:
            return None
        self._after = count(body, "next")  # Less than before: the coordinator was started anew.
        return tuple(objects(body, "events"))[-EVENTS_MAX:]

    async def _requests(self) -> tuple[Json, ...] | None:
        body = await self._optional("/cluster/requests")
        return None if body is None else tuple(objects(body, "requests"))

    async def _optional(self, path: str) -> Json | None:
        """An answer; None where the server has no such path, and is asked no more."""
        name = path.partition("?")[0]
        if name in self._lacks:
            return None
        try:
            body: Any = await self.client.get(path)
        except RefusedError as error:
            if error.status != NOT_FOUND:
                raise
            self._lacks.add(name)
            return None
        return body if isinstance(body, dict) else {}
