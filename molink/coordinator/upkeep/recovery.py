"""Driver of a ring's failover: `molink_scheduler.recovery` decides, nodes and links carry it out.

`begin` says what was lost and finds out who is in which place of the next epoch; `run` has all of
them load and join. What fails meanwhile is another loss, and begins the same again.
"""

import time
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from molink.control.messages.assignment import GoOn
from molink.control.messages.payloads import AssignedWork
from molink.coordinator.ring.agent_stage import AgentStage
from molink.coordinator.ring.client import RingClient
from molink.coordinator.ring.lent_room import own_least
from molink.coordinator.ring.ring import Ring, tokens_asked
from molink.coordinator.ring.room_watch import terms_now
from molink.coordinator.upkeep.neighbours import extended, has_grown, in_places
from molink.coordinator.upkeep.ring_building import RingEndpoint, room_of, routes_of, with_caches
from molink.errors import StageError
from molink.tasks import background_tasks, gathered
from molink_scheduler.recovery.events import (
    Event,
    FillerFound,
    Loss,
    NeighbourFound,
    PartsLost,
    PlaceLoaded,
    PlaceReady,
    RequestsListed,
    StageSilent,
    StagesLost,
    TimePassed,
    WentOn,
)
from molink_scheduler.recovery.instructions import (
    BeginEpoch,
    EndRing,
    Extends,
    Fills,
    FindFiller,
    FindNeighbour,
    HoldPlaces,
    Instruction,
    JoinEpoch,
    ListRequests,
    LoadPlaces,
    NextMember,
    Reloads,
    ResumeRequests,
    Serve,
    Stays,
    TooSmall,
)
from molink_scheduler.recovery.machine import recover
from molink_scheduler.recovery.members import Filler, Member, RingRoom
from molink_scheduler.recovery.state import RECOVER_WITHIN_S, RingRecovery
from molink_scheduler.resume import Resume


@dataclass(frozen=True, slots=True)
class Resumption:
    """Ring whose stages have all joined its next epoch."""

    ring: Ring
    requests: ResumeRequests
    reason: str
    """Why there is another epoch, a sentence."""


class Fillers(Protocol):
    """Finder of nodes that can take a lost one's place."""

    def standing_by(self, lost: AgentStage, kv_tokens: int, taken: Set[str]) -> AgentStage | None:
        """The stage on a standby that holds the layers, and is not `taken` already."""

    def with_room(
        self, lost: AgentStage, kv_tokens: int, taken: Set[str], within_s: float
    ) -> AgentStage | None:
        """The stage on a free node that can have the layers in time."""

    def beside(
        self, stage: AgentStage, layers: tuple[int, int], kv_tokens: int, within_s: float
    ) -> AssignedWork | None:
        """Work of a stage that takes these layers too; None: its node has no room, or no time."""


Note = Callable[[RingRecovery, Event, float, Sequence[Instruction]], object]
"""Takes the state before an event, the event, its time, and what it led to."""


