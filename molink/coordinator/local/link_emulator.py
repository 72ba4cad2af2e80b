"""The emulator of home links as a child process: one port in front of each link's end."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from molink.config.link_schedule import LinkSchedule
from molink.config.ring_hosts import LOCAL_ADDRESS
from molink.control.messages.payloads import StageLink
from molink.coordinator.rings.agent_ring import RingRoutes
from molink.errors import StageError
from molink.node.child_process import ChildProcess

__all__ = ["LinkEmulator"]

EMULATOR_MODULE = "molink.transport.emulator"


@dataclass(frozen=True, slots=True)
class LinkEmulator:
    """Emulator that runs. Made by `start`; its child is to be stopped."""

    child: ChildProcess
    routes: RingRoutes
    """The links as they were, led through its ports."""

    @classmethod
    async def start(cls, schedule: LinkSchedule, routes: RingRoutes) -> "LinkEmulator":
        """Emulate on every link. Raises StageError when it does not start."""
        links = (routes.requests, *routes.next_of, routes.sampled)
        targets = [link.addresses[-1] for link in links]
        child = await ChildProcess.start(EMULATOR_MODULE, [schedule.text, *targets])
        try:
            first, *middle, last = _through(links, await _ports(child))
        except BaseException:
            await child.stop()
            raise
        return cls(child, replace(routes, requests=first, next_of=tuple(middle), sampled=last))

    async def watch(self) -> None:
        """Until it has ended, then raises StageError."""
        while await self.child.read_line():
            pass
        raise StageError(f"The link emulator (pid {self.child.pid}) ended unexpectedly.")


async def _ports(child: ChildProcess) -> list[int]:
    line = await child.read_line()
    if not line:
        raise StageError("The link emulator did not start: run the command again.")
    return [int(port) for port in json.loads(line)["ports"]]


def _through(links: Sequence[StageLink], ports: Sequence[int]) -> list[StageLink]:
    return [
        link.model_copy(update={"addresses": (f"{LOCAL_ADDRESS}:{port}",)})
        for link, port in zip(links, ports, strict=True)
    ]
