"""One lent device in the cluster: a node of its own, from its admission to its end.

The coordinator knows seats and nothing of PCs: each has keys, presence, a profile with one device,
an assignment and a stage process. What it is told is carried out by its parts: `stage_host` the
assignments, `ways` the paths, `probe_errand` the measurements, and `enough` knows whether what is
lent of its device is of any use. What its PC's owner allows, the `agent` sees to.
"""

import asyncio
import logging
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from molink.control.addresses import Credentials
from molink.control.client import ControlClient
from molink.control.messages.payloads import (
    Accepted,
    Assignment,
    LinkKeys,
    ModelSize,
    NodeState,
    NodeWish,
    ProbeOrder,
    Profile,
    RatesSeen,
    Services,
)
from molink.control.messages.topics import (
    ACCEPTED,
    ASSIGNMENT,
    HEALTH,
    LINK_KEYS,
    PROBE,
    PROFILE,
    SEEN,
    SERVICES,
    WISH,
    Topic,
)
from molink.errors import ControlError, JoinRefusedError
from molink.node.control_session import ControlSession
from molink.node.stage_manager import StageManager
from molink_agent.daemon.admission import Admission
from molink_agent.daemon.enough import Enough
from molink_agent.daemon.membership import Membership
from molink_agent.daemon.owner import Owner
from molink_agent.daemon.probe_errand import ProbeErrand
from molink_agent.daemon.replaced import check_not_replaced
from molink_agent.daemon.taking_back import TakingBack
from molink_agent.daemon.this_pc import ThisPc

__all__ = ["Seat"]

BEAT_S = 1.0
"""The coordinator calls a node lost after four seconds without a word."""

TOLD_TOPICS: tuple[Topic[Any], ...] = (ACCEPTED, SERVICES, LINK_KEYS, PROBE, ASSIGNMENT)

