"""No KV block is leaked or shared by mistake.

Every stage's blocks are kept here as the executor keeps them (`molink.executor.stage`): with the
core's `KvBlocks`, grown by the spans that the stage computes.
"""

from molink_scheduler.batch import Span
from molink_scheduler.events import RunBatch
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.kv.blocks import KvBlocks, OutOfBlocks, blocks_for
from molink_sim.checkers.checker import Checker, Epoch, Place
from molink_sim.scenario import Scenario
from molink_sim.simulate import World

__all__ = ["KvBlocksKept"]


class KvBlocksKept(Checker):
    """The blocks of every stage, and whose they are."""

    name = "no KV block leaked or shared by mistake"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._epochs: list[Epoch] = []
        self._blocks: dict[Place, KvBlocks] = {}
        self._owners: dict[Place, dict[int, int]] = {}
        """Request by block."""
        self._expected: dict[Place, dict[int, int]] = {}
        """Tokens that an admitted request may come to hold."""

    def ring_started(self, epoch: Epoch) -> None:
        """All blocks are free."""
        self._epochs.append(epoch)
        for place in epoch.places:
            blocks = blocks_for(epoch.spec.stages[place.index].kv_tokens)
            self._blocks[place] = KvBlocks(blocks)
            self._owners[place], self._expected[place] = {}, {}

    def released(self, place: Place, request_id: int) -> None:
        """Free its blocks, as `StageExecutor.release` does."""
        owners = self._owners[place]
        for block in [block for block, owner in owners.items() if owner == request_id]:
            del owners[block]
        self._blocks[place].release(request_id)
        self._expected[place].pop(request_id, None)

    def started(self, place: Place, run: RunBatch) -> None:
        """Grow the blocks of each span, as `StageExecutor.step` does."""
        for admission in run.batch.admissions:
            if admission.request_id in self._expected[place]:
                self.mistake(f"{place} admitted request {admission.request_id} and holds it")
            self.released(place, admission.request_id)
            self._expected[place][admission.request_id] = admission.tokens_expected
        for span in run.batch.spans:
            self._grow(place, span)

    def ended(self, world: World) -> None:
        """A request that has gone holds nothing."""
        gone = {r.number for r in world.coordinator.requests if r.finished or r.failed or r.refused}
        for epoch in self._epochs:
            if not epoch.is_lost:
                self._check_left(epoch, gone)

    def _grow(self, place: Place, span: Span) -> None:
        blocks, expected = self._blocks[place], self._expected[place].get(span.request_id)
        if expected is None:
            self.mistake(f"{place} computed request {span.request_id}, which it does not know")
            return
        if blocks.blocks_missing(span.request_id, span.end):
            try:
                blocks.grow(span.request_id, span.end, expected)
            except OutOfBlocks as error:
                self.mistake(f"{place} has too few blocks: {error}")
                return
            self._own(place, span.request_id)

    def _own(self, place: Place, request_id: int) -> None:
        for block in self._blocks[place].table(request_id):
            owner = self._owners[place].setdefault(block, request_id)
            if owner != request_id:
                self.mistake(f"{place} gave block {block} to requests {owner} and {request_id}")

    def _check_left(self, epoch: Epoch, gone: set[int]) -> None:
        for place in epoch.places:
            for request_id in sorted(self._blocks[place].holders() & gone):
                self.mistake(f"{place} keeps blocks of request {request_id}, which has ended")
        head = epoch.head
        if isinstance(head, HeadScheduler) and not head.running_count and head.kv.tokens_used:
            self.mistake(
                f"the head of ring {epoch.number} counts {head.kv.tokens_used} tokens as used"
            )
