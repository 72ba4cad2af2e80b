"""This PC in a cell of its LAN: what lends beside the agent, and what the coordinator is told.

The process that lends is the agent's child, as stages are: it speaks JSON a line over its standard
streams, and ends with its input. It runs while the operator has confirmed the cell and the owner
lends something. The owner comes first: what is lent above that the coordinator is asked for, which
has stages bring it home. What has not come home in time is ended, and is computed anew.

What the coordinator orders is checked here: a lease that there is no room for is refused.
"""

import asyncio
import json
import logging
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from molink.control.messages.cell import (
    CellFacts,
    CellOrder,
    EchoesTold,
    EchoOrder,
    LeaseHeld,
    LeaseOrder,
)
from molink.errors import MolinkError
from molink.json_object import JsonObject
from molink.lender.lan.echoes import measure_echoes
from molink.tasks import task_group, unless
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.limits.lend_room import (
    LendRoom,
    due_bytes,
    leases_to_end,
    lend_room,
    own_room_bytes,
)
from molink_agent.limits.lent import lent_cache
from molink_agent.limits.owner_policy import OwnerPolicy
from molink_agent.probe.machine import read_machine

SERVER = (sys.executable, "-m", "molink.lender.lan.lan_server")

START_WITHIN_S = 60.0
"""Seconds until the process tells its port: it imports torch, on a slow disk for long."""

START_AGAIN_S = 10.0
"""Seconds between two starts of it."""

END_WITHIN_S = 3.0
"""Seconds for it to end once its input is closed; then it is killed."""

RECALL_S = 30.0
"""Seconds for stages to bring home what the owner wants back: some heartbeats, a word round the
ring, and a gigabyte takes 14 of them over Gigabit Ethernet, by arithmetic."""

RECALL_HURRIED_S = 6.0
"""The same while he plays, or programs run short of memory: heartbeats and a word, and what is
small comes home."""

LINE_BYTES_MAX = 4096

ECHOES = 20
"""Echoes of one measurement."""

log = logging.getLogger(__name__)

Measure = Callable[[EchoOrder], Sequence[float]]
"""Seconds of each echo. Raises MolinkError or OSError when none comes."""


def measured_echoes(order: EchoOrder) -> Sequence[float]:
    """Echoes over the very link that a stage would have."""
    return measure_echoes(order.host, order.port, order.lease, order.key, ECHOES)


@dataclass(slots=True)
class LendingProcess:
    """Process that lends main memory of this PC to stages of its LAN."""

    process: Process
    port: int
    incarnation: int
    """Number that it has drawn as it started."""
    held: dict[int, int] = field(default_factory=dict)
    """Bytes that lie here, by lease."""

    @classmethod
    async def start(cls, command: Sequence[str], bind: str, threads: int) -> "LendingProcess":
        """One that listens. Raises OSError, ValueError or TimeoutError when it does not."""
        options = ("--bind", bind, "--port", "0", "--threads", str(threads))
        process = await asyncio.create_subprocess_exec(
            *command, *options, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, limit=LINE_BYTES_MAX
        )
        assert process.stdout is not None, "its output is a pipe"
        try:
            async with asyncio.timeout(START_WITHIN_S):
                told = json.loads(await process.stdout.readline())
            return cls(process, int(told["port"]), int(told["incarnation"]))
        except BaseException as error:
            process.kill()
            await process.wait()
            if isinstance(error, KeyError | TypeError):
                raise ValueError("it does not say where it listens") from None
            raise

    async def follow(self) -> None:
        """Take note of what it tells until it ends, or says what is no line."""
        assert self.process.stdout is not None, "its output is a pipe"
        with suppress(ValueError):  # A line that is too long: it is none of ours.
            while line := await self.process.stdout.readline():
                with suppress(ValueError, KeyError, TypeError):
                    told = json.loads(line)
                    self.held[int(told["lease"])] = max(0, int(told["bytes"]))

    def tell(self, order: JsonObject) -> None:
        """Order it to allow a lease or to revoke one."""
        assert self.process.stdin is not None, "its input is a pipe"
        with suppress(OSError, RuntimeError):  # It ends, which `follow` sees.
            self.process.stdin.write(json.dumps(order).encode() + b"\n")

    async def end(self) -> None:
        """Have it end, with all leases."""
        assert self.process.stdin is not None, "its input is a pipe"
        self.process.stdin.close()
        try:
            async with asyncio.timeout(END_WITHIN_S):
                await self.process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()


