"""The ring of `molink serve`: stages on local nodes, on request a home link on every hop.

It is built as any ring is: assign, load, join. What is added here is what only one machine can do:
an emulator between the processes, and the process ids.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from molink.control.messages.payloads import StageLink, WeightsSource
from molink.coordinator.local.control import LocalControl
from molink.coordinator.local.fixed_plan import RingPlan
from molink.coordinator.local.link_emulator import LinkEmulator
from molink.coordinator.members.node_book import Node
from molink.coordinator.requests.ring import RingFacts
from molink.coordinator.rings.agent_ring import AgentRing, JoinTerms, RingRoutes, build_ring
from molink.coordinator.rings.agent_stage import AgentStage
from molink.coordinator.rings.assigner import Assigner
from molink.tasks import gathered

__all__ = ["EPOCH", "LocalRing"]

EPOCH = 1
"""A local ring is built once; a ring that replaces a lost node counts on from here."""

RING = 0
"""Its number among the cluster's rings: there is no other."""


@dataclass(slots=True)
class LocalRing:
    """A ring that serves, within `start`'s block."""

    agents: AgentRing
    control: LocalControl
    plan: RingPlan
    emulator: LinkEmulator | None

    @classmethod
    @asynccontextmanager
    async def start(
        cls,
        control: LocalControl,
        plan: RingPlan,
        terms: JoinTerms,
        progressed: Callable[[int, float], None],
    ) -> AsyncIterator["LocalRing"]:
        """Load and join all stages; `progressed(stage, fraction)` while weights load.

        Raises UserError for what the operator can mend, StageError when a process fails.
        """
        stages = _stages(control, plan)
        control.hub.noticed = lambda node_id: _notice(stages, node_id)
        async with AsyncExitStack() as stack:
            emulators: list[LinkEmulator] = []

            async def detour(routes: RingRoutes) -> RingRoutes:
                straight = _straight(routes)
                if plan.link is None:
                    return straight
                emulating = LinkEmulator.start(plan.link, straight)
                emulators.append(await stack.enter_async_context(emulating))
                return emulators[0].routes

            agents = await control.unless_lost(build_ring(stages, terms, progressed, detour))
            for stage, node in zip(stages, control.nodes, strict=True):
                stage.pid = node.pid
            yield cls(agents, control, plan, emulators[0] if emulators else None)

    @property
    def facts(self) -> RingFacts:
        """What stays as it is."""
        link = self.plan.link
        shape = link.steps[0].shape if link is not None else None
        return replace(self.agents.facts, emulated=shape)

    @property
    def stages(self) -> Sequence[AgentStage]:
        """Head first."""
        return self.agents.stages

    @property
    def head_address(self) -> str:
        """Where the coordinator sends requests."""
        return f"tcp://{self.agents.requests_link.addresses[0]}"

    async def watch(self) -> None:
        """Follow stages and emulator; raises StageError as soon as a process is gone."""
        watches = [self.agents.watch(), self.control.watch()]
        if self.emulator is not None:
            watches.append(self.emulator.watch())
        await gathered(watches)


def _stages(control: LocalControl, plan: RingPlan) -> list[AgentStage]:
    hub = control.hub
    assigner = Assigner(
        hub.book,
        WeightsSource(model=plan.path),
        plan.works[0].dtype,
        hub.tell,
        _allow_everybody,
        hub.registry.coordinator.public_z85,
        hub.registry.next_revision,
    )
    stages = assigner.stages_of(control.members, plan.works, RING, EPOCH)
    for stage in stages:
        stage.downloads = False
    return stages


async def _allow_everybody(node: Node, keys: tuple[str, ...]) -> None:
    """Links that are not encrypted know no keys."""


def _notice(stages: Sequence[AgentStage], node_id: str) -> None:
    for stage in stages:
        if stage.node.node_id == node_id:
            stage.notice()


def _straight(routes: RingRoutes) -> RingRoutes:
    """To the stages' own addresses: a ring of one would try its own loopback first, where a stage
    of `--hosts` does not listen."""
    return RingRoutes(
        requests=_last_way(routes.requests),
        next_of=tuple(_last_way(link) for link in routes.next_of),
        sampled=_last_way(routes.sampled),
    )


def _last_way(link: StageLink) -> StageLink:
    return link.model_copy(update={"addresses": link.addresses[-1:]})
