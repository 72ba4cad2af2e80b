"""One lent device in the cluster: a node of its own, from its admission to its end.

The coordinator knows nodes and nothing of PCs: each has keys, presence, a profile with one device,
an assignment and a stage process. What it receives is carried out by its parts: the stage manager
the assignments, the routes the paths, the probe runner the measurements; its reports tell what is
lent. What its PC's owner allows, the `agent` sees to.
"""

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, assert_never

from molink.control.addresses import Credentials
from molink.control.client import ControlClient
from molink.control.messages.assignment import Assignment, Stop
from molink.control.messages.cell import CellOrder, PairOrder
from molink.control.messages.payloads import (
    Accepted,
    CoordinatorPresence,
    LinkKeys,
    NodeState,
    ProbeOrder,
    Services,
    ShadowOrder,
    StageLease,
)
from molink.control.messages.topics import (
    ACCEPTED,
    ASSIGNMENT,
    CELL,
    COORDINATOR,
    LEASE,
    LINK_KEYS,
    PAIR,
    PROBE,
    SEEN,
    SERVICES,
    SHADOW,
    Topic,
)
from molink.control.versions import Protocols, own_protocols
from molink.errors import ControlError, JoinRefusedError, UserError
from molink.node.control_session import ControlSession
from molink.node.stage_manager import StageManager
from molink.tasks import cancel, spawn, task_group, unless
from molink_agent.daemon.cell_member import CellMember
from molink_agent.daemon.measurements import ProbeRunner
from molink_agent.daemon.membership import MemberAdmission, Membership
from molink_agent.daemon.reports import DeviceReports
from molink_agent.daemon.routes import RelayedRoutes

RECLAIM_S = 180.0
"""Seconds to find a replacement (a minute) and to let answers end (half of one), twice over."""

RECLAIM_URGENT_S = 10.0
"""Seconds while the owner plays on the device: a ring whose stage ends goes on elsewhere with the
tokens it has."""

ABANDONED_S = 600.0
"""A coordinator that restarts, or a router, is back by then; later an idle stage's memory is better
its owner's."""

ASK_ANEW_S, LOOK_S = 300.0, 1.0
"""A broker that has been out of reach for so long has perhaps moved, which the coordinator knows;
how often that is looked at."""

UNCLAIMED_S = 60.0
"""Seconds for which a stage is kept for a coordinator that was started anew: it takes a ring over
once all of its nodes are back, and waits half as long for them."""

Command = (
    Accepted
    | Services
    | LinkKeys
    | ProbeOrder
    | Assignment
    | ShadowOrder
    | StageLease
    | PairOrder
    | CellOrder
    | CoordinatorPresence
)
"""Messages that the coordinator sends to a node, or to all."""

TOPICS: tuple[Topic[Any], ...] = (
    ACCEPTED,
    SERVICES,
    LINK_KEYS,
    PROBE,
    ASSIGNMENT,
    SHADOW,
    LEASE,
    PAIR,
    CELL,
    COORDINATOR,
)

log = logging.getLogger(__name__)


class ReplacedError(UserError):
    """Raised when another agent with the same keys has started later."""


@dataclass(slots=True)
class ReclaimDeadline:
    """Deadline until which a ring may keep a device that its owner wants back. Pure.

    The owner gets the PC when the ring lets go, or when it has had its time, or at once when there
    is no coordinator to ask.
    """

    _wanted_at: float | None = None

    def is_due(self, now: float, *, wanted: bool, alone: bool, is_urgent: bool = False) -> bool:
        """Whether a stage is ended by now without waiting for its ring. `wanted`: the device is not
        to be lent; `alone`: no coordinator is in reach; `is_urgent`: its owner waits for it."""
        if not wanted:
            self._wanted_at = None
            return False
        if self._wanted_at is None:
            self._wanted_at = now
        return alone or now - self._wanted_at > (RECLAIM_URGENT_S if is_urgent else RECLAIM_S)


@dataclass(slots=True)
class AbandonedDeadline:
    """Deadline until which an idle stage is kept while its coordinator is out of reach. Pure."""

    after_s: float = ABANDONED_S
    _steps: int | None = None
    _idle_since: float | None = None

    def is_due(self, now: float, *, alone: bool, steps: int | None) -> bool:
        """Whether nobody will ask the stage for anything. `steps`: that it has computed; answers go
        on without a broker, so a stage that computes is not abandoned."""
        if not alone or self._idle_since is None or steps != self._steps:
            self._steps, self._idle_since = steps, now if alone else None
            return False
        return now - self._idle_since >= self.after_s


