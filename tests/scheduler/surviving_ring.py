"""A ring that loses stages: `molink_scheduler.recovery` decides, toy stages carry it out.

Until all are in the next epoch survivors go on with the one before, as far as they come.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from molink_scheduler.events import CacheChanged, RequestCancelled
from molink_scheduler.kv.changes import AwayBlocks, cached_runs
from molink_scheduler.kv.tiers import FILE, HOST
from molink_scheduler.recovery.events import (
    Event,
    FillerFound,
    Loss,
    NeighbourFound,
    PlaceLoaded,
    PlaceReady,
    RequestsListed,
    StagesLost,
    WentOn,
)
from molink_scheduler.recovery.instructions import (
    BeginEpoch,
    EndRing,
    Fills,
    FindFiller,
    FindNeighbour,
    Instruction,
    JoinEpoch,
    ListRequests,
    LoadPlaces,
    NextMember,
    ResumeRequests,
)
from molink_scheduler.recovery.machine import recover
from molink_scheduler.recovery.members import Filler, Member, RingRoom, Room
from molink_scheduler.recovery.state import RingRecovery
from molink_scheduler.resume import Resume, requests_to_resume
from tests.scheduler.toy_ring import ToyRing
from tests.scheduler.toy_stage import ToyStage


@dataclass
class Coming:
    """Who is to be in a place, once all enter the next epoch."""

    stage: ToyStage
    """Of the epoch before: it stays, or its place is filled."""
    filler: str = ""
    """Node that fills the place; empty: the stage stays."""


@dataclass
class Disk:
    """File of one lost stage's cached blocks, as its node has kept it."""

    directory: int
    blocks: dict[int, list[tuple[int, ...]]]


