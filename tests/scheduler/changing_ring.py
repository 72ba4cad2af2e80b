"""A ring whose stages offer more and fewer blocks while it serves; a coordinator takes the least.

What a stage offers reaches the coordinator late, what that chooses reaches the head in order. A
stage gets places before it offers them, and gives them back when its core says so.
"""

from dataclasses import dataclass, field

from molink_scheduler.events import CapacityChosen, RoomOffered, SendCapacity
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.kv.capacity import Offer, least_offered
from tests.scheduler.fake_ring import FakeRing


@dataclass
class ChangingRing(FakeRing):
    """Drives the cores, and checks at every event that the head counts with what stages hold."""

    changes: int = field(init=False, default=0)
    lowered: int = field(init=False, default=0)
    """Times that stages gave places back."""

    def __post_init__(self) -> None:
        super().__post_init__()
        blocks = blocks_for(self.kv_tokens)
        self.heard = [Offer(0, blocks) for _ in self.stages]
        self.chosen_at = 0.0

    def room(self, index: int):
        source = self.stages[index].core.source
        return source.capacity.room if index == 0 else source.book.room

    def offer_at(self, at: float, index: int, blocks: int) -> None:
        self.push(at, lambda: self.offer(index, blocks))

    def offer(self, index: int, blocks: int) -> None:
        self.changes += 1
        stage, room = self.stages[index], self.room(index)
        stage.kv.resize(max(blocks, stage.kv.blocks_total))
        self.receive(index, RoomOffered(blocks))
        told = Offer(room.number, room.offered)
        self.push(self.now + self.random.uniform(0.01, 0.5), lambda: self.hear(index, told))

    def hear(self, index: int, told: Offer) -> None:
        if told.number > self.heard[index].number:
            self.heard[index] = told
            chosen = CapacityChosen(least_offered(self.heard))
            self.chosen_at = at = max(self.chosen_at + 1e-6, self.now + self.random.uniform(0, 0.2))
            self.push(at, lambda: self.receive(0, chosen))

    def carry_out(self, index: int, decisions):
        run = super().carry_out(index, decisions)
        self.check()
        return run

    def give_back(self, index: int, word: SendCapacity) -> None:
        self.lowered += word.blocks < self.stages[index].kv.blocks_total
        super().give_back(index, word)

    def check(self) -> None:
        for index, stage in enumerate(self.stages):
            assert self.head.kv.blocks_total <= stage.kv.blocks_total, f"stage {index} has less"
            assert stage.kv.blocks_free >= 0
            ledger = self.head.kv if index == 0 else stage.core.source.book.kv
            assert index == 0 or ledger.blocks_total == stage.kv.blocks_total
            assert index == 0 or ledger.blocks_free >= 0

    def assert_caches_agree(self) -> None:
        capacity = least_offered(self.heard).blocks
        assert self.head.kv.blocks_total == capacity
        for index, stage in enumerate(self.stages):
            assert stage.kv.blocks_total == self.room(index).blocks == self.room(index).offered
        super().assert_caches_agree()