@dataclass(slots=True)
class CellMember:
    """Part of an agent that lends to its LAN, and measures who lends there."""

    pc: ThisPc
    owner: OwnerPolicy
    bind: Callable[[], str]
    """Address to listen at."""
    started: int
    """Number that rises with each start of the agent."""
    measure: Measure = measured_echoes
    command: Sequence[str] = SERVER
    start_again_s: float = START_AGAIN_S
    room: LendRoom = field(default_factory=LendRoom)
    """What is lent now."""
    clock: Callable[[], float] = time.monotonic
    _own_room_bytes: int = 0
    _above_since: float | None = None
    """Since when more is lent than the owner lets; None: it is not."""
    _order: CellOrder = field(default_factory=CellOrder)
    _process: LendingProcess | None = None
    _allowed: dict[int, int] = field(default_factory=dict)
    """Bytes that leases may have."""
    _ended: set[int] = field(default_factory=set)
    """Leases of the present order that were refused, or have ended."""
    _echoes: dict[str, EchoesTold] = field(default_factory=dict)
    _ordered: asyncio.Event = field(default_factory=asyncio.Event)
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _unwanted: asyncio.Event = field(default_factory=asyncio.Event)
    """Whether what lends is to run, and whether it is not."""

    @property
    def held_bytes(self) -> int:
        """Bytes of others' KV that lie here."""
        return sum(self._process.held.values()) if self._process is not None else 0

    @property
    def lends(self) -> bool:
        """Whether stages elsewhere have memory here."""
        return any(self._allowed.values())

    def facts(self) -> CellFacts | None:
        """What the coordinator is told; None: this PC neither lends nor is in a cell."""
        if not (self._order.serves or self._order.echoes or self.owner.limits.limits.lends_ram):
            return None
        process, allowed = self._process, sum(self._allowed.values())
        leases = self._allowed.items()
        held = process.held if process is not None else {}
        return CellFacts(
            started=self.started,
            memory_bytes=max(self.room.size_bytes, min(allowed, due_bytes(held, self.room))),
            cores=self.room.cores,
            why_less=self.room.why_less[:500],
            own_room_bytes=self._own_room_bytes,
            port=process.port if process is not None else 0,
            incarnation=process.incarnation if process is not None else 0,
            leases=tuple(
                LeaseHeld(lease=one, size_bytes=size, held_bytes=held.get(one, 0))
                for one, size in leases
            ),
            ended=tuple(self._ended),
            echoes=tuple(self._echoes.values()),
        )

    async def take(self, order: CellOrder) -> None:
        """Take an order, which replaces the one before."""
        self._order = order
        self._ended &= {one.lease for one in order.allow}
        self._echoes = {
            one.lender: self._echoes[one.lender]
            for one in order.echoes
            if one.lender in self._echoes
        }
        self._end(set(order.end) & set(self._allowed))
        self._allow()
        self._note_wanted()
        self._ordered.set()

    async def refresh(self) -> None:
        """Do what the owner allows now: what is above it ends, once there was time to bring it
        home."""
        machine = await asyncio.to_thread(read_machine, self.pc.data_dir)
        limits, now = self.owner.limits.limits, self.owner.now
        withheld = "" if now.allowed and not self.owner.leaving else now.reason
        self.room = lend_room(limits, machine, self.held_bytes, withheld)
        cache = lent_cache(limits, self.pc.data_dir, max(1, len(self.pc.stages)))
        self._own_room_bytes = own_room_bytes(cache, machine)
        self._end(self._overdue(self.clock()))
        self._allow()
        self._note_wanted()

    async def run(self) -> None:
        """Lend and measure until cancelled; all leases end then."""
        try:
            async with task_group() as group:
                group.create_task(self._keep_process())
                group.create_task(self._keep_measuring())
        finally:
            self._echoes.clear()

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
        hurries = self.owner.now.hurries or self.room.idle_bytes < 0
        if now - self._above_since < (RECALL_HURRIED_S if hurries else RECALL_S):
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
                self._tell_of(one)  # A part of it was given back.
            if one.lease in self._allowed or one.lease in self._ended:
                continue
            left = self.room.size_bytes - sum(self._allowed.values())
            if one.size_bytes > left or not self.room.kept_bytes:
                self._ended.add(one.lease)
            elif self._process is not None:
                self._tell_of(one)

    def _tell_of(self, one: LeaseOrder) -> None:
        self._allowed[one.lease] = one.size_bytes
        if self._process is not None:
            lease = {"allow": one.lease, "key": one.key, "bytes": one.size_bytes}
            self._process.tell(lease)

    async def _keep_process(self) -> None:
        """Have the process run while it is wanted, and note when it has ended."""
        while True:
            await self._wanted.wait()
            await self._start()
            await asyncio.sleep(self.start_again_s)

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

    async def _keep_measuring(self) -> None:
        while True:
            await self._ordered.wait()
            self._ordered.clear()
            for order in self._order.echoes:
                told = self._echoes.get(order.lender)
                if told is None or told.round != order.round:
                    self._echoes[order.lender] = await self._measured(order)

    async def _measured(self, order: EchoOrder) -> EchoesTold:
        seconds: Sequence[float] = ()
        try:
            seconds = await asyncio.to_thread(self.measure, order)
        except (MolinkError, OSError) as error:
            log.info("no echo of %s:%d: %s", order.host, order.port, error)
        times = tuple(min(60_000.0, 1e3 * one) for one in seconds[:ECHOES])
        return EchoesTold(lender=order.lender, round=order.round, milliseconds=times)
