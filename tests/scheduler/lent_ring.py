"""A ring whose stages keep parts at lenders, and lose them: an epoch in which no stage is fresh.

What lies at a lender is drawn anew for each loss. The stage computes nothing until it has entered
the next epoch, in which it holds nothing of what was lost.
"""

from dataclasses import dataclass, field
from itertools import chain

from molink_scheduler.events import RunBatch
from molink_scheduler.recovery.events import PartsLost
from molink_scheduler.resume import Resume
from molink_scheduler.stage.core import StageCore
from tests.scheduler.surviving_ring import SurvivingRing
from tests.scheduler.toy_stage import ToyStage


@dataclass
class Lent:
    """What a stage has lost with a lender."""

    stage: ToyStage
    requests: set[int]
    numbers: set[int]


@dataclass
class LentRing(SurvivingRing):
    """Drives a ring that loses lenders, and stages."""

    lost: Lent | None = field(init=False, default=None)
    lenders: int = field(init=False, default=0)
    lost_requests: int = field(init=False, default=0)
    lost_blocks: int = field(init=False, default=0)

    def lose_lender_at(self, at: float, place: int, share: float) -> None:
        self.push(at, lambda: self.lose_lender(place, share))

    def lose_lender(self, place: int, share: float) -> None:
        if self.gone or not self.is_joined or place >= len(self.stages):
            return
        stage = self.stages[place]
        if len(stage.layers.parts()) > 1:
            return  # What it has taken beside its own lies at home.
        self.lost = self.lent(stage, share)
        self.lenders += 1
        self.lost_requests += len(self.lost.requests)
        self.lost_blocks += len(self.lost.numbers)
        self.losses, self.is_joined = self.losses + 1, False
        self.tell(PartsLost())

    def lent(self, stage: ToyStage, share: float) -> Lent:
        """Cached blocks and requests, of these all that use one of the blocks."""
        (layers,) = stage.layers.parts()
        numbers = {one for one in layers.cached if self.random.random() < share}
        requests = {one for one in layers.kv if self.random.random() < share}
        for request_id in layers.kv:
            if numbers.intersection(self.numbers_of(stage, request_id)):
                requests.add(request_id)
        return Lent(stage, requests, numbers)

    def numbers_of(self, stage: ToyStage, request_id: int):
        """Cached blocks that a request uses."""
        if stage.index == 0:
            sequence = stage.core.source._sequences.get(request_id)
            node = None if sequence is None else sequence.pinned
            tree = stage.core.source.book.cache.tree
            path = [] if node is None else tree._chain(node)
            return chain.from_iterable(run for one in path for run in one.numbers)
        held = stage.core.source.book._held.get(request_id)
        return chain.from_iterable(() if held is None else held.cached)

    def waits(self, stage: ToyStage) -> bool:
        return self.lost is not None and self.lost.stage is stage

    def start(self, stage: ToyStage) -> None:
        if not self.waits(stage):
            super().start(stage)

    def end(self, stage: ToyStage, core: StageCore, run: RunBatch, rows: list, step_s: float):
        if not self.waits(stage):
            super().end(stage, core, run, rows, step_s)

    def enter(self, attempt: int, stage: ToyStage, resume: Resume):
        if not self.waits(stage):
            return super().enter(attempt, stage, resume)
        lost, self.lost = self.lost, None
        (layers,) = stage.layers.parts()
        for number in lost.numbers:
            layers.cached.pop(number, None)
        for request_id in lost.requests:
            layers.kv.pop(request_id, None)
        stage.lost = frozenset(lost.requests)
        ready = super().enter(attempt, stage, resume)
        stage.lost = frozenset()
        return ready
