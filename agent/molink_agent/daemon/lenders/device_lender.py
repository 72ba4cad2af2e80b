"""Lender of one device of this PC: what its owner lets it lend, and the leases there.

The process that lends runs while somebody may borrow and the owner lends something. The owner
comes first: what is lent above that the coordinator is asked for, which has stages bring it home.
What has not come home in time is ended, and is computed anew. A lease that there is no room for is
refused.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from molink.control.messages.cell import (
    CardFacts,
    LeaseHeld,
    LeaseOrder,
    LenderFacts,
    LenderOrder,
)
from molink.tasks import unless
from molink_agent.daemon.lenders.lending_process import SERVER, LendingProcess
from molink_agent.limits.card_room import card_bytes_per_s, card_room
from molink_agent.limits.lend_room import LendRoom, due_bytes, leases_to_end
from molink_agent.limits.lent import lending_card
from molink_agent.limits.owner_policy import OwnerPolicy
from molink_agent.probe.gpus import GpuReport

START_AGAIN_S = 10.0
"""Seconds between two starts of the process."""

RECALL_S = 30.0
"""Seconds for stages to bring home what the owner wants back: some heartbeats, a word round the
ring, and a gigabyte takes 14 of them over Gigabit Ethernet, by arithmetic."""

RECALL_URGENT_S = 6.0
"""The same while he plays, or programs run short of memory: heartbeats and a word, and what is
small comes home."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class DeviceLender:
    """Part of an agent that lends memory of one device of its PC."""

    owner: OwnerPolicy
    bind: Callable[[], str]
    """Address to listen at."""
    started: int
    """Number that rises with each start of the agent."""
    command: Sequence[str] = SERVER
    start_again_s: float = START_AGAIN_S
    room: LendRoom = field(default_factory=LendRoom)
    """What is lent now."""
    clock: Callable[[], float] = time.monotonic
    _above_since: float | None = None
    """Since when more is lent than the owner lets; None: it is not."""
    _order: LenderOrder = field(default_factory=LenderOrder)
    _process: LendingProcess | None = None
    _allowed: dict[int, int] = field(default_factory=dict)
    """Bytes that leases may have."""
    _ended: set[int] = field(default_factory=set)
    """Leases of the present order that were refused, or have ended."""
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _unwanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether what lends is to run, and whether it is not."""

    @property
    def held_bytes(self) -> int:
        """Bytes of KV that lie here."""
        return sum(self._process.held.values()) if self._process is not None else 0

    @property
    def lends(self) -> bool:
        """Whether stages have memory here."""
        return any(self._allowed.values())

    @property
    def runs(self) -> bool:
        """Whether its process does."""
        return self._process is not None

    @property
    def pids(self) -> frozenset[int]:
        """Ids of the processes that attend."""
        return self._process.forks if self._process is not None else frozenset()

    def facts(self) -> LenderFacts:
        """What the coordinator is told of this device."""
        process, allowed = self._process, sum(self._allowed.values())
        leases = self._allowed.items()
        held = process.held if process is not None else {}
        return LenderFacts(
            started=self.started,
            memory_bytes=max(self.room.size_bytes, min(allowed, due_bytes(held, self.room))),
            why_less=self.room.why_less[:500],
            port=process.port if process is not None else 0,
            incarnation=process.incarnation if process is not None else 0,
            leases=tuple(
                LeaseHeld(lease=one, size_bytes=size, held_bytes=held.get(one, 0))
                for one, size in leases
            ),
            ended=tuple(self._ended),
        )

    def take(self, order: LenderOrder) -> None:
        """Take an order, which replaces the one before."""
        self._order = order
        self._ended &= {one.lease for one in order.allow}
        self._end(set(order.end) & set(self._allowed))
        self._allow()
        self._note_wanted()

    def lend(self, room: LendRoom) -> None:
        """Lend so much from now on: what is above it ends, once there was time to bring it home."""
        self.room = room
        self._end(self._overdue(self.clock()))
        self._allow()
        self._note_wanted()

    async def run(self) -> None:
        """Have the process run while it is wanted, and note when it has ended; all leases end when
        this is cancelled."""
        while True:
            await self._wanted.wait()
            await self._start()
            await asyncio.sleep(self.start_again_s)

    def _overdue(self, now: float) -> set[int]:
        """Leases that are above what is lent now, and have been for too long."""
        held = self._process.held if self._process is not None else {}
        above = leases_to_end(self._allowed, held, self.room)
        if not above:
            self._above_since = None
            return above
        if self._above_since is None:
            self._above_since = now
            log.info("%d leases to other PCs are recalled: %s", len(above), self.room.why_less)
        is_urgent = self.owner.now.is_urgent or self.room.idle_bytes < 0
        if now - self._above_since < (RECALL_URGENT_S if is_urgent else RECALL_S):
            return set()
        log.warning("%d leases to other PCs end: nobody gave them back", len(above))
        return above

    def _end(self, leases: set[int]) -> None:
        for lease in leases:
            del self._allowed[lease]
            if self._process is not None:
                self._process.tell({"revoke": lease})
                self._process.held.pop(lease, None)
        self._ended |= leases & {one.lease for one in self._order.allow}

    def _allow(self) -> None:
        """Allow what is ordered, as far as there is room; nothing is answered before the process is
        there."""
        for one in self._order.allow:
            if one.size_bytes < self._allowed.get(one.lease, 0):
                self._send_lease(one)  # A part of it was given back.
            if one.lease in self._allowed or one.lease in self._ended:
                continue
            left = self.room.size_bytes - sum(self._allowed.values())
            if one.size_bytes > left or not self.room.kept_bytes:
                self._ended.add(one.lease)
            elif self._process is not None:
                self._send_lease(one)

    def _send_lease(self, one: LeaseOrder) -> None:
        self._allowed[one.lease] = one.size_bytes
        if self._process is not None:
            lease = {"allow": one.lease, "key": one.key, "bytes": one.size_bytes}
            self._process.tell(lease)

    def _note_wanted(self) -> None:
        is_wanted = self._order.serves and (self.room.kept_bytes > 0 or self.lends)
        (self._wanted.set if is_wanted else self._wanted.clear)()
        (self._unwanted.clear if is_wanted else self._unwanted.set)()

    async def _start(self) -> None:
        try:
            threads = max(1, self.room.cores)
            self._process = await LendingProcess.start(self.command, self.bind(), threads)
        except (OSError, ValueError, TimeoutError) as error:
            log.warning("nothing is lent to other PCs: what lends does not start (%s)", error)
            return
        self._allow()
        await self._followed(self._process)

    async def _followed(self, process: LendingProcess) -> None:
        """Until it has ended, or is not wanted any more."""
        try:
            await unless(self._unwanted, process.follow())
        finally:
            await asyncio.shield(process.end())
            self._gone()

    def _gone(self) -> None:
        """Count what was lent as lost; what lends next is another."""
        if self._process is not None:
            self._process, self.started = None, self.started + 1
        self._ended |= self._allowed.keys() & {one.lease for one in self._order.allow}
        self._allowed.clear()


@dataclass(slots=True)
class CardLender(DeviceLender):
    """Lender of a card that holds no stage: the same process, with its memory there."""

    server: Sequence[str] = SERVER
    device: str = ""
    """Card that lends, "cuda:N"; empty: none ever has."""
    bytes_per_s: float = 0.0
    """KV that it attends to."""

    def refresh(self, gpus: GpuReport, withheld: str, serving: frozenset[str]) -> None:
        """Lend what the owner allows now of the card that is to lend. `withheld`: why the PC is not
        to be used; `serving`: devices on which stages are."""
        limits = self.owner.limits.limits
        if (card := lending_card(limits, gpus)) is not None:
            name = f"cuda:{card.index}"
            if self.device != name and not self.runs:
                self.device, self.bytes_per_s = name, card_bytes_per_s(card)
                self.command = (*self.server, "--device", name)
            elif self.device != name:
                withheld = withheld or f"{name} lends once {self.device} has ended to."
            if name in serving:
                withheld = withheld or f"A stage is on {name} until its ring ends."
        self.lend(card_room(limits, gpus, self.held_bytes, withheld))

    def card_facts(self) -> CardFacts | None:
        """The same of the card; None: none lends, or has lent."""
        if not self.device or not (self.owner.limits.limits.lend_gpu_bytes or self.runs):
            return None
        facts = self.facts()
        fields = {name: getattr(facts, name) for name in LenderFacts.model_fields}
        return CardFacts(**fields, device=self.device, bytes_per_s=self.bytes_per_s)