@dataclass(slots=True)
class UnclaimedDeadline:
    """Deadline until which a coordinator that was started anew may claim a stage of its last start.
    Pure."""

    _since: float | None = None

    def is_due(self, now: float, *, unclaimed: bool) -> bool:
        """Whether nobody will claim it. `unclaimed`: it was assigned by another start than the
        present coordinator's."""
        if not unclaimed:
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= UNCLAIMED_S


@dataclass(slots=True)
class DeviceNode:
    """Node of the cluster that lends one device of this PC."""

    session: ControlSession
    admission: MemberAdmission
    stage: StageManager
    routes: RelayedRoutes
    reports: DeviceReports
    probes: ProbeRunner
    cell: CellMember | None = None
    """What the PC lends to its LAN, at its first node; None: this is a further one."""
    refused: str = ""
    """Why the coordinator does not let it in; empty: it does."""
    _reclaim: ReclaimDeadline = field(default_factory=ReclaimDeadline)
    _abandoned: AbandonedDeadline = field(default_factory=AbandonedDeadline)
    _unclaimed: UnclaimedDeadline = field(default_factory=UnclaimedDeadline)
    _coordinator_session: str = ""
    """Session of the coordinator's present start; empty: not heard of yet."""

    @property
    def device(self) -> str:
        """The device that it lends; empty: nothing now."""
        return self.reports.stage.device

    @property
    def lends(self) -> bool:
        """Whether stages in its LAN have memory of its PC."""
        return self.cell is not None and self.cell.lends

    @property
    def state(self) -> NodeState:
        """The state as the owner sees it."""
        if self.reports.outdated:
            return NodeState.OUTDATED
        if self.reports.wish.wish != "serve":
            return NodeState.DRAINING if self.stage.busy else NodeState.PAUSED
        if self.stage.state == "standby":
            is_measured = self.reports.measured.steps is not None
            return NodeState.STANDBY if is_measured else NodeState.JOINING
        return NodeState(self.stage.state)

    async def run(self) -> None:
        """Take part in the cluster until cancelled, or until another agent has its keys.

        Raises ReplacedError, UserError, and for the PC's first node JoinRefusedError when the
        cluster does not want it; a further node just ends then.
        """
        try:
            membership = await self.admission.enter()
            while True:
                membership = await self._member_until_refused(membership)
        except JoinRefusedError as error:
            if self.admission.first is None:
                raise
            log.warning("%s is not let in: %s", self.session.name, error)
            self.refused = str(error)
        finally:
            await self._reset()
            await self.probes.endpoint.stop()
            await self.routes.close()

    async def set_device(self, device: str) -> None:
        """Lend this device from the next ring on."""
        if device != self.device:
            self.reports.set_device(device)
            await self.probes.device_changed()

    async def refresh(self, *, limits_changed: bool) -> None:
        """Do what the owner allows now, and publish it. Raises ControlError when the broker refuses
        us."""
        if limits_changed:
            self.stage.limits_changed()
        if self.cell is not None:
            await self.cell.refresh()
        is_refuted = self.reports.stage.is_offer_refuted
        if limits_changed or is_refuted or self.reports.profile is None:
            await self.reports.publish_profile()
        busy = self.stage.busy or self.stage.state != "standby"
        await self.reports.capacity.update(time.monotonic(), changed=limits_changed, busy=busy)
        if limits_changed:
            await self.probes.limits_changed()
        await self.probes.refresh()
        await self.reports.publish_wish()
        await self._end_stage_if_due()

    async def _end_stage_if_due(self) -> None:
        # 1. The owner wants the device back.
        wanted, alone = self.reports.wish.wish != "serve", not self.session.connected
        is_urgent = self.reports.owner.now.is_urgent
        due = self._reclaim.is_due(
            time.monotonic(), wanted=wanted, alone=alone, is_urgent=is_urgent
        )
        if due and self.stage.busy:
            log.warning("the stage is ended: the owner wants this PC")
            await self.stage.reclaim()
        # 2. The coordinator has been away for long, and no ring computes.
        health = self.stage.health
        steps = health.steps if health is not None else None
        if self._abandoned.is_due(time.monotonic(), alone=alone, steps=steps) and self.stage.busy:
            log.warning("the stage is ended: the coordinator has been out of reach for long")
            await self.stage.let_go()
        # 3. The present coordinator does not claim what another start of it assigned.
        if self._unclaimed.is_due(time.monotonic(), unclaimed=self._is_unclaimed):
            log.info("the stage is ended: the coordinator was started anew and does not claim it")
            await self.stage.let_go()

    @property
    def _is_unclaimed(self) -> bool:
        """Whether the stage was assigned by another start than the present coordinator's."""
        assignment, session = self.stage.assignment, self._coordinator_session
        is_known = self.session.connected and bool(session) and self.stage.busy
        return is_known and assignment is not None and assignment.session not in ("", session)

    # -- membership ------------------------------------------------------------------------------

    async def _member_until_refused(self, membership: Membership) -> Membership:
        """Be a member until the broker refuses it or is long gone; the new membership that the
        coordinator grants then."""
        lost = asyncio.Event()
        watching = spawn(self._watch_broker(lost))
        try:
            await unless(lost, self._run_membership(membership))
        except ControlError as error:
            log.warning("%s Asking the coordinator.", error)
        finally:
            await cancel(watching)
        await self._reset()
        return await self.admission.again()

    async def _watch_broker(self, lost: asyncio.Event) -> None:
        """Set the event once the broker has been out of reach for long, and no ring counts on the
        stage: another coordinator may have taken over, with a broker of its own."""
        deadline = AbandonedDeadline(ASK_ANEW_S)
        while not lost.is_set():
            await asyncio.sleep(LOOK_S)
            if deadline.is_due(time.monotonic(), alone=self._is_unattended, steps=None):
                log.warning("The broker has been out of reach for long. Asking the coordinator.")
                lost.set()

    @property
    def _is_unattended(self) -> bool:
        """Whether nobody commands it now, and nobody has it compute."""
        return not (self.session.connected or self.stage.busy)

    async def _reset(self) -> None:
        """Hold nothing, and be as a node that has just started."""
        await self.probes.stop()
        await self.stage.stop()
        self.stage.forget_orders()
        self.session.incarnation = secrets.token_hex(8)

    async def _run_membership(self, membership: Membership) -> None:
        identity = Credentials(membership.answer.username, membership.answer.password)
        self.reports.serves(self.reports.capacity.model or membership.answer.model)
        async with self.session.open(membership.broker, identity, TOPICS) as client:
            self.reports.publish_again()
            await self.refresh(limits_changed=False)
            async with task_group() as group:
                group.create_task(self._receive(client))
                group.create_task(self._send_heartbeats())
                group.create_task(self._report_rates())
                if self.cell is not None:
                    group.create_task(self.cell.run())

    async def _send_heartbeats(self) -> None:
        cell = self.cell.facts if self.cell is not None else lambda: None
        await self.session.send_heartbeats(self.stage, self._reported_state, cell)

    def _reported_state(self) -> NodeState:
        """The state in words that every coordinator knows."""
        return NodeState.PAUSED if self.state is NodeState.OUTDATED else self.state

    async def _receive(self, client: ControlClient) -> None:
        async for received in client.messages():
            assert isinstance(received.message, Command), "these topics carry nothing else"
            await self._handle(received.message)

    async def _handle(self, message: Command) -> None:
        match message:
            case Accepted():
                self._check_not_replaced(message)
            case Services():
                self.reports.serves(message.model)
                await self.routes.use(message)
                await self.probes.use(message)
            case LinkKeys():
                self.stage.allow(message)
            case ProbeOrder():
                await self.probes.take(message)
            case Assignment():
                if isinstance(message.command, Stop) or self._speaks(message.protocol):
                    await self.stage.assign(message)
            case ShadowOrder() | StageLease() | PairOrder():
                await self._handle_ring_order(message)
            case CellOrder():
                await self._handle_cell_order(message)
            case CoordinatorPresence():
                if message.online:
                    self._coordinator_session = message.session
                    speaks = Protocols(message.protocol_min, message.protocol)
                    await self.reports.coordinator_speaks(speaks)
            case other:
                assert_never(other)

    async def _handle_ring_order(self, order: ShadowOrder | StageLease | PairOrder) -> None:
        """Take what its stage is told while it serves."""
        if not isinstance(order, ShadowOrder):
            self.stage.tell(order)
        elif self._speaks(order.protocol):
            await self.stage.lead_to_shadow(order)

    async def _handle_cell_order(self, order: CellOrder) -> None:
        """Take an order about leases; a further device of a PC gets none."""
        if self.cell is not None:
            await self.cell.take(order)

    def _speaks(self, number: int) -> bool:
        """Whether this build can be in a ring of this number. A coordinator that compares none may
        ask all the same; the ring's other stages would be blamed for what fails then."""
        return not own_protocols().trouble(number)

    def _check_not_replaced(self, accepted: Accepted) -> None:
        """Check that no other agent with the same keys is accepted that started later: that agent
        stays. Raises ReplacedError when the coordinator has accepted it."""
        later = accepted.started_unix_s > self.session.started_unix_s
        if accepted.incarnation != self.session.incarnation and later:
            raise ReplacedError(
                "Another agent has joined with this agent's keys: do not copy a data directory; "
                "delete the copy there, and join it with an invite of its own."
            )

    async def _report_rates(self) -> None:
        """Publish the rates at which others can send here, whenever a neighbour has measured."""
        while True:
            await self.session.publish(SEEN, await self.probes.endpoint.next_rates())
