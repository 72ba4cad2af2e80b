"""One stage of a ring, which a node hosts: loaded, joined, watched.

Commands are assignments and facts come over the control plane, whether the node is an agent on
a volunteer's PC or a local one of `molink serve`.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from molink.control.messages.assignment import Assignment, Extend, Hold, InRing, Load
from molink.control.messages.payloads import AssignedWork, StageFact, StageLink
from molink.coordinator.nodes.node import Node
from molink.coordinator.ring.stage_watch import (
    LoadLimits,
    LoadWatch,
    ReportWatch,
    StageFailure,
    StageSeen,
    stall_max_s,
)
from molink.errors import MolinkError, StageError, UserError
from molink.stage_protocol.health import RoomOffer, StageHealth
from molink.stage_protocol.messages import StageLoaded
from molink.stage_protocol.progress import StageProgress
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.capacity import Offer

AGENT_SILENT_S = 2.5
"""Without a heartbeat for so long an agent is as silent as its stage, and can load nothing."""

DOWNLOAD_SHARE = 0.5
"""Share that the download is taken to have in the time until a stage is loaded; how long each part
takes is not known beforehand."""


class NodeCommands(Protocol):
    """Sender of commands to nodes."""

    async def assign(self, node: Node, assignment: Assignment) -> None:
        """Publish what a node shall do, under the next revision."""

    async def allow_links(self, node: Node, keys: tuple[str, ...]) -> None:
        """Publish whose links (CURVE keys, Z85) a node accepts, unless it knows."""

    async def lead_to_shadow(self, node: Node, epoch: int, link: StageLink | None) -> None:
        """Publish where the shadow of a node's next stage is, in the ring of this epoch."""