@dataclass(slots=True)
class Recovery:
    """Way of one ring into its next epoch, and the next."""

    endpoint: RingEndpoint
    next_epoch: Callable[[], int]
    fillers: Fillers
    note: Note | None = None
    clock: Callable[[], float] = time.monotonic
    _state: RingRecovery | None = None
    """None: it has lost nothing yet."""
    _todo: list[Instruction] = field(default_factory=list)
    _offered: dict[tuple[int, str], AgentStage] = field(default_factory=dict)
    """Stages that could take places of lost ones, by place and node."""
    _beside: dict[int, AssignedWork] = field(default_factory=dict)
    """Work of neighbours that could take a hole's layers too, by place."""

    @property
    def left_s(self) -> float:
        """Seconds that it may still take."""
        state = self._state
        return RECOVER_WITHIN_S if state is None else state.left_s(self.clock())

    def begin(
        self, ring: Ring, *, with_coordinator: bool = False, parts_lost: bool = False
    ) -> Ring | None:
        """The ring on its way into the next epoch, with nothing loaded in the places of what is
        lost, or with fewer places; None: it cannot go on without that, or not in time. One whose
        coordinator was lost too may have lost nothing else, nor one of which a stage has lost parts
        of its KV."""
        losses = tuple(
            Loss(place, stage.may_load_again)
            for place, stage in enumerate(ring.stages)
            if stage.is_lost
        )
        self._offered, self._beside = {}, {}
        self._todo.clear()
        is_in_parts = parts_lost and not losses
        self._advance(ring, PartsLost() if is_in_parts else StagesLost(losses, with_coordinator))
        while self._todo:
            match self._todo.pop(0):
                case FindFiller() as asked:
                    self._advance(ring, self._filler(ring, asked))
                case FindNeighbour() as asked:
                    self._advance(ring, self._neighbour(ring, asked))
                case BeginEpoch(_, next_members):
                    return self._next_epoch_of(ring, next_members)
        return None

    def is_lost(self, ring: Ring, place: int, silent_s: float) -> bool:
        """Whether a stage that nobody hears counts as lost."""
        stage, tokens = ring.stages[place], _tokens_asked(ring)
        has_standby = self.fillers.standing_by(stage, tokens, set()) is not None
        self._advance(ring, StageSilent(place, silent_s, has_standby))
        found = bool(self._todo)
        self._todo.clear()
        return found

    async def run(self, ring: Ring, client: RingClient, reason: str) -> Resumption:
        """Load what is lost and have all stages join. Raises StageError or UserError when one
        cannot."""
        stages = ring.stages
        self.endpoint.admit(stages)
        await gathered(stage.admit() for stage in stages)
        while self._todo:
            match self._todo.pop(0):
                case HoldPlaces(places):
                    await gathered(stages[place].hold() for place in places)
                case LoadPlaces(places):
                    await self._load(ring, places)
                case ListRequests():
                    terms = replace(ring.terms, ring=terms_now(ring.terms.ring, stages))
                    ring = client.ring = replace(ring, terms=terms)
                    self._advance(ring, RequestsListed(self._attempt, client.to_resume()))
                case JoinEpoch(resumes):
                    ring = await self._join(ring, resumes)
                case ResumeRequests() as requests:
                    return Resumption(ring, requests, reason)
                case TooSmall(place, lacks):
                    raise _too_small(stages[place], lacks)
                case EndRing(why):
                    raise StageError(why)
        raise StageError("Its ring has no way to go on.")

    def succeeded(self, ring: Ring) -> tuple[float, float]:
        """The ring serves again; how many seconds after its loss, and how many of them it took to
        load."""
        self._advance(ring, WentOn())
        served = self._todo.pop(0) if self._todo else None
        return (served.elapsed_s, served.loading_s) if isinstance(served, Serve) else (0.0, 0.0)

    def _advance(self, ring: Ring, event: Event) -> None:
        before, now = self._state or _as_it_serves(ring), self.clock()
        self._state, instructions = recover(before, event, now)
        self._todo.extend(instructions)
        if self.note is not None and (instructions or not isinstance(event, StageSilent)):
            self.note(before, event, now, instructions)

    @property
    def _attempt(self) -> int:
        return self._state.attempt if self._state is not None else 0

    # -- who is in which place -------------------------------------------------------------------

    def _filler(self, ring: Ring, asked: FindFiller) -> FillerFound:
        lost, tokens, taken = ring.stages[asked.place], _tokens_asked(ring), set(asked.taken)
        standby = self.fillers.standing_by(lost, tokens, taken)
        avoided = taken.union(asked.held_back)
        free = self.fillers.with_room(lost, tokens, avoided, asked.within_s)
        for one in (standby, free):
            if one is not None:
                self._offered.setdefault((asked.place, one.node.node_id), one)
        return FillerFound(asked.place, _offer(standby), _offer(free))

    def _neighbour(self, ring: Ring, asked: FindNeighbour) -> NeighbourFound:
        for place in asked.able:
            stage = ring.stages[place]
            if stage.node.wants != "serve":
                continue
            tokens = _tokens_asked(ring)
            work = self.fillers.beside(stage, asked.layers, tokens, asked.within_s)
            if work is not None:
                self._beside[place] = work
                return NeighbourFound(place)
        return NeighbourFound(None)

    def _next_epoch_of(self, ring: Ring, next_members: Sequence[NextMember]) -> Ring:
        epoch = self.next_epoch()
        return in_places(ring, [self._stage_in(ring, one).in_epoch(epoch) for one in next_members])

    def _stage_in(self, ring: Ring, next_member: NextMember) -> AgentStage:
        stage = ring.stages[next_member.place]
        match next_member:
            case Stays():
                return stage
            case Reloads():
                return stage.replaced(_tokens_asked(ring))
            case Fills(place, filler):
                return self._offered[place, filler.node]
            case Extends(place):
                return extended(stage, self._beside[place])

    # -- into the epoch --------------------------------------------------------------------------

    async def _load(self, ring: Ring, places: Sequence[int]) -> None:
        """Wait until all are loaded; end when one more is lost."""
        async with background_tasks() as tasks:
            for stage in ring.stages:
                tasks.create_task(_until_lost(stage))
            await gathered(self._load_one(ring, place) for place in places)

    async def _load_one(self, ring: Ring, place: int) -> None:
        loaded = await ring.stages[place].load(lambda fraction: None)
        self._advance(ring, PlaceLoaded(self._attempt, place, room_of(loaded)))

    async def _join(self, ring: Ring, resumes: Sequence[Resume]) -> Ring:
        """The ring with the terms by which all have joined."""
        stages, terms = ring.stages, ring.terms
        loaded = [stage.loaded for stage in stages if stage.loaded is not None]
        terms = replace(terms, ring=with_caches(terms.ring, loaded))
        routes = await self.endpoint.reroute(routes_of(stages, loaded, terms.coordinator))
        joined = Ring(stages, terms, routes.requests)

        async def join(place: int, resume: Resume) -> None:
            sampled = routes.sampled if place == len(stages) - 1 else None
            command = GoOn(
                work=stages[place].work,
                terms=terms.ring,
                next_link=routes.next_of[place],
                coordinator_link=sampled,
                resume=resume,
            )
            fact = await stages[place].enter(command)
            ready = PlaceReady(self._attempt, place, fact.missing, fact.cached, fact.away)
            self._advance(joined, ready)

        await gathered(join(place, resume) for place, resume in enumerate(resumes))
        self._advance(joined, TimePassed())
        return joined


