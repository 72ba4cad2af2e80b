"""A node within the process of `molink serve`: takes assignments, hosts one stage, reports.

The part of an agent that is left when no owner has to be asked: no probe, no relay, and the weights
lie where the operator names them. Its reports and commands are the same, through the same broker.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import assert_never

from molink.control.addresses import BrokerAddress, Credentials
from molink.control.client import ControlClient
from molink.control.messages.assignment import Assignment, Follow, GoOn, InRing, Join
from molink.control.messages.payloads import (
    AssignedWork,
    NodeState,
    Profile,
    ShadowOrder,
    StageLink,
)
from molink.control.messages.topics import ASSIGNMENT, PROFILE, SHADOW
from molink.coordinator.local.fixed_plan import RingPlan
from molink.node.control_session import ControlSession
from molink.node.hosting import MoveLink
from molink.node.kept_cache import KeptCache
from molink.node.stage_handle import StageHandle, WarmStage
from molink.node.stage_manager import StageManager
from molink.stage_protocol.messages import (
    EnterRing,
    FollowRing,
    JoinRing,
    LoadStage,
    PathMoved,
    StageLoaded,
)
from molink.tasks import task_group


@dataclass(frozen=True, slots=True)
class _Launcher:
    """Starter of one stage of a fixed plan; its weights are on the disk."""

    plan: RingPlan
    index: int
    warm: WarmStage
    """The warm stage process that all stages of this PC share."""
    kept: KeptCache = field(default_factory=KeptCache)

    async def prepare(self, work: AssignedWork, report: Callable[[float], None]) -> str:
        return self.plan.path

    async def start(
        self, work: AssignedWork, directory: str, allowed: tuple[str, ...]
    ) -> StageHandle:
        load = self.kept.lent(self.plan.load(self.index, work))
        return await self.warm.start(self.plan.name(self.index), load, self._arguments)

    async def more(
        self, work: AssignedWork, allowed: tuple[str, ...], report: Callable[[float], None]
    ) -> LoadStage:
        return self.plan.load(self.index, work)

    async def stand_ready(self, work: AssignedWork) -> None:
        """A process that writes an event log has its own file, and is started for one stage."""
        if self.plan.event_log is None:
            await self.warm.begin(work.threads, self._arguments)

    async def stand_down(self) -> None:
        """Forget what the stage has cached. Another stage may need the process that waits, which
        ends with the cluster."""
        self.kept.forget()

    @property
    def _arguments(self) -> tuple[str, ...]:
        return self.plan.stage_arguments(self.index)


@dataclass(slots=True)
class DirectRoutes:
    """Routes of one local stage's links: to the stages' own addresses, at once.

    No path is looked for and nothing is encrypted between the processes of one machine: neither
    would be free on the path of a token.
    """

    upload_bytes_per_s: Callable[[], float | None]
    is_tail: bool = False
    """Whether its stage was the tail of its ring when it joined last."""

    @classmethod
    def of(cls, plan: RingPlan) -> "DirectRoutes":
        """Routes of any stage of a plan."""
        cap = plan.upload_mbps * 1e6 / 8 if plan.upload_mbps else None
        return cls(lambda: cap)

    @property
    def paths(self) -> dict[str, str]:
        """Path of each outgoing link: always direct."""
        links = ("next", "coordinator") if self.is_tail else ("next",)
        return dict.fromkeys(links, "direct")

    def listen(self, loaded: StageLoaded) -> None:
        """Nothing to do: no relay leads others to it."""

    async def join_command(self, epoch: int, command: InRing, move: MoveLink) -> EnterRing:
        """Command with the addresses that were assigned; a stage listens at the last one."""
        match command:
            case Join() | GoOn():
                return self._join_command(epoch, command)
            case Follow(terms=terms):
                self.is_tail = False
                return FollowRing(epoch, terms)
            case other:
                assert_never(other)

    def _join_command(self, epoch: int, command: Join | GoOn) -> JoinRing:
        tail_link = command.coordinator_link
        self.is_tail = tail_link is not None
        return JoinRing(
            ring=command.terms,
            epoch=epoch,
            next_address=_address(command.next_link),
            coordinator_address=_address(tail_link) if tail_link is not None else None,
            upload_bytes_per_s=self.upload_bytes_per_s(),
            resume=command.resume if isinstance(command, GoOn) else None,
        )

    async def shadow_address(self, link: StageLink, move: MoveLink) -> tuple[str, str | None]:
        """The address of the order."""
        return _address(link), None

    def path_moved(self, moved: PathMoved) -> None:
        """Nothing to do: no link is ever moved."""

    async def leave(self) -> None:
        """Nothing to do: no path is kept."""


def _address(link: StageLink) -> str:
    return f"tcp://{link.addresses[-1]}"


@dataclass(slots=True)
class LocalNode:
    """Node of this process, with one stage. Made by `of`."""

    identity: Credentials
    profile: Profile
    session: ControlSession
    stage: StageManager

    @classmethod
    def of(cls, plan: RingPlan, index: int, identity: Credentials, warm: WarmStage) -> "LocalNode":
        """The node of a stage; `identity` is its user of the broker, named after its id."""
        session = ControlSession(identity.username, plan.name(index))
        routes = DirectRoutes.of(plan)
        stage = StageManager(
            _Launcher(plan, index, warm), routes, session.publish_fact, operators_own=True
        )
        return cls(identity, plan.profile(index), session, stage)

    @property
    def node_id(self) -> str:
        """Id of the node in the registry."""
        return self.session.node_id

    @property
    def pid(self) -> int | None:
        """Id of its stage's process."""
        return self.stage.handle.pid if self.stage.handle is not None else None

    @property
    def state(self) -> NodeState:
        """State as GET /cluster names it."""
        return NodeState(self.stage.state)

    async def run(self, broker: BrokerAddress) -> None:
        """Run until cancelled, then end its stage. Raises ControlError when it is refused."""
        try:
            async with self.session.open(broker, self.identity, (ASSIGNMENT, SHADOW)) as client:
                await self.session.publish(PROFILE, self.profile)
                async with task_group() as tasks:
                    tasks.create_task(self._receive(client))
                    tasks.create_task(self._send_heartbeats())
        finally:
            await self.stage.stop()

    async def _receive(self, client: ControlClient) -> None:
        async for received in client.messages():
            match received.message:
                case Assignment() as assignment:
                    await self.stage.assign(assignment)
                case ShadowOrder() as order:
                    await self.stage.lead_to_shadow(order)

    async def _send_heartbeats(self) -> None:
        await self.session.send_heartbeats(self.stage, lambda: self.state)
