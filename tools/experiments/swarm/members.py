"""A swarm of made-up members in a process of its own, which does what it reads on standard input.

    python -m tools.experiments.swarm.members COUNT AT_ONCE INVITE

Joins them, prints one line of JSON, and lets each that has joined say how it is once a second,
spread over the second. Lines that it understands: `kill NAME`, `freeze NAME`, each answered by the
time (`time.monotonic`, one clock for all processes) at which it was done, and `count`, answered by
JSON with what they were told.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from itertools import count

import aiohttp

from molink.control.messages.invites import Invite
from molink.errors import MolinkError
from tools.experiments.swarm.member import Member

__all__: list[str] = []

_HEALTH_S = 1.0
_SLICES = 100
"""Of that second: in each, its share of the members speak."""


@dataclass(slots=True)
class Swarm:
    """Those that have joined."""

    members: dict[str, Member] = field(default_factory=dict)
    first_error: str = ""
    broken: int = 0
    """Connections that ended although nobody was killed."""
    obeying: set["asyncio.Task[None]"] = field(default_factory=set)

    async def join(self, total: int, at_once: int, invite: Invite) -> float:
        """Let them in; how many seconds that took."""
        gate = asyncio.Semaphore(at_once)
        started_s = time.monotonic()
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(
                *(self._join(Member(number), gate, session, invite) for number in range(total))
            )
        return time.monotonic() - started_s

    async def _join(
        self,
        member: Member,
        gate: asyncio.Semaphore,
        session: aiohttp.ClientSession,
        invite: Invite,
    ) -> None:
        async with gate:
            try:
                await member.join(session, invite)
            except (MolinkError, OSError, TimeoutError, EOFError) as error:
                self.first_error = self.first_error or f"{member.name}: {error!r}"
                return
        self.members[member.name] = member
        self.obeying.add(asyncio.create_task(self._obey(member)))

    async def _obey(self, member: Member) -> None:
        try:
            await member.obey()
        except (OSError, EOFError):
            self.broken += not member.frozen

    async def speak(self) -> None:
        """For ever; also while others join, or the coordinator takes them for lost."""
        started_s = time.monotonic()
        for number in count():
            for member in list(self.members.values())[number % _SLICES :: _SLICES]:
                member.say_health()
            due_s = started_s + (number + 1) * _HEALTH_S / _SLICES
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))

    def told(self) -> dict[str, int]:
        """What came, in all."""
        members = self.members.values()
        return {
            "probe_orders": sum(one.orders for one in members),
            "assignments": sum(one.assignments for one in members),
            "broken": self.broken,
        }


async def _main(total: int, at_once: int, invite: str) -> None:
    swarm = Swarm()
    speaking = asyncio.create_task(swarm.speak())
    took_s = await swarm.join(total, at_once, Invite.parse(invite))
    joined = {"joined": len(swarm.members), "took_s": took_s, "first_error": swarm.first_error}
    print(json.dumps(joined), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, *name = line.split()
        if order == "count":
            print(json.dumps(swarm.told()), flush=True)
            continue
        member = swarm.members[name[0]]
        member.die() if order == "kill" else member.freeze()
        print(time.monotonic(), flush=True)
    speaking.cancel()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