async def _until_lost(stage: AgentStage) -> None:
    """Raises StageError then: who is told to join beside it would wait for it, and fail."""
    while stage.loaded is None or not stage.is_lost:
        await stage.node.changed.wait()
    raise StageError(f"While others loaded, {stage.name} was lost too.")


def _as_it_serves(ring: Ring) -> RingRecovery:
    terms = ring.terms.ring
    tokens = own_least(ring.stages, terms.tokens_most)
    room = RingRoom(tokens, terms.state_slots, terms.prefix_cache)
    return RingRecovery(room, tuple(map(_member, ring.stages)))


def _member(stage: AgentStage) -> Member:
    room = room_of(stage.loaded) if stage.loaded is not None else None
    return Member(stage.node.node_id, stage.layers, room, has_grown=has_grown(stage))


def _offer(stage: AgentStage | None) -> Filler | None:
    if stage is None:
        return None
    room = room_of(stage.loaded) if stage.loaded is not None else None
    return Filler(stage.node.node_id, room, tuple(sorted(stage.shadowed.items())))


def _tokens_asked(ring: Ring) -> int:
    return tokens_asked(own_least(ring.stages, ring.terms.ring.tokens_most))


def _too_small(stage: AgentStage, lacks: str) -> StageError:
    """The error to raise about a stage that has less room than its ring counts with."""
    stage.is_given_up = True
    what = "the states of too few requests" if lacks == "states" else "too few tokens of its ring"
    return stage.stuck(f"{stage.name} has room for {what}.")
