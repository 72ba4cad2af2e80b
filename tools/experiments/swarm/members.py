"""A swarm of made-up agents in a process of its own, which takes orders on standard input.

    python -m tools.experiments.swarm.members COUNT AT_ONCE invite INVITE
    python -m tools.experiments.swarm.members COUNT AT_ONCE ports ADMISSION_PORT BROKER_PORT

Joins them, prints one line of JSON, and lets each that has joined publish its health once a second,
spread over the second. Orders, each answered by a line of JSON: `kill NAME` and `freeze NAME` by
the node's id and the time (`time.monotonic`, one clock for all processes) at which it was done,
`count` by how much the coordinator asked of them.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import aiohttp

from molink.control.messages.invites import Invite
from molink.errors import MolinkError
from molink.tasks import cancel
from tools.experiments.swarm.member import Admit, Member, at_port, with_invite

__all__ = ["MODULE"]

MODULE = "tools.experiments.swarm.members"

_HEALTH_S = 1.0
_SLICES = 100
"""Of that second: in each, its share of the members publish."""


@dataclass(slots=True)
class Swarm:
    """The members that have joined."""

    members: dict[str, Member] = field(default_factory=dict)
    first_error: str = ""
    broken: int = 0
    """Connections that ended although the member was not killed."""
    _running: set["asyncio.Task[None]"] = field(default_factory=set)

    async def join(self, total: int, at_once: int, admit: Admit) -> float:
        """Let them in; how many seconds that took."""
        gate = asyncio.Semaphore(at_once)
        started_s = time.monotonic()
        async with asyncio.TaskGroup() as joining:
            for number in range(total):
                joining.create_task(self._join(Member(number), gate, admit))
        return time.monotonic() - started_s

    async def _join(self, member: Member, gate: asyncio.Semaphore, admit: Admit) -> None:
        async with gate:
            try:
                await member.join(admit)
            except (MolinkError, OSError, TimeoutError, EOFError) as error:
                self.first_error = self.first_error or f"{member.name}: {error!r}"
                return
        self.members[member.name] = member
        self._running.add(asyncio.create_task(self._run(member)))

    async def _run(self, member: Member) -> None:
        try:
            await member.run()
        except (OSError, EOFError):
            self.broken += not member.frozen

    async def publish_health(self) -> None:
        """Publish for ever; also while others join, or the broker takes them for lost."""
        started_s = time.monotonic()
        for number in count():
            for member in list(self.members.values())[number % _SLICES :: _SLICES]:
                member.publish_health()
            due_s = started_s + (number + 1) * _HEALTH_S / _SLICES
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def carry_out(self, order: str, *names: str) -> dict[str, Any]:
        """Carry an order out; what to answer."""
        if order == "count":
            members = self.members.values()
            return {
                "probe_orders": sum(member.probe_orders for member in members),
                "assignments": sum(member.assignments for member in members),
                "broken": self.broken,
            }
        member = self.members[names[0]]
        if order == "kill":
            member.kill()
        else:
            member.freeze()
        return {"node_id": member.node_id, "at_s": time.monotonic()}


@asynccontextmanager
async def _admission(kind: str, *words: str) -> AsyncIterator[Admit]:
    if kind == "ports":
        yield at_port(*map(int, words))
        return
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        yield with_invite(session, Invite.parse(words[0]))


async def _main(total: int, at_once: int, *admission: str) -> None:
    swarm = Swarm()
    publishing = asyncio.create_task(swarm.publish_health())
    async with _admission(*admission) as admit:
        took_s = await swarm.join(total, at_once, admit)
    joined = {"joined": len(swarm.members), "took_s": took_s, "first_error": swarm.first_error}
    print(json.dumps(joined), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(swarm.carry_out(*line.split())), flush=True)
    await cancel(publishing)


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
