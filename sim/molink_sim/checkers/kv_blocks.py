"""No KV block is leaked or shared by mistake.

Every stage's blocks are kept here as the executor keeps them (`molink.engine.step.stage`): with the
core's `KvBlocks`, grown by the spans that the stage computes.
"""

from molink_scheduler.batch import Span
from molink_scheduler.events import RunBatch
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.kv.blocks import KvBlocks, OutOfBlocks, blocks_for
from molink_scheduler.resume import Resume
from molink_sim.checkers.checker import Checker, Place, RingLife
from molink_sim.ring.coordinator import request_number
from molink_sim.scenario import Scenario
from molink_sim.simulate import World


class KvBlocksKept(Checker):
    """The blocks of every stage, and whose they are."""

    name = "no KV block leaked or shared by mistake"

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self._lives: list[RingLife] = []
        self._blocks: dict[Place, KvBlocks] = {}
        self._owners: dict[Place, dict[int, int]] = {}
        """Request by block."""
        self._expected: dict[Place, dict[int, int]] = {}
        """Tokens that an admitted request may come to hold."""

    def ring_started(self, life: RingLife) -> None:
        """All blocks are free."""
        self._lives.append(life)
        for place in life.places:
            self._begin(place)

    def joined(self, place: Place, resume: Resume) -> None:
        """Free what is not kept, as the stage's loop does."""
        if resume.fresh:
            self._begin(place)
            for request_id, tokens in resume.keeps:
                self._expected[place][request_id] = tokens
                self._blocks[place].grow(request_id, tokens, tokens)
                self._own(place, request_id)
            return
        kept, owners = dict(resume.requests), self._owners[place]
        for request_id in self._blocks[place].holders() - kept.keys():
            self.released(place, request_id)
        for request_id, tokens in kept.items():
            self._blocks[place].shrink(request_id, tokens)
            table = set(self._blocks[place].table(request_id))
            for block in [one for one, owner in owners.items() if owner == request_id]:
                if block not in table:
                    del owners[block]

    def _begin(self, place: Place) -> None:
        blocks = blocks_for(place.life.spec.stages[place.index].kv_tokens)
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
            if admission.kept_tokens:
                self._expected[place][admission.request_id] = admission.tokens_expected
                continue
            if admission.request_id in self._expected[place]:
                self.mistake(f"{place} admitted request {admission.request_id} and holds it")
            self.released(place, admission.request_id)
            self._expected[place][admission.request_id] = admission.tokens_expected
        for span in run.batch.spans:
            self._grow(place, span)

    def ended(self, world: World) -> None:
        """A request that has gone holds nothing."""
        gone = {r.number for r in world.coordinator.requests if r.finished or r.failed or r.refused}
        for life in self._lives:
            if not life.is_lost:
                self._check_left(life, gone)

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

    def _check_left(self, life: RingLife, gone: set[int]) -> None:
        for place in life.places:
            for request_id in sorted(self._blocks[place].holders()):
                if request_number(request_id) in gone:
                    self.mistake(f"{place} keeps blocks of request {request_id}, which has ended")
        head = life.head
        if isinstance(head, HeadScheduler) and not head.running_count and head.kv.tokens_used:
            self.mistake(
                f"the head of ring {life.number} counts {head.kv.tokens_used} tokens as used"
            )
