"""One agent from its start to its end: everything that runs on a volunteer's PC but the stage.

Three loops: what the coordinator tells is carried out, what the owner allows is looked at, and
every second the coordinator hears that this PC lives. Each thing that is told or said has its own
place: `StageHost` the assignments, `NodeVoice` presence and health, `ways` the paths, `owner` the
limits, `measuring` the probes.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from pydantic import BaseModel

from molink.control.addresses import Credentials
from molink.control.client import ControlClient
from molink.control.messages import (
    Accepted,
    Assignment,
    LinkKeys,
    NodeState,
    NodeWish,
    ProbeOrder,
    Profile,
    RatesSeen,
    Services,
    StepCost,
)
from molink.control.topics import (
    ACCEPTED,
    ASSIGNMENT,
    HEALTH,
    LINK_KEYS,
    PATHS,
    PROBE,
    PROFILE,
    SEEN,
    SERVICES,
    WISH,
    Topic,
)
from molink.errors import MolinkError, UserError
from molink.runtime.node.stage_host import StageHost
from molink.runtime.node.voice import NodeVoice
from molink_agent.daemon.enough import Enough
from molink_agent.daemon.membership import Membership
from molink_agent.daemon.neighbours import Neighbours
from molink_agent.daemon.owner import LOOK_S, Owner
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.probe.nat import ask_stun

__all__ = ["Agent", "LeftError", "ReplacedError"]

TAKE_BACK_S = 180.0
"""For a ring to find a replacement (a minute) and to let answers end (half of one), twice over."""

BEAT_S = 1.0
"""The coordinator calls a node lost after four seconds without a word."""

TOLD_TOPICS: tuple[Topic[Any], ...] = (ACCEPTED, SERVICES, LINK_KEYS, PROBE, ASSIGNMENT)

log = logging.getLogger(__name__)


class ReplacedError(UserError):
    """Raised when another agent with the same keys has started later."""


@dataclass(slots=True)
class Agent:
    """Made of its parts by `assemble`; `run` is its life."""

    membership: Membership
    voice: NodeVoice
    pc: ThisPc
    owner: Owner
    host: StageHost
    neighbours: Neighbours
    enough: Enough = field(init=False)
    _said_profile: Profile | None = None
    _said_wish: NodeWish | None = None
    _stun_port: int = 0
    _wanted_back_at: float | None = None
    _probed: ProbeOrder | None = None
    """Carried out: a broker repeats it at every connection."""
    _probe: "asyncio.Task[None] | None" = None
    _timing: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self.enough = Enough(self.pc.shortage, self.membership.answer.model)

    @property
    def node_id(self) -> str:
        """Its own."""
        return self.voice.node_id

    @property
    def connected(self) -> bool:
        """Whether the coordinator can hear it now."""
        return self.voice.connected

    @property
    def profile(self) -> Profile | None:
        """As the coordinator was told last."""
        return self._said_profile

    @property
    def state(self) -> NodeState:
        """As the owner sees it."""
        wish = self.owner.wish.wish
        if wish != "serve":
            return NodeState.DRAINING if self.host.busy else NodeState.PAUSED
        if self.host.state == "standby":
            return NodeState.STANDBY if self.pc.measured.steps is not None else NodeState.JOINING
        return NodeState(self.host.state)

    async def run(self) -> None:
        """Until cancelled, until it has left, or until the broker or another agent says so.

        Raises ControlError when the broker refuses it, ReplacedError.
        """
        now_unix_s = time.time() + self.membership.clock_offset_s
        self.voice.started_unix_s = self.pc.next_start(now_unix_s)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._look())
                group.create_task(self._be_a_member())
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        finally:
            await self._end()

    async def _be_a_member(self) -> None:
        answer = self.membership.answer
        identity = Credentials(answer.username, answer.password)
        async with self.voice.speaking(self.membership.broker, identity, TOLD_TOPICS) as client:
            await self._live(client)

    async def _live(self, client: ControlClient) -> None:
        self._said_wish = self._said_profile = None
        await self.look_now()
        try:
            async with asyncio.TaskGroup() as group:
                for loop in (self._hear(client), self._beat()):
                    group.create_task(loop)
                group.create_task(self.neighbours.run(self._addresses_changed))
                group.create_task(self.neighbours.tell_seen(self._say_seen))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def _end(self) -> None:
        await _cancel(self._probe)
        await _cancel(self._timing)
        await self.host.stop()
        await self.neighbours.stop()

    # -- what it is told -------------------------------------------------------------------------

    async def _hear(self, client: ControlClient) -> None:
        async for received in client.messages():
            await self._obey(received.message)

    async def _obey(self, message: BaseModel) -> None:
        match message:
            case Accepted():
                self._check_accepted(message)
            case Services():
                self.enough.model = message.model
                await self.neighbours.use(message)
                await self._addresses_changed()
                self._stun_port = message.stun_port
            case LinkKeys():
                self.host.allow(message)
            case ProbeOrder():
                await self._start_probe(message)
            case Assignment():
                await self.host.take(message)

    async def _ask_nat(self) -> None:
        """Which kind of router is between this PC and the coordinator."""
        if self._stun_port:
            host = urlsplit(self.membership.url).hostname or ""
            answer = await ask_stun(host, self._stun_port)
            self.pc.measured_now(nat=str(answer.kind))

    def _check_accepted(self, accepted: Accepted) -> None:
        later = accepted.started_unix_s > self.voice.started_unix_s
        if accepted.incarnation != self.voice.incarnation and later:
            raise ReplacedError(
                "Another agent has joined with this agent's keys: do not copy a data directory; "
                "delete the copy there, and join it with an invite of its own."
            )

    async def _start_probe(self, order: ProbeOrder) -> None:
        """The ways as the latest order says; a layer of the same model is timed only once."""
        before, self._probed = self._probed, order
        if order == before:
            return
        if before is None or _times_another(order, before) or _is_over(self._timing):
            await _cancel(self._timing)
            self._timing = asyncio.create_task(_tried(self._time_layer, order))
        await _cancel(self._probe)
        if order.peers or order.coordinator_token:
            self._probe = asyncio.create_task(_tried(self._measure_ways, order))

    def _time_again(self) -> None:
        """With other limits it may succeed, where there was no device before."""
        if self._probed is not None and _is_over(self._timing):
            self._timing = asyncio.create_task(_tried(self._time_layer, self._probed))

    async def _time_layer(self, order: ProbeOrder) -> None:
        self.pc.measured_now(steps=await self._steps(order))
        await self._say_profile()

    async def _measure_ways(self, order: ProbeOrder) -> None:
        """Beside the timing of a layer: what takes longest there is loading torch, and sending
        takes no processor to speak of."""
        report, coordinator = await self.neighbours.measure(order)
        await self.voice.say(PATHS, report)
        self.pc.measured_ways(report, coordinator)
        await self._ask_nat()
        await self._say_profile()

    async def _steps(self, order: ProbeOrder) -> StepCost:
        return await self.pc.time_steps(order)

    # -- what it says ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await self.voice.say(HEALTH, self.voice.health(self.host, self.state))
            await asyncio.sleep(BEAT_S)

    async def _look(self) -> None:
        """What the owner allows; ends the agent once it has left."""
        while True:
            await self.look_now()
            await self._take_back()
            if self.owner.leaving and not self.host.busy:
                raise LeftError("This PC has left the cluster.")
            await asyncio.sleep(LOOK_S)

    async def _take_back(self) -> None:
        """An owner who wants the PC gets it: when the ring lets go, or when it has had its time, or
        at once when there is no coordinator to ask."""
        now = time.monotonic()
        if self.owner.wish.wish == "serve":
            self._wanted_back_at = None
            return
        self._wanted_back_at = self._wanted_back_at or now
        if self.host.busy and (not self.connected or now - self._wanted_back_at > TAKE_BACK_S):
            log.warning("the stage is ended: the owner wants this PC")
            await self.host.forsake()

    async def look_now(self) -> None:
        """See what the owner allows, and say it."""
        changed = await self.owner.look()
        if changed:
            self.host.limits_changed()
        if changed or self._said_profile is None:
            await self._say_profile()
        holds = self.host.busy or self.host.state != "standby"
        await self.enough.look(time.monotonic(), changed=changed, busy=holds)
        self.owner.shortage = self.enough.sentence
        if changed and self.pc.measured.steps is None:
            self._time_again()
        await self._say_wish()

    async def _addresses_changed(self) -> None:
        self.pc.measured_now(addresses=self.neighbours.addresses)
        await self._say_profile()

    async def _say_profile(self) -> None:
        profile = await asyncio.to_thread(self.pc.profile, self.host.weights_bytes)
        if self.voice.client is not None and profile != self._said_profile:
            self._said_profile = profile
            await self.voice.say(PROFILE, profile)
            await asyncio.to_thread(
                self.pc.remember, self.membership, profile, self._stun_port, self.enough.model
            )

    async def _say_wish(self) -> None:
        wish = self.owner.wish
        if self.voice.client is not None and wish != self._said_wish:
            self._said_wish = wish
            await self.voice.say(WISH, wish)

    async def _say_seen(self, seen: RatesSeen) -> None:
        await self.voice.say(SEEN, seen)


class LeftError(MolinkError):
    """Raised when the owner's wish to leave is fulfilled."""


def _times_another(order: ProbeOrder, before: ProbeOrder) -> bool:
    return (order.model, order.config) != (before.model, before.config)


def _is_over(task: "asyncio.Task[None] | None") -> bool:
    return task is None or task.done()


async def _tried(probe: Callable[[ProbeOrder], Awaitable[None]], order: ProbeOrder) -> None:
    """A probe that fails costs this PC its place in a plan, not the agent its life."""
    try:
        await probe(order)
    except MolinkError as error:
        log.warning("the probe failed: %s", error)
    except Exception:
        log.exception("the probe failed")


async def _cancel(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
