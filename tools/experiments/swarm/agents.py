"""A swarm of made-up agents in a process of its own, which does what it reads on standard input.

    python -m tools.experiments.swarm.agents COUNT AT_ONCE DOOR PORT

Joins them, prints one line of JSON, and lets each that has joined say how it is once a second,
spread over the second. Lines that it understands: `kill NAME`, `freeze NAME`; each is answered by
the time (`time.monotonic`, one clock for all processes) at which it was done.
"""

import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from itertools import count

from tools.experiments.swarm.agent import Agent

__all__ = ["agent_name"]

_HEALTH_S = 1.0
_SLICES = 100
"""Of that second: in each, its share of the agents speak."""


def agent_name(number: int) -> str:
    """Of sixteen letters as real ids."""
    letters = "".join(chr(ord("a") + int(digit)) for digit in f"{number:06d}")
    return f"madeup{letters}2345"


@dataclass(slots=True)
class Swarm:
    """Those that have joined."""

    agents: dict[str, Agent] = field(default_factory=dict)
    first_error: str = ""
    staying: set["asyncio.Task[None]"] = field(default_factory=set)

    async def join(self, total: int, at_once: int, door: int, port: int) -> float:
        """Let them in; how many seconds that took."""
        gate = asyncio.Semaphore(at_once)
        started_s = time.monotonic()
        numbers = range(total)
        await asyncio.gather(*(self._join(agent_name(one), gate, door, port) for one in numbers))
        return time.monotonic() - started_s

    async def _join(self, name: str, gate: asyncio.Semaphore, door: int, port: int) -> None:
        async with gate:
            try:
                self.agents[name] = await Agent.join(name, door, port)
            except (OSError, TimeoutError, EOFError) as error:
                self.first_error = self.first_error or f"{name}: {error!r}"
                return
        self.staying.add(asyncio.create_task(self.agents[name].stay()))

    async def speak(self) -> None:
        """For ever; also while others join, or the broker takes them for lost."""
        started_s = time.monotonic()
        for number in count():
            for agent in list(self.agents.values())[number % _SLICES :: _SLICES]:
                agent.say_health()
            due_s = started_s + (number + 1) * _HEALTH_S / _SLICES
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


async def _main(total: int, at_once: int, door: int, port: int) -> None:
    swarm = Swarm()
    speaking = asyncio.create_task(swarm.speak())
    took_s = await swarm.join(total, at_once, door, port)
    joined = {"joined": len(swarm.agents), "took_s": took_s, "first_error": swarm.first_error}
    print(json.dumps(joined), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, name = line.split()
        agent = swarm.agents[name]
        agent.die() if order == "kill" else agent.freeze()
        print(time.monotonic(), flush=True)
    speaking.cancel()


if __name__ == "__main__":
    asyncio.run(_main(*(int(word) for word in sys.argv[1:5])))
