"""The coordinator's ends of the links to a ring of local nodes, whose hops may be emulated.

Nothing is encrypted and no path is looked for between the processes of one machine. What is added
here is what only one machine can do: an emulator between the processes, and their ids.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from molink.config.link_schedule import LinkSchedule
from molink.control.messages.payloads import StageLink
from molink.coordinator.local.fixed_plan import LOCAL_ADDRESS, RingPlan
from molink.coordinator.local.local_node import LocalNode
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.links import RingClientLinks
from molink.coordinator.ring.ring import JoinTerms, Ring
from molink.coordinator.upkeep.ring_building import RingRoutes
from molink.errors import StageError
from molink.node.stage_handle import ChildProcess
from molink.serving.model_card import ModelCard
from molink.tasks import gathered
from molink_scheduler.head.settings import RingTerms

EMULATOR_MODULE = "molink.transport.emulator"


@dataclass(frozen=True, slots=True)
class LinkEmulator:
    """Emulator that runs. Made by `start`; its child is to be stopped."""

    child: ChildProcess
    ports: dict[str, str]
    """By the address at which a link ends, the one that leads there."""

    @classmethod
    async def start(cls, schedule: LinkSchedule, targets: Sequence[str]) -> "LinkEmulator":
        """Emulate links to these addresses. Raises StageError when it does not start."""
        child = await ChildProcess.start(EMULATOR_MODULE, [schedule.text, *targets])
        try:
            addresses = [f"{LOCAL_ADDRESS}:{port}" for port in await _ports(child)]
        except BaseException:
            await child.stop()
            raise
        return cls(child, dict(zip(targets, addresses, strict=True)))

    async def watch(self) -> None:
        """Wait until it has ended, then raise StageError."""
        while await self.child.read_line():
            pass
        raise StageError(f"The link emulator (pid {self.child.pid}) ended unexpectedly.")


@dataclass(slots=True)
class LocalEndpoint:
    """The ends of both links to one ring of local nodes, in one epoch."""

    card: ModelCard
    plan: RingPlan
    terms: RingTerms
    public_key: str
    """The coordinator's, Z85: links are not encrypted, but messages name it."""
    nodes: Sequence[LocalNode]
    epoch: int
    _links: RingClientLinks | None = None
    _emulators: list[LinkEmulator] = field(default_factory=list)

    async def open(self, stages: Sequence[AgentStage]) -> JoinTerms:
        """Listen for the tail."""
        self._links = RingClientLinks.bind(LOCAL_ADDRESS, self.epoch)
        link = StageLink(
            to="coordinator",
            public_key=self.public_key,
            addresses=(f"{LOCAL_ADDRESS}:{self._links.port}",),
            port_name="sampled",
        )
        schedule = self.plan.link
        emulated = schedule.steps[0].shape if schedule is not None else None
        return JoinTerms(self.terms, link, self.plan.upload_mbps, emulated)

    def admit(self, stages: Sequence[AgentStage]) -> None:
        """Nothing to do: links are not encrypted."""

    async def reroute(self, routes: RingRoutes) -> RingRoutes:
        """The links through an emulator, if they are to be emulated; those that are already keep
        theirs."""
        if self.plan.link is None:
            return routes
        links = (routes.requests, *routes.next_of, routes.sampled)
        first, *middle, last = await self._emulated(links)
        return replace(routes, requests=first, next_of=tuple(middle), sampled=last)

    async def reroute_one(self, link: StageLink) -> StageLink:
        """The link through an emulator, if links are to be emulated."""
        return link if self.plan.link is None else (await self._emulated([link]))[0]

    async def _emulated(self, links: Sequence[StageLink]) -> list[StageLink]:
        assert self.plan.link is not None, "links are emulated"
        targets = [link.addresses[-1] for link in links]
        if new := [target for target in targets if target not in self._ports]:
            self._emulators.append(await LinkEmulator.start(self.plan.link, new))
        return [
            link.model_copy(update={"addresses": (self._ports[target],)})
            for link, target in zip(links, targets, strict=True)
        ]

    @property
    def _ports(self) -> dict[str, str]:
        """Addresses at which emulated links begin, by those at which they end."""
        return {end: start for one in self._emulators for end, start in one.ports.items()}

    async def watch(self, ring: Ring) -> None:
        """Watch the emulators. Raises StageError when one ends."""
        await gathered(emulator.watch() for emulator in self._emulators)

    def fitting(self, ring: Ring) -> ModelCard:
        """The card of the model as a ring has room for it."""
        terms = ring.terms.ring
        return self.card.fitting(terms.tokens_most, borrows=terms.requests_max is not None)

    def client(self, ring: Ring) -> RingClient:
        """A client of a ring to whose head no link is open yet."""
        assert self._links is not None, "the tail is awaited first"
        return RingClient(self.fitting(ring), ring, self._links, head_silent=lambda: None)

    async def connect(self, ring: Ring) -> RingClient:
        """Open the link to the head. Raises RingError."""
        assert self._links is not None, "the tail is awaited first"
        self._note_pids(ring)
        await self._links.connect(f"tcp://{ring.requests_link.addresses[-1]}")
        return self.client(ring)

    async def begin_epoch(self, ring: Ring) -> None:
        """Lead to the head of the ring's next epoch. Raises RingError."""
        assert self._links is not None, "a ring goes on that was connected"
        self._note_pids(ring)
        await self._links.begin_epoch(ring.epoch, f"tcp://{ring.requests_link.addresses[-1]}")

    def _note_pids(self, ring: Ring) -> None:
        pids = {node.node_id: node.pid for node in self.nodes}
        for stage in ring.stages:
            stage.pid = pids[stage.node.node_id]

    async def close(self) -> None:
        """Close both links; a second call does nothing."""
        links, self._links = self._links, None
        emulators, self._emulators = self._emulators, []
        try:
            if links is not None:
                await asyncio.to_thread(links.close)
        finally:
            await gathered(emulator.child.stop() for emulator in emulators)


async def _ports(child: ChildProcess) -> list[int]:
    line = await child.read_line()
    if not line:
        raise StageError("The link emulator did not start: run the command again.")
    return [int(port) for port in json.loads(line)["ports"]]