NOT_LENT = NodeWish(wish="pause", reason="No device is lent here now: see `molink agent doctor`.")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Seat:
    """Made of its parts by `assemble`; `run` is its life."""

    number: int
    """0: the PC itself, which has joined with the invite."""
    voice: ControlSession
    admission: Admission
    pc: ThisPc
    owner: Owner
    host: StageManager
    errand: ProbeErrand
    enough: Enough = field(init=False)
    refused: str = ""
    """Why the coordinator does not let it in; empty: it does."""
    _said_profile: Profile | None = None
    _said_wish: NodeWish | None = None
    _taking_back: TakingBack = field(default_factory=TakingBack)
    _telling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a profile is put together and said: an older one must not come last."""

    def __post_init__(self) -> None:
        kept = self.admission.kept
        self.enough = Enough(self._shortage, kept.answer.model if kept is not None else None)

    @property
    def node_id(self) -> str:
        """Its own."""
        return self.voice.node_id

    @property
    def device(self) -> str:
        """What it lends; empty: nothing now."""
        return self.errand.device

    @property
    def profile(self) -> Profile | None:
        """As the coordinator was told last."""
        return self._said_profile

    @property
    def wish(self) -> NodeWish:
        """What the coordinator is told that the owner wants; what he has said himself comes before
        what is of no use."""
        wish = self.owner.wish
        if wish.wish != "serve":
            return wish
        if self.enough.sentence:
            return NodeWish(wish="pause", reason=self.enough.sentence[:500])
        return wish if self.device else NOT_LENT

    @property
    def state(self) -> NodeState:
        """As the owner sees it."""
        if self.wish.wish != "serve":
            return NodeState.DRAINING if self.host.busy else NodeState.PAUSED
        if self.host.state == "standby":
            is_measured = self.errand.measured.steps is not None
            return NodeState.STANDBY if is_measured else NodeState.JOINING
        return NodeState(self.host.state)

    async def run(self) -> None:
        """Until cancelled, or until another agent has its keys.

        Raises ReplacedError, UserError, and for the first seat JoinRefusedError when the cluster
        does not want it; a further seat just ends then.
        """
        try:
            membership = await self.admission.enter()
            while True:
                membership = await self._member_until_refused(membership)
        except JoinRefusedError as error:
            if self.number == 0:
                raise
            log.warning("%s is not let in: %s", self.voice.name, error)
            self.refused = str(error)
        finally:
            await self._end()
            await self.errand.neighbours.stop()

    async def sit(self, device: str) -> None:
        """Lend this device from the next ring on."""
        if device != self.device:
            self._said_profile = None
            self.enough = Enough(self._shortage, self.enough.model)
        await self.errand.sit(device)

    async def look(self, *, limits_changed: bool) -> None:
        """Obey what the owner allows now, and say it. Raises ControlError when the broker refuses
        us."""
        if limits_changed:
            self.host.limits_changed()
        if limits_changed or self._said_profile is None:
            await self.say_profile()
        holds = self.host.busy or self.host.state != "standby"
        await self.enough.look(time.monotonic(), changed=limits_changed, busy=holds)
        if limits_changed:
            self.errand.time_again()
        await self._say_wish()
        wanted, alone = self.wish.wish != "serve", not self.voice.connected
        is_due = self._taking_back.is_due(time.monotonic(), wanted=wanted, alone=alone)
        if is_due and self.host.busy:
            log.warning("the stage is ended: the owner wants this PC")
            await self.host.forsake()

    def _shortage(self, model: ModelSize, margin: float) -> str:
        return self.pc.shortage(model, margin, self.device)

    # -- membership ------------------------------------------------------------------------------

    async def _member_until_refused(self, membership: Membership) -> Membership:
        """Be a member; what the coordinator answers when its broker does not let us in."""
        try:
            await self._be_a_member(membership)
        except ControlError as error:
            log.warning("%s Asking the coordinator.", error)
        await self._end()
        return await self.admission.again()

    async def _end(self) -> None:
        """Hold nothing, and be as one that has just started."""
        await self.errand.stop()
        await self.host.stop()
        self.host.assignment = None
        self.voice.incarnation = secrets.token_hex(8)

    async def _be_a_member(self, membership: Membership) -> None:
        identity = Credentials(membership.answer.username, membership.answer.password)
        self.enough.model = self.enough.model or membership.answer.model
        async with self.voice.speaking(membership.broker, identity, TOLD_TOPICS) as client:
            self._said_wish = self._said_profile = None
            await self.look(limits_changed=False)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._hear(client))
                    group.create_task(self._beat())
                    group.create_task(self.errand.neighbours.tell_seen(self._say_seen))
            except ExceptionGroup as failures:
                raise failures.exceptions[0] from None

    # -- what it is told -------------------------------------------------------------------------

    async def _hear(self, client: ControlClient) -> None:
        async for received in client.messages():
            await self._obey(received.message)

    async def _obey(self, message: BaseModel) -> None:
        match message:
            case Accepted():
                check_not_replaced(self.voice, message)
            case Services():
                self.enough.model = message.model
                await self.errand.use(message)
            case LinkKeys():
                self.host.allow(message)
            case ProbeOrder():
                await self.errand.take(message)
            case Assignment():
                await self.host.take(message)

    # -- what it says ----------------------------------------------------------------------------

    async def _beat(self) -> None:
        while True:
            await self.voice.say(HEALTH, self.voice.health(self.host, self.state))
            await asyncio.sleep(BEAT_S)

    async def say_profile(self) -> None:
        """What it lends, if that has changed."""
        async with self._telling:
            profile = await asyncio.to_thread(self.pc.profile, self.device, self.errand.measured)
            if self.voice.client is None or profile == self._said_profile:
                return
            self._said_profile = profile
            if not profile.devices:
                await self._say_wish()  # First: else a ring counts on a seat with no device.
            await self.voice.say(PROFILE, profile)
            if self.number == 0:
                await self._remember(profile)

    async def _remember(self, profile: Profile) -> None:
        pc, stun_port = self.admission.pc(), self.errand.stun_port
        await asyncio.to_thread(self.pc.remember, pc, profile, stun_port, self.enough.model)

    async def _say_wish(self) -> None:
        wish = self.wish
        if self.voice.client is not None and wish != self._said_wish:
            self._said_wish = wish
            await self.voice.say(WISH, wish)

    async def _say_seen(self, seen: RatesSeen) -> None:
        await self.voice.say(SEEN, seen)
