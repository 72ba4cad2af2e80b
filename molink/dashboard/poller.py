"""Polls a coordinator: three GETs a look, and waits longer while nobody answers."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from molink.client.api_client import ApiClient, RefusedError
from molink.dashboard.model.observation import Observation
from molink.errors import UserError
from molink.findings.series import EVENTS_MAX
from molink.printable import printable_line
from molink.report.plain import Json, number, objects, text

PERIOD_S = 0.5
"""Seconds between two looks; stages report about as often."""

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
    """Number of the last event that was taken; 0: all are asked for, and known ones come again."""
    _ended: set[tuple[str, int]] = field(default_factory=set)
    """Requests whose end was seen: they are of no news, and a server lists hundreds."""
    _lacks: set[str] = field(default_factory=set)
    """Paths that this server does not have."""

    async def first(self) -> Observation:
        """The first look. Raises UserError when there is no MoLink server that lets us in."""
        cluster = await self.client.get("/cluster")
        if not isinstance(cluster, dict) or not isinstance(cluster.get("stages"), list):
            raise UserError("that is no MoLink server: give the --url of `molink up` or `serve`")
        return await self._look(cluster)

    async def look(self) -> Observation:
        """Look once; the observation says why it failed, if it did."""
        try:
            cluster = await self.client.get("/cluster")
            if not isinstance(cluster, dict):
                raise UserError("what answers there is no MoLink server")
            return await self._look(cluster)
        except UserError as error:
            # Whoever answers next may have been started anew, and have given as many numbers.
            self._after = 0
            return Observation(self.clock(), trouble=_trouble(error))

    async def looks(self, period_s: float = PERIOD_S) -> AsyncIterator[Observation]:
        """Look again and again, until cancelled."""
        wait_s = period_s
        while True:
            began = asyncio.get_running_loop().time()
            seen = await self.look()
            yield seen
            wait_s = min(AWAY_S_MAX, 2 * wait_s) if seen.trouble else period_s
            taken_s = asyncio.get_running_loop().time() - began
            await asyncio.sleep(max(0.05, wait_s - taken_s))

    async def _look(self, cluster: Json) -> Observation:
        listed = await self._optional("/cluster/requests")
        told = await self._optional(f"/cluster/events?after={self._after}")
        # All have come: what is noted as seen now is lost by no failure.
        requests = None if listed is None else self._news_of(listed)
        keys = objects(listed["keys"]) if listed is not None and "keys" in listed else None
        if told is None:
            return Observation(self.clock(), cluster, requests, keys=keys)
        # Less than before: the coordinator was started anew.
        self._after = int(number(told.get("next")) or 0)
        events = objects(told.get("events"))[-EVENTS_MAX:]
        return Observation(self.clock(), cluster, requests, events, keys=keys)

    def _news_of(self, body: Json) -> tuple[Json, ...]:
        """Requests that are live, and those that have ended since the last look."""
        listed = [
            ((text(one.get("id")), int(number(one.get("choice")) or 0)), one)
            for one in objects(body.get("requests"))
        ]
        before = self._ended
        self._ended = {key for key, one in listed if one.get("state") == "ended"}
        return tuple(one for key, one in listed if key not in before)

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


def _trouble(error: UserError) -> str:
    """Sentence on a failed look; a refusal is an answer, which blames the key or the rate."""
    said = str(error)
    refused = isinstance(error, RefusedError)
    return printable_line(said if refused else f"No answer from the coordinator: {said}")
