"""One agent from its start to its end: everything that runs on a volunteer's PC but the stages.

An agent has a seat for each device that it lends, and looks every few seconds at what its owner
allows; that holds for all seats. Devices come and go with the limits, and with drivers.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from molink.errors import ControlError, MolinkError
from molink_agent.daemon.device_node import Seat
from molink_agent.daemon.router_ports import RouterPorts
from molink_agent.daemon.seating import seated
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.limits.owner_policy import LOOK_S, Owner
from molink_agent.limits.values import DEVICES_MAX

__all__ = ["Agent", "LeftError"]

DEVICES_EVERY_S = 60.0
"""Between two looks at which devices there are, while the limits stay the same: drivers are
installed seldom, and asking one need not be free."""


class LeftError(MolinkError):
    """Raised when the owner's wish to leave is fulfilled."""


@dataclass(slots=True)
class Agent:
    """Made of its parts by `assemble`; `run` is its life."""

    pc: ThisPc
    owner: Owner
    ports: RouterPorts
    make_seat: Callable[[int], Seat]
    """By its number."""
    seats: list[Seat] = field(default_factory=list)
    started_unix_s: float = 0.0
    """On the coordinator's clock."""
    _group: asyncio.TaskGroup | None = None
    _looked_at: float | None = None
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._add_seat()

    @property
    def first(self) -> Seat:
        """The PC's own; there always is one."""
        return self.seats[0]

    @property
    def busy(self) -> bool:
        """Whether a ring counts on this PC."""
        return any(seat.host.busy for seat in self.seats)

    @property
    def pids(self) -> frozenset[int]:
        """Of our own processes that compute."""
        return frozenset().union(*(seat.host.pids for seat in self.seats))

    @property
    def held_bytes(self) -> dict[str, int]:
        """What our stages hold of each device, beside their KV."""
        return {seat.device: seat.host.weights_bytes for seat in self.seats}

    async def run(self) -> None:
        """Until cancelled, until it has left, or until the coordinator or another agent says so.

        Raises LeftError, JoinRefusedError, ReplacedError, UserError.
        """
        self.started_unix_s = self.pc.next_start(time.time() + self.pc.measured.clock_offset_s)
        try:
            async with asyncio.TaskGroup() as self._group:
                await self.look_now()
                self._start(self.first)
                self._group.create_task(self._look())
                self._group.create_task(self.ports.run(self._addresses_changed))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None

    async def look_now(self) -> None:
        """See what the owner allows, and have each seat obey it."""
        async with self._looking:
            limits_changed = await self.owner.look()
            await self._look_at_devices(limits_changed=limits_changed)
            for seat in self.seats:
                with suppress(ControlError):  # The seat itself finds out.
                    await seat.look(limits_changed=limits_changed)

    def cap_changed(self) -> None:
        """The stages share the owner's upload cap otherwise now."""
        for seat in self.seats:
            seat.host.limits_changed()

    async def _look(self) -> None:
        while True:
            if self.owner.leaving and not self.busy:
                raise LeftError("This PC has left the cluster.")
            await asyncio.sleep(LOOK_S)
            await self.look_now()

    async def _look_at_devices(self, *, limits_changed: bool) -> None:
        """Have a seat for each lent device. One that computes is not taken for gone only because
        its driver does not answer."""
        now = time.monotonic()
        is_due = self._looked_at is None or now - self._looked_at >= DEVICES_EVERY_S
        if self._group is None or not (is_due or limits_changed):
            return
        self._looked_at = now
        lent = [one.device for one in await asyncio.to_thread(self.pc.lent)][:DEVICES_MAX]
        busy = [seat.device for seat in self.seats if seat.host.busy and not limits_changed]
        there = [*lent, *(device for device in busy if device not in lent)]
        devices = seated([seat.device for seat in self.seats], there)
        for seat, device in zip(self.seats, devices, strict=False):
            await seat.sit(device)
        for device in devices[len(self.seats) :]:
            self._add_seat()
            await self.seats[-1].sit(device)
            self._start(self.seats[-1])

    def _add_seat(self) -> None:
        self.seats.append(self.make_seat(len(self.seats)))

    def _start(self, seat: Seat) -> None:
        assert self._group is not None, "seats live while the agent runs"
        seat.voice.started_unix_s = self.started_unix_s
        self._group.create_task(seat.run())

    async def _addresses_changed(self) -> None:
        for seat in self.seats:
            with suppress(ControlError):
                await seat.errand.addresses_changed()
