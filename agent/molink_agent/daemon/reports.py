"""Reports of one device node to the coordinator on what it lends and wants, upon each change."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from molink.control.messages.base import ModelSize
from molink.control.messages.payloads import NodeWish, PathReport, Profile
from molink.control.messages.topics import PATHS, PROFILE, WISH
from molink.control.versions import Protocols, own_protocols
from molink.node.control_session import ControlSession
from molink_agent.daemon.membership import MemberAdmission
from molink_agent.daemon.this_pc import DeviceStage, Measured, ThisPc
from molink_agent.data_files import Known
from molink_agent.limits.assignment_check import Loan
from molink_agent.limits.owner_policy import OwnerPolicy

CHECK_EVERY_S = 30.0
"""Memory comes and goes with the owner's programs; checking reads all of /proc/cpuinfo."""

AGAIN_MARGIN = 1.1
"""Layers that must fit before a PC that lent too little lends again: its state shall not flap with
the bytes of a browser's page."""

NOT_LENT = NodeWish(wish="pause", reason="No device is lent here now: see `molink agent doctor`.")


@dataclass(slots=True)
class CapacityCheck:
    """Checks whether what is lent of a device holds one layer of the cluster's model.

    If not, the node pauses and its owner is told, and so is the coordinator, which else would wait
    for it.
    """

    shortage: Callable[[ModelSize, float], str]
    """`ThisPc.shortage` of the device."""
    model: ModelSize | None = None
    """None: not known yet; then anything is enough."""
    sentence: str = ""
    """Sentence about what is too little and what to change; empty: it is enough."""
    _checked_at: float = 0.0
    _checked_for: ModelSize | None = None

    def reset(self) -> None:
        """Forget what was found: the node lends another device."""
        self.sentence, self._checked_at, self._checked_for = "", 0.0, None

    async def update(self, now: float, *, changed: bool, busy: bool) -> None:
        """Check if it is time to, or if limits have `changed`. While a stage is here (`busy`), what
        it holds was enough, and its memory is not free at once when it ends."""
        if busy or self.model is None:
            self.sentence, self._checked_at, self._checked_for = "", now, self.model
            return
        is_new = changed or self.model != self._checked_for
        if not is_new and now - self._checked_at < CHECK_EVERY_S:
            return
        self._checked_at, self._checked_for = now, self.model
        margin = AGAIN_MARGIN if self.sentence and not changed else 1.0
        self.sentence = await asyncio.to_thread(self.shortage, self.model, margin)


@dataclass(slots=True)
class DeviceReports:
    """Publishes profile, wish and measured paths of one device node."""

    session: ControlSession
    admission: MemberAdmission
    pc: ThisPc
    owner: OwnerPolicy
    stage: DeviceStage
    capacity: CapacityCheck = field(init=False)
    measured: Measured = field(default_factory=Measured)
    """Addresses of the node and step times of its device."""
    stun_port: int = 0
    """Port at which the coordinator answers STUN; 0: it answers none."""
    speaks: Protocols | None = None
    """Protocols of the coordinator; None: not heard yet."""
    profile: Profile | None = None
    """Profile as published last."""
    _wish: NodeWish | None = None
    """Wish as published last."""
    _publishing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Lock around making and publishing a profile: an older one must not come last."""

    def __post_init__(self) -> None:
        kept = self.admission.kept
        model = kept.answer.model if kept is not None else None
        self.capacity = CapacityCheck(self._shortage)
        self.serves(model)

    def _shortage(self, model: ModelSize, margin: float) -> str:
        return self.pc.shortage(model, margin, self.stage.device)

    @property
    def wish(self) -> NodeWish:
        """Wish that the coordinator is told: the owner's own pause or leave first, then an outdated
        build, then a device of no use."""
        wish = self.owner.wish
        if wish.wish != "serve":
            return wish
        if self.outdated:
            return NodeWish(wish="pause", reason=self.outdated)
        if self.capacity.sentence:
            return NodeWish(wish="pause", reason=self.capacity.sentence[:500])
        return wish if self.stage.device else NOT_LENT

    @property
    def withheld(self) -> str:
        """Why the device is not to be used now; empty: it is."""
        return "" if self.wish.wish == "serve" else self.wish.reason

    async def loan(self) -> Loan:
        """Loan of the device, as it is now."""
        return await asyncio.to_thread(self.pc.loan, self.stage, self.withheld)

    def serves(self, model: ModelSize | None) -> None:
        """Take note of what the cluster serves."""
        self.capacity.model = self.stage.served = model

    @property
    def outdated(self) -> str:
        """Why this build can be in no ring of the coordinator's, and who is to update what; empty:
        it can."""
        return self.speaks.trouble(own_protocols().newest) if self.speaks is not None else ""

    async def coordinator_speaks(self, speaks: Protocols) -> None:
        """Take note of the numbers of the protocol that the coordinator speaks."""
        before, self.speaks = self.speaks, speaks
        if speaks != before and self.profile is not None and self.admission.first is None:
            await asyncio.to_thread(self._remember, self.profile)
        await self.publish_wish()

    def set_device(self, device: str) -> None:
        """Lend another device, whose step times are unknown yet."""
        self.stage.device = device
        self.measured = replace(self.measured, steps=None, formats=())
        self.profile = None
        self.capacity.reset()

    def publish_again(self) -> None:
        """Take nothing for published: a session has begun."""
        self.profile = self._wish = None

    async def device_measured(self, **values: Any) -> None:
        """Take new measurements, named as in `Measured`, and publish them."""
        self.measured = replace(self.measured, **values)
        await self.publish_profile()

    async def publish_profile(self) -> None:
        """Publish what the node lends, if that has changed."""
        async with self._publishing:
            times_full = self.stage.manager.times_full
            profile = await asyncio.to_thread(self.pc.profile, self.stage.device, self.measured)
            if self.session.client is None or profile == self.profile:
                return
            if self.stage.device and not profile.devices:
                return  # Its driver does not answer now: what was told last holds.
            self.profile = profile
            self.stage.times_full = times_full
            self.stage.offered_bytes = profile.devices[0].free_bytes if profile.devices else 0
            if not profile.devices:
                await self.publish_wish()  # First: else a ring counts on a node with no device.
            await self.session.publish(PROFILE, profile)
            if self.admission.first is None:
                await asyncio.to_thread(self._remember, profile)

    def _remember(self, profile: Profile) -> None:
        """Keep what the doctor may know while the agent does not run."""
        membership = self.admission.membership
        known = Known(
            broker_host=membership.broker.host,
            broker_port=membership.broker.port,
            coordinator_url=membership.url,
            stun_port=self.stun_port,
            model=self.capacity.model,
            speaks=self.speaks,
            profile=profile,
        )
        with suppress(OSError):  # A full disk is the doctor's to find, not a reason to stop.
            known.save(self.pc.data_dir)

    async def publish_wish(self) -> None:
        """Publish what the owner wants of this node, if that has changed."""
        wish = self.wish
        if self.session.client is not None and wish != self._wish:
            self._wish = wish
            await self.session.publish(WISH, wish)

    async def publish_paths(self, report: PathReport) -> None:
        """Publish the measured paths to neighbours."""
        await self.session.publish(PATHS, report)