@dataclass(slots=True)
class AgentStage:
    """One stage of a ring, on a node."""

    node: Node
    assignment: Assignment
    """Its order to load, or to extend what its process holds; without a revision."""
    accepted_keys: tuple[str, str]
    """Public keys, in Z85, whose links it accepts: the previous stage's, then the coordinator's."""
    commands: NodeCommands
    loaded: StageLoaded | None = None
    pid: int | None = None
    """Id of the stage's process, where that runs on this machine."""
    has_joined: bool = False
    failure: StageFailure | None = None
    """Why its ring has ended, if it is the one to blame."""
    is_stuck: bool = False
    """Whether the stage does nothing, or says nothing, any more: it counts as lost."""
    is_given_up: bool = False
    """Whether nothing is to be loaded on the node again: its agent is as silent, or both lie."""
    shadowed: Mapping[int, int] = field(default_factory=dict)
    """Tokens of each request of which the stage holds KV although it is new to the ring."""
    lender_trip_s: float = 0.0
    """Round trip to the PC that lends it room, as echoes have measured it; 0: they have not."""
    lender: str = ""
    """PC that lends it room, behind it the card that does; empty: nobody of its cell."""
    next_id: str = ""
    """Id of the node that its link leads to, once it has joined."""
    incarnation: str = field(init=False)
    """Incarnation of the agent that the stage was assigned to."""
    limits: LoadLimits = field(default_factory=LoadLimits)
    clock: Callable[[], float] = time.monotonic
    pc_downloading_at: Callable[[], float] = lambda: 0.0
    """When a download to its PC was last seen to go on."""
    pc_made_wait_at: Callable[[], float] = lambda: -math.inf
    """When the coordinator last made a download to its PC wait."""
    _loading: LoadWatch | None = None
    """Since it was told to load."""
    _reports: ReportWatch | None = None
    """Since it has joined."""

    def __post_init__(self) -> None:
        self.incarnation = self.node.presence.incarnation if self.node.presence else ""

    @property
    def name(self) -> str:
        """Name of its node, for people."""
        return self.node.name

    @property
    def epoch(self) -> int:
        """Number of its ring in all messages."""
        return self.assignment.epoch

    @property
    def work(self) -> AssignedWork:
        """What it holds, and how it computes."""
        return self.command.work

    @property
    def command(self) -> Load | Extend:
        """How it comes to hold its layers."""
        command = self.assignment.command
        assert isinstance(command, Load | Extend), "a stage loads before anything else"
        return command

    @property
    def layers(self) -> tuple[int, int]:
        """Its layers, [start, end)."""
        return self.work.layers

    @property
    def health(self) -> StageHealth | None:
        """Its latest report, once it is loaded."""
        report = self.node.health if self.loaded is not None else None
        stage = report.stage if report is not None else None
        return stage if isinstance(stage, StageHealth) else None

    @property
    def offer(self) -> Offer:
        """Its last offer of KV blocks to the ring; all that it has loaded, where it made none."""
        assert self.loaded is not None, "a stage offers what it has loaded"
        offers, stale = [RoomOffer(0, self.loaded.kv_tokens_capacity)], None
        if self._reports is not None and self._reports.joined is not None:
            offer, stale = self._reports.joined
            offers.append(offer)
        if (health := self.health) is not None and health is not stale:
            offers.append(health.offer)
        latest = max((one for one in offers if one.kv_tokens), key=lambda one: one.number)
        return Offer(latest.number, blocks_for(latest.kv_tokens))

    @property
    def rows_refused(self) -> int:
        """Requests whose rows it has refused so far, as the stage before had spoilt them."""
        return self.health.rows_refused if self.health is not None else 0

    async def admit(self) -> None:
        """Have its node accept the links of its neighbours, and of nobody else."""
        await self.commands.allow_links(self.node, self.accepted_keys)

    async def hold(self) -> None:
        """Have a survivor wait for how its ring goes on, longer than it would for a neighbour."""
        await self.commands.assign(self.node, self._ordered(Hold(work=self.work)))

    async def load(self, progressed: Callable[[float], None]) -> StageLoaded:
        """Wait until the layers are there. Raises StageError when they cannot be, UserError when
        its node reports that what was asked for cannot be."""
        await self.admit()
        await self.commands.assign(self.node, self.assignment)
        self._loading = LoadWatch(self.limits, self.clock())
        fact = await self._fact("loaded", progressed)
        self.loaded, self.shadowed = self._checked(fact), {}
        return self.loaded

    async def enter(self, command: InRing) -> StageFact:
        """Have it take part in its ring's epoch, until all of its links stand; the fact says what
        it keeps. Raises StageError."""
        self.next_id = next((link.to for link in command.links), "")
        self._reports = ReportWatch(stall_max_s(self.node.profile, command.terms.span_tokens))
        await self.commands.assign(self.node, self._ordered(command))
        fact = await self._fact("ready", lambda fraction: None)
        self.has_joined = True
        self._reports.joined = RoomOffer(*fact.offer), self.health
        return fact

    def _ordered(self, command: Hold | InRing) -> Assignment:
        return self.assignment.model_copy(update={"command": command})

    @property
    def is_lost(self) -> bool:
        """Whether its process, or its node, is gone, or as good as gone."""
        given, fact = self.node.assignment, self.node.current_fact
        is_free = given is None or given.work is None
        has_ended = fact is not None and fact.kind in ("failed", "stopped")
        return not self._is_same_node or is_free or has_ended or self.is_stuck

    @property
    def may_load_again(self) -> bool:
        """Whether its node is still there and serves, and it was no link that the stage lost: to
        its neighbour it would find no way either."""
        fact = self.node.current_fact
        lost_link = fact is not None and fact.kind == "failed" and fact.about != ""
        is_there = self._is_same_node and not self.is_given_up
        return is_there and self.node.wants == "serve" and not lost_link

    @property
    def _is_same_node(self) -> bool:
        presence = self.node.presence
        return (
            self.node.is_here and presence is not None and presence.incarnation == self.incarnation
        )

    @property
    def has_left(self) -> bool:
        """Whether its agent has said that it ends, or has started anew since."""
        presence = self.node.presence
        if presence is None or presence.incarnation != self.incarnation:
            return presence is not None
        return not presence.online and presence.reason != ""

    @property
    def seen(self) -> StageSeen:
        """Time of its last report, and whom it misses by that; once it has joined."""
        assert self._reports is not None, "only a stage that has joined is watched"
        progress = self.health.progress if self.health is not None else StageProgress()
        misses = progress.previous_silent_s, progress.next_silent_s
        return StageSeen(self._reports.new_at, *misses)

    def in_epoch(self, epoch: int) -> "AgentStage":
        """The same stage on its way into the ring's next epoch."""
        assignment = self.assignment.model_copy(update={"epoch": epoch})
        stage = replace(self, assignment=assignment, has_joined=False, failure=None, _reports=None)
        stage.is_stuck = stage.is_given_up = False
        return stage

    def replaced(self, kv_tokens: int) -> "AgentStage":
        """The stage that takes its place on its node, with room for so many tokens as each of its
        ring has without lenders in the LAN; its layers are to be loaded."""
        host_tokens = 0 if self.work.lan_lease is not None else self.work.kv_host_tokens
        own_tokens = max(BLOCK_TOKENS, kv_tokens - host_tokens)
        load = Load(work=replace(self.work, kv_tokens=own_tokens))
        assignment = self.assignment.model_copy(update={"command": load})
        return replace(self, assignment=assignment, loaded=None, pid=None, _loading=None)

    def fail(self, reason: str, about: str = "") -> StageError:
        """Hold a failure against its node and the neighbour `about`; the error to raise."""
        self.failure = StageFailure(self.node.node_id, reason, about)
        return StageError(reason)

    def stuck(self, reason: str) -> StageError:
        """Count it as lost although its process is there, and hold that against its node."""
        self.is_stuck = True
        return self.fail(reason)

    def silent(self, reason: str, now: float) -> StageError:
        """Count it as lost because nothing comes from it; nobody is blamed where its PC is gone."""
        if now - self.node.heard_at < AGENT_SILENT_S:
            return self.stuck(reason)
        self.is_stuck = self.is_given_up = True
        return StageError(reason)

    async def watch(self, previous: "AgentStage") -> None:
        """Wait until the stage is gone, stands still, or has refused what the `previous` one sent;
        then raise StageError."""
        assert self._reports is not None, "only a stage that has joined is watched"
        stale = self.health  # Perhaps of the stage before.
        while True:
            self._check_alive()
            if trouble := self._reports.trouble(self.health, self.node.heard_at):
                raise self.stuck(f"{self.name}: {trouble}.")
            health = self.health
            if health is not None and health is not stale and health.frames_refused:
                what = f"{previous.name} has sent {self.name} what no stage of a ring sends."
                raise self.fail(what, previous.node.node_id)
            await self.node.changed.wait()

    async def next_health(self) -> StageHealth:
        """The next report on its health."""
        before = self.health
        while (health := self.health) is before or health is None:
            self._check_alive()
            await self.node.changed.wait()
        return health

    async def _fact(self, kind: str, progressed: Callable[[float], None]) -> StageFact:
        while True:
            self._check_alive()
            fact = self.node.current_fact
            if fact is not None and fact.kind == kind:
                return fact
            if fact is not None and fact.kind in ("downloading", "loading"):
                progressed(self._fraction(fact))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._patience_s(fact)):
                    await self.node.changed.wait()

    def _patience_s(self, fact: StageFact | None) -> float | None:
        """Seconds to wait for news of a stage that loads; None: as long as it takes. Raises
        StageError when there was no progress for too long."""
        watch, now = self._loading, self.clock()
        if watch is None or self.loaded is not None or self.node.is_local:
            return None
        watch.update(fact, now)
        watch.made_wait(self.pc_made_wait_at())
        watch.excuse(self.pc_downloading_at())
        if now >= watch.due_at():
            raise self.fail(f"{self.name}: {watch.sentence(now)}.")
        return watch.due_at() - now

    @property
    def needs_s(self) -> float:
        """How much longer it loads, as far as that is known (`LoadWatch.needs_s`)."""
        watch, now = self._loading, self.clock()
        if watch is None or self.loaded is not None:
            return 0.0
        watch.update(self.node.current_fact, now)
        watch.made_wait(self.pc_made_wait_at())
        return watch.needs_s(now)

    def _checked(self, fact: StageFact) -> StageLoaded:
        """What the node reports of its stage. Raises StageError when that cannot be, or is not what
        was planned: a ring holds no more than its smallest stage."""
        loaded = fact.line
        if not isinstance(loaded, StageLoaded):
            why = loaded.why if loaded is not None else "nothing"
            raise self.fail(f"{self.name} says something impossible of its stage ({why}).")
        given, wanted = loaded.kv_tokens_capacity, self.work.kv_tokens or 1
        if given < wanted:
            raise self.fail(f"{self.name} has room for {given} tokens, {wanted} were planned.")
        if loaded.state_slots == 0:
            raise self.fail(f"{self.name} has room for the states of no request.")
        if loaded.kv_dtype != (wanted_dtype := self.work.kv_dtype):
            raise self.fail(f"{self.name} keeps no KV as {wanted_dtype}: update MoLink there.")
        if self.assignment.stage == 0 and loaded.coordinator_port is None:
            raise self.fail(f"{self.name} does not listen for the coordinator.")
        return loaded

    def _fraction(self, fact: StageFact) -> float:
        if self.node.is_local:  # Its weights are on the disk.
            return fact.fraction
        if fact.kind == "downloading":
            return DOWNLOAD_SHARE * fact.fraction
        return DOWNLOAD_SHARE + (1 - DOWNLOAD_SHARE) * fact.fraction

    def _check_alive(self) -> None:
        if self.is_stuck and self.failure is not None:
            raise StageError(self.failure.reason)
        if not self.node.is_here:
            raise StageError(f"{self.name} is lost.")
        if self.node.presence is None or self.node.presence.incarnation != self.incarnation:
            raise StageError(f"{self.name} has started anew.")
        if self.node.quarantined:
            raise self.fail(f"{self.name} is quarantined: {self.node.quarantined}")
        given = self.node.assignment
        if given is not None and given.epoch != self.epoch:
            raise StageError(f"{self.name} was given something else to do.")
        fact = self.node.current_fact
        if fact is not None and fact.kind in ("failed", "stopped"):
            error = _failure(self.name, fact)
            if fact.kind == "failed":
                self.fail(str(error), fact.about if fact.about == self.next_id else "")
            raise error


def why_not_needed(stages: Iterable[AgentStage]) -> str:
    """Why a ring without a failure has ended: the first stage whose PC is not to serve, if any."""
    for stage in stages:
        if why := stage.node.kept_out_reason:
            return f"{stage.name}: {why}"
    return "it is not needed any more."


def _failure(name: str, fact: StageFact) -> MolinkError:
    """Why a stage is not, with its node's name unless the sentence begins with it."""
    if fact.user_fault:
        return UserError(fact.message)
    said = fact.message or "its stage ended."
    return StageError(said if said.startswith(f"{name} ") else f"{name}: {said}")