@dataclass
class SurvivingRing(ToyRing):
    """Drives a ring and its recovery from one seed until nothing is left to do."""

    disk_share: float = 0.0
    """Of the stages that are loaded anew those that find a file of their layers, of any epoch."""
    unread_share: float = 0.0
    """Of such a file's blocks those that are named in it and cannot be read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.missing = self.resumed = self.losses = self.extended = self.ended = 0
        self.refill_s, self.beside = 0.0, False
        self.disks: dict[tuple[int, ...], list[Disk]] = {}
        self.begin_anew()

    def begin_anew(self) -> None:
        room = RingRoom(self.kv_tokens, self.slots, prefix_cache=self.chains_stay)
        members = [
            Member(f"n{stage.index}", (stage.index, stage.index + 1), self.room)
            for stage in self.stages
        ]
        self.recovery = RingRecovery(room, tuple(members))
        self.coming = [Coming(stage) for stage in self.stages]

    @property
    def room(self) -> Room:
        return Room(self.kv_tokens, self.slots)

    # -- losses ----------------------------------------------------------------------------------

    def lose_at(
        self, at: float, places: set[int], refill_s: float, *, beside: bool = False
    ) -> None:
        """`beside`: neighbours take the lost layers beside their own, where they can."""
        self.push(at, lambda: self.lose(places, refill_s, beside))

    def lose(self, places: Iterable[int], refill_s: float, beside: bool) -> None:
        """Lose what is, or is to be, in these places, as far as there are so many."""
        lost = [place for place in places if place < len(self.coming)]
        if not lost:
            return
        self.losses += 1
        self.is_joined = False
        self.refill_s, self.beside = refill_s, beside
        self.gone += [self.coming[place].stage for place in lost]
        for place in lost:
            self.keep_disk(self.coming[place].stage)
        self.tell(StagesLost(tuple(Loss(place, may_load_again=False) for place in lost)))

    def keep_disk(self, stage: ToyStage) -> None:
        if len(parts := stage.layers.parts()) == 1:
            disk = Disk(stage.directory, parts[0].away_in(FILE))
            self.disks.setdefault(parts[0].indices, []).append(disk)

    def tell(self, event: Event) -> None:
        self.recovery, told = recover(self.recovery, event, self.now)
        for instruction in told:
            self.obey(instruction)

    def obey(self, instruction: Instruction) -> None:
        match instruction:
            case FindFiller():
                self.tell(self.filler(instruction))
            case FindNeighbour(_, able):
                self.tell(NeighbourFound(able[0]))
            case BeginEpoch(_, next_members):
                self.coming = [self.member_in(next_member) for next_member in next_members]
            case LoadPlaces(places):
                attempt, ring = self.recovery.attempt, self.ended
                loaded_at = self.now + self.refill_s
                self.push(loaded_at, lambda: self.loaded(ring, attempt, places))
            case ListRequests():
                held = {one: live.resumable_tokens for one, live in self.live.items()}
                listed = requests_to_resume(held, self.kv_tokens, self.slots)
                self.tell(RequestsListed(self.recovery.attempt, listed))
            case JoinEpoch(resumes):
                self.enter_epoch(resumes)
            case ResumeRequests():
                self.go_on(instruction)
            case EndRing():
                self.end_ring()

    def filler(self, asked: FindFiller) -> FillerFound:
        free = None if self.beside else Filler(f"n{next(self.ids)}")
        return FillerFound(asked.place, free=free)

    def member_in(self, next_member: NextMember) -> Coming:
        before = self.coming[next_member.place]
        if isinstance(next_member, Fills):
            return Coming(before.stage, next_member.filler.node)
        return before

    def loaded(self, ring: int, attempt: int, places: tuple[int, ...]) -> None:
        for place in places:
            if ring == self.ended:
                self.tell(PlaceLoaded(attempt, place, self.room))

    # -- into the next epoch ---------------------------------------------------------------------

    def enter_epoch(self, resumes: tuple[Resume, ...]) -> None:
        """All stages enter it; perhaps one of them is lost before the last has said so."""
        attempt = self.recovery.attempt
        self.epoch += 1
        self.stages = [self.new_in(place) for place in range(len(self.coming))]
        self.gone = []
        self.coming = [Coming(stage) for stage in self.stages]
        ready = [
            self.enter(attempt, stage, resume)
            for stage, resume in zip(self.stages, resumes, strict=True)
        ]
        if self.random.random() < self.broken_share:
            ready.pop()
            self.lose({self.random.randrange(len(self.stages))}, 0.05, self.beside)
        ring = self.ended
        for one in ready:
            if ring == self.ended:
                self.tell(one)

    def new_in(self, place: int) -> ToyStage:
        """Stage in a place of the new epoch, with all layers that it is to have."""
        member, coming = self.recovery.members[place], self.coming[place]
        if coming.filler:
            return self.replacement(place, member)
        stage = coming.stage
        own = [index for part in stage.layers.parts() for index in part.indices]
        computed = stage.core.source.computed_tokens()
        for lost, is_behind in (
            (range(own[-1] + 1, member.layers[1]), True),
            (range(member.layers[0], own[0]), False),
        ):
            if lost:
                stage.extend(self.new_layers(tuple(lost)), behind=is_behind, computed=computed)
                self.extended += 1
        stage.index = place
        return stage

    def replacement(self, place: int, member: Member) -> ToyStage:
        """Stage of a node that takes the place of one that is gone."""
        stage = self.new_stage(place, tuple(range(*member.layers)), len(self.coming))
        (part,) = stage.layers.parts()
        if part.indices in self.disks and self.random.random() < self.disk_share:
            disk = self.random.choice(self.disks[part.indices])
            part.away, stage.directory = dict(disk.blocks), disk.directory
            part.tier_of = dict.fromkeys(part.away, FILE)
        return stage

    def enter(self, attempt: int, stage: ToyStage, resume: Resume) -> PlaceReady:
        """A stage enters the epoch; with what it cannot go on, and what it has cached."""
        computed = stage.computed_tokens()
        missing = stage.layers.begin_epoch(resume, computed, stage.log.has)
        resume = resume.without(missing)
        is_extended = len(stage.layers.parts()) > 1
        keeps = dict(resume.requests if is_extended else resume.keeps)
        if gone := self.behind_windows(stage, keeps):
            missing, resume = (*missing, *gone), resume.without(gone)
            keeps = {one: tokens for one, tokens in keeps.items() if one not in gone}
        held = {one for part in stage.layers.parts() for one in part.kv}
        for request_id in held - keeps.keys():
            stage.release(request_id)
        stage.log.begin_epoch(resume)
        for part in stage.layers.parts():
            if not resume.chains_stay:
                part.cached.clear()
                part.away.clear()
        away = self.away_of(stage, resume)
        stage.layers.keep(resume)
        stage.rows.clear()
        core = self.core(stage.index, len(self.stages), resume, frozenset(missing), stage, away)
        stage.core, stage.busy = core, False
        return PlaceReady(attempt, stage.index, missing, self.cached_of(stage, resume), away)

    def away_of(self, stage: ToyStage, resume: Resume) -> AwayBlocks:
        if not resume.chains_stay:
            stage.directory = self.epoch
        (part,) = stage.layers.parts()[:1]
        host, file = (cached_runs(part.away_in(tier)) for tier in (HOST, FILE))
        if resume.fresh:
            for number in list(part.away):
                if self.random.random() < self.unread_share:
                    del part.away[number]
        return AwayBlocks(host, file, stage.directory)

    def behind_windows(self, stage: ToyStage, keeps: dict[int, int]) -> tuple[int, ...]:
        """Requests that a stage cannot go on with, as their windows have moved on."""
        windows = [part.windows.blocks for part in stage.layers.parts() if part.windows]
        return tuple(
            request_id
            for request_id, tokens in keeps.items()
            if not all(one.can_go_on(request_id, tokens) for one in windows)
        )

    def cached_of(self, stage: ToyStage, resume: Resume) -> tuple[tuple[int, int], ...]:
        if not resume.chains_stay or resume.fresh:
            return ()
        numbers = stage.layers.parts()[0].cached
        return resume.offered(frozenset(numbers), stage.log.blocks.numbers())

    def go_on(self, going_on: ResumeRequests) -> None:
        resumed = going_on.listed - going_on.missing
        self.missing += len(going_on.missing)
        self.resumed += len(resumed)
        self.is_joined = True
        for request_id in going_on.missing:
            self.to_head(RequestCancelled(request_id))
        if going_on.cached is not None:
            self.to_head(CacheChanged(going_on.cached))
        self.submit_all(resumed)
        self.tell(WentOn())

    def submit_all(self, resumed: frozenset[int]) -> None:
        """Requests that go on keep their ids; others are computed anew."""
        for request_id, live in list(self.live.items()):
            if request_id in resumed:
                live.held_tokens = 0
                self.to_head(live.submit(request_id))
            else:
                del self.live[request_id]
                self.submit(live)

    def end_ring(self) -> None:
        """The next ring begins, with empty KV."""
        self.ended += 1
        self.epoch += 1
        self.stages, self.gone, self.is_joined = self.new_stages(), [], True
        self.begin_anew()
        for live in self.live.values():
            live.held_tokens = 0
        self.submit_all(frozenset())
