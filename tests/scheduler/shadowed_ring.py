"""A ring some of whose stages have a shadow: what that is sent behind, computes, and goes on with.

Between a stage and the shadow of the next one a batch is under way at a time, with a seeded delay;
what a shadow reports of itself is as old as the last report. So a loss finds shadows that are
level, behind, new, or still of the epoch before.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from molink_scheduler.batch import Release
from molink_scheduler.events import BatchArrived, KeepRows, ReleaseArrived, RunBatch, SendRelease
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.recovery.events import FillerFound
from molink_scheduler.recovery.instructions import FindFiller, ResumeRequests
from molink_scheduler.recovery.members import Filler, Member
from molink_scheduler.resume import Resume
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.shadow_feed import ShadowBatch, ShadowFeed
from molink_scheduler.stage.shadow_queue import ShadowQueue
from tests.scheduler.surviving_ring import SurvivingRing
from tests.scheduler.toy_ring import LIMITS
from tests.scheduler.toy_stage import ToyStage, log_rows, unpacked

ROWS_MAX, REPORT_SHARE = 8, 0.3


@dataclass
class Shadow:
    """One shadow and the way to it."""

    stage: ToyStage
    epoch: int
    under_way: bool = False
    reported: dict[int, int] = field(default_factory=dict)
    """Tokens of each request that it held when it reported last."""


@dataclass
class ShadowedRing(SurvivingRing):
    """Drives a ring and the shadows of the stages at `covered`."""

    covered: Sequence[int] = ()
    slowest_s: float = 0.2
    """Of what a batch takes to a shadow."""
    feed_bytes: int = 24

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shadows: dict[int, Shadow] = {}
        self.taking: dict[int, Shadow] = {}
        """Shadows that are to take the places which they covered."""
        self.replayed = self.behind = self.known = 0
        """Rows that were sent again; those that shadows lacked by their reports, of all that the
        ring held of requests whose stage had one."""
        for place in self.covered:
            self.begin_shadow(place)

    # -- its life --------------------------------------------------------------------------------

    def begin_shadow(self, place: int) -> None:
        core = self.shadow_core(place, Resume())
        stage = self.new_stage(place, (place,), self.stage_count)
        stage.core = core
        self.shadows[place] = Shadow(stage, self.epoch)
        before = self.stages[place - 1]
        before.feed = ShadowFeed(before.log, ROWS_MAX)

    def shadow_core(self, place: int, resume: Resume) -> StageCore:
        book = StageBook(BlockTable(KvLedger(blocks_for(self.kv_tokens))), LIMITS)
        source = ShadowQueue.for_steps_of(8, book)
        return StageCore(source, place == self.stage_count - 1, resume)

    def lose_shadow_at(self, at: float, place: int) -> None:
        self.push(at, lambda: self.shadows.pop(place, None))

    # -- what it is sent -------------------------------------------------------------------------

    def end(self, stage: ToyStage, *step) -> None:
        super().end(stage, *step)
        self.feed(stage.index + 1)

    def feed(self, place: int) -> None:
        shadow, before = self.shadows.get(place), self.stages[place - 1]
        is_fed = shadow is not None and not shadow.under_way and shadow.epoch == self.epoch
        if not is_fed or before.feed is None or self.is_gone(before):
            return
        sent = before.feed.next("raw", self.feed_bytes, self.now)
        if sent is None:
            return
        shadow.under_way, epoch = True, self.epoch
        at = self.now + self.random.uniform(0.01, self.slowest_s)
        self.push(at, lambda: self.reach_shadow(place, shadow, sent, epoch))

    def reach_shadow(self, place: int, shadow: Shadow, sent, epoch: int) -> None:
        shadow.under_way = False
        if self.shadows.get(place) is not shadow or shadow.epoch != epoch:
            return
        self.carry_out_shadow(
            shadow, shadow.stage.core.received(self.event(shadow, sent), self.now)
        )
        self.start_shadow(place, shadow)
        self.feed(place)

    def event(self, shadow: Shadow, sent: Release | ShadowBatch):
        if isinstance(sent, Release):
            return ReleaseArrived(sent)
        number = next(self.messages)
        shadow.stage.rows[number] = [row for one in sent.sent for row in unpacked(one.rows)]
        return BatchArrived(sent.batch, number)

    # -- what it computes ------------------------------------------------------------------------

    def start_shadow(self, place: int, shadow: Shadow) -> None:
        if shadow.stage.busy or self.shadows.get(place) is not shadow:
            return
        core = shadow.stage.core
        run = self.carry_out_shadow(shadow, core.next_step(0.0, self.now))
        if run is not None:
            rows, step_s = shadow.stage.compute(run), self.random.uniform(0.001, 0.1)
            shadow.stage.busy = True
            self.push(self.now + step_s, lambda: self.end_shadow(place, shadow, core, run, rows))

    def end_shadow(self, place: int, shadow: Shadow, core, run: RunBatch, rows: list) -> None:
        if shadow.stage.core is not core or self.shadows.get(place) is not shadow:
            return
        shadow.stage.busy = False
        kept = core.computed(run, 0.01, 0.0, self.now)
        assert isinstance(kept, KeepRows), "a shadow passes nothing on"
        log_rows(shadow.stage.log, kept.batch, rows)
        core.finished(run, 0.01, self.now)
        if self.random.random() < REPORT_SHARE:
            shadow.reported = shadow.stage.core.source.computed_tokens()
        self.start_shadow(place, shadow)

    def carry_out_shadow(self, shadow: Shadow, decisions) -> RunBatch | None:
        for decision in decisions:
            match decision:
                case RunBatch():
                    return decision
                case SendRelease(release):
                    shadow.stage.release(release.request_id)
                case refused:
                    raise AssertionError(f"the shadow refused: {refused}")
        return None

    # -- when a stage is lost --------------------------------------------------------------------

    def filler(self, asked: FindFiller) -> FillerFound:
        shadow = self.shadows.get(asked.place)
        if shadow is None:
            return super().filler(asked)
        held = shadow.reported if shadow.epoch == self.epoch else {}
        self.taking[asked.place] = self.shadows.pop(asked.place)
        standby = Filler(f"shadow {asked.place}", self.room, tuple(sorted(held.items())))
        return FillerFound(asked.place, standby)

    def lose(self, places: Iterable[int], refill_s: float, beside: bool) -> None:
        """A shadow that is about to take a place is lost with it."""
        for place in (lost := list(places)):
            self.taking.pop(place, None)
        super().lose(lost, refill_s, beside)

    def replacement(self, place: int, member: Member) -> ToyStage:
        taken = self.taking.pop(place, None)
        return taken.stage if taken is not None else super().replacement(place, member)

    def enter_epoch(self, resumes: tuple[Resume, ...]) -> None:
        listed = sum(tokens for _, tokens in resumes[0].requests)
        self.known += listed * len(self.taking)
        super().enter_epoch(resumes)
        for place in self.covered:
            if place in self.shadows or self.random.random() < 0.5:
                self.begin_shadow(place)

    def go_on(self, going_on: ResumeRequests) -> None:
        self.behind += going_on.behind_tokens
        super().go_on(going_on)

    def end_ring(self) -> None:
        super().end_ring()
        self.taking.clear()
        for place in self.covered:
            self.begin_shadow(place)

    def replay(self, stage: ToyStage, batch, admission) -> None:
        for piece, sent in stage.log.batches(batch, admission, 8):
            self.replayed += piece.tokens
            self.send_rows(stage, piece, unpacked(sent.rows))
