"""A ring in virtual time: the real core of every stage, and links with seeded delays."""

import heapq
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import assert_never

from molink_scheduler.batch import Batch, BatchClass, Release, Span
from molink_scheduler.drafting.asks import AskDrafts, DraftAsk
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    BlocksRead,
    CacheChanged,
    CacheCleared,
    CapacityChosen,
    Decision,
    FetchArrived,
    Refuse,
    ReleaseArrived,
    RequestCancelled,
    RequestSubmitted,
    RunBatch,
    SampledToken,
    SendCacheChange,
    SendCapacity,
    SendFetched,
    SendRelease,
    SendRows,
    SendTokens,
    StageEvent,
    WaitUntil,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.blocks import KvBlocks, blocks_for
from molink_scheduler.kv.changes import CacheChange, FetchBlocks, LowerBlocks
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import FILE, HOST, CacheTiers
from molink_scheduler.request import ModelLimits, Request
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.queue import StageQueue
from tests.scheduler.fake_stage import AlwaysSlow, FakeStage, NothingGrows, chained
from tests.scheduler.seeded_drafter import SeededDrafter, SeededTail, terms_of

ANY_MODEL = ModelLimits(sequence_tokens_max=1 << 20, vocabulary_size=1 << 20)


@dataclass
class FakeRing:
    """Drives the cores from one seed until nothing is left to do."""

    seed: int
    stage_count: int
    kv_tokens: int
    micro_batch_count: int = 1
    span_tokens: int = 16
    prefill_tokens_in_flight_max: int = 64
    state_slots: int | None = None
    stage_rows: int = 16
    """Most rows of a prefill step behind the head."""
    prefix_cache: bool = False
    forecasts: bool = True
    """Whether the head expects answers to grow."""
    tiers: CacheTiers | None = None
    lost: float = 0.0
    """Chance of a cached block to be lost when it leaves device memory."""
    silent: frozenset[int] = frozenset()
    """Stages that never answer a fetch."""
    read_s: float = 0.5
    """The longest that a stage takes to read the blocks of a fetch."""
    state_snapshots: int = 0
    drafter: SeededDrafter | None = None
    tail_drafter: SeededTail | None = None
    draft_width_fixed: bool = True

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.now = 0.0
        self.head = HeadScheduler(
            HeadSettings(
                RingTerms(
                    self.kv_tokens,
                    self.micro_batch_count,
                    span_tokens=self.span_tokens,
                    state_slots=self.state_slots,
                    prefix_cache=self.prefix_cache,
                    tiers=self.tiers,
                    state_snapshots=self.state_snapshots,
                    draft_width_fixed=self.draft_width_fixed,
                    **terms_of(self.drafter, self.tail_drafter),
                ),
                prefill_tokens_in_flight_max=self.prefill_tokens_in_flight_max,
            )
        )
        if not self.forecasts:
            self.head.prompts.forecast = NothingGrows()
        if self.tiers is not None:
            self.head.book.fetches.pace = AlwaysSlow()
        self.fetches = 0
        self.stages = [self.stage(index) for index in range(self.stage_count)]
        self.events: list = []
        self.ids = itertools.count()
        self.link_free_at: dict[tuple[int, BatchClass], float] = {}
        self.answers: dict[int, list[int]] = {}
        self.requests: dict[int, Request] = {}
        self.chains: dict[int, list[int]] = {}
        self.ended: list[int] = []
        self.preemptions = 0
        self.decode_sizes: list[int] = []
        self.prefill_spans: list[tuple[int, Span]] = []
        """With the number of the stage that computed them."""
        self.interrupts = 0
        self.prefill_in_flight = 0
        self.tail_link_free_at = 0.0
        self.until = float("inf")

    def stage(self, index: int) -> FakeStage:
        blocks = blocks_for(self.kv_tokens)
        ledger = KvLedger(blocks, self.state_slots)
        book = StageBook.of(BlockTable.of(ledger, self.tiers), ANY_MODEL, self.state_snapshots)
        cut_tokens = self.head.settings.ring.cut_tokens
        queue = StageQueue.for_steps_of(self.stage_rows, book, cut_tokens)
        core = StageCore(queue if index else self.head, index == self.stage_count - 1)
        return FakeStage(core, KvBlocks(blocks), self.state_slots)

    def submit_at(self, at: float, request: Request) -> None:
        self.requests[request.request_id] = request
        self.answers[request.request_id] = []
        chain = itertools.accumulate(self.text(request.request_id), chained, initial=0)
        self.chains[request.request_id] = list(chain)[1:]
        self.push(at, lambda: self.receive(0, RequestSubmitted(request)))

    def cancel_at(self, at: float, request_id: int) -> None:
        self.push(at, lambda: self.receive(0, RequestCancelled(request_id)))

    def clear_at(self, at: float) -> None:
        self.push(at, lambda: self.receive(0, CacheCleared()))

    def push(self, at: float, action) -> None:
        heapq.heappush(self.events, (at, next(self.ids), action))

    def stop_at(self, at: float) -> None:
        """Leave what happens later undone."""
        self.until = at

    def run(self) -> None:
        while self.events and self.events[0][0] <= self.until:
            self.now, _, action = heapq.heappop(self.events)
            action()
            self.start_idle_devices()

    def receive(self, index: int, event: StageEvent) -> None:
        self.carry_out(index, self.stages[index].core.received(event, self.now))

    def carry_out(self, index: int, decisions: Iterable[Decision]) -> RunBatch | None:
        """All but the batch that is to be computed, which comes back."""
        for decision in decisions:
            match decision:
                case AskDrafts(asks):
                    self.ask(asks)
                case SendRelease(release):
                    self.release(index, release)
                case SendCacheChange(change):
                    self.change_cache(index, change)
                    if index + 1 < self.stage_count:
                        self.send(index, BatchClass.DECODE, CacheChanged(change))
                case SendCapacity():
                    self.give_back(index, decision)
                case SendFetched(fetched):
                    self.send_fetched(index, FetchArrived(fetched))
                case RunBatch():
                    return decision
                case WaitUntil(at):
                    if at > self.now:
                        self.push(at, lambda: None)
                case Refuse(reason):
                    raise AssertionError(f"stage {index} refused: {reason}")
                case _:
                    assert_never(decision)
        return None

    def ask(self, asks: Iterable[DraftAsk]) -> None:
        for after_s, event in self.drafter.answers(asks, self.text):
            self.push(self.now + after_s, partial(self.receive, 0, event))

    def text(self, request_id: int) -> list[int]:
        return [*self.requests[request_id].prompt_ids, *self.expected_answer(request_id)]

    def change_cache(self, index: int, change: CacheChange) -> None:
        stage = self.stages[index]
        stage.change_cache(change)
        for number in change.numbers if isinstance(change, LowerBlocks) else ():
            if self.random.random() < self.lost:
                stage.away[number] = []
        if isinstance(change, FetchBlocks):
            self.fetches += index == 0
            read = BlocksRead(stage.fetch(change))
            at = self.now + self.random.uniform(0.0, self.read_s)
            if index not in self.silent:
                self.push(at, lambda: self.receive(index, read))

    def give_back(self, index: int, word: SendCapacity) -> None:
        self.stages[index].kv.resize(word.blocks)  # Raises ValueError where more are held.
        if index + 1 < self.stage_count:
            self.send(index, BatchClass.DECODE, CapacityChosen(word.capacity))

    def send_fetched(self, index: int, event: FetchArrived) -> None:
        if index + 1 < self.stage_count:
            self.send(index, BatchClass.DECODE, event)
        else:
            self.push(self.now + self.random.uniform(0.01, 0.2), lambda: self.receive(0, event))

    def release(self, index: int, release: Release) -> None:
        if index == 0 and release.request_id not in self.ended:
            self.preemptions += len(self.answers[release.request_id]) > 0
        if index == 0 and self.drafter:
            self.drafter.forget(release.request_id)
        self.stages[index].release(release)
        if index + 1 < self.stage_count:
            self.send(index, BatchClass.DECODE, ReleaseArrived(release))

    def send(self, index: int, batch_class: BatchClass, event: StageEvent) -> None:
        """Over a link that keeps each class in order, and lets decode overtake prefill only."""
        not_before = [self.link_free_at.get((index, BatchClass.DECODE), 0.0)]
        if batch_class is BatchClass.PREFILL:
            not_before.append(self.link_free_at.get((index, BatchClass.PREFILL), 0.0))
        at = max(self.now + self.random.uniform(0.01, 0.2), max(not_before) + 1e-6)
        self.link_free_at[index, batch_class] = at
        self.push(at, lambda: self.receive(index + 1, event))

    def start_idle_devices(self) -> None:
        for index, stage in enumerate(self.stages):
            if not stage.busy:
                self.start(index, stage)
            while stage.busy and stage.interruptible:
                run = self.carry_out(index, stage.core.between_layers(self.now))
                if run is None:
                    break
                self.interrupts += 1
                self.compute(index, stage, run)
                self.computed(index, stage, run, 0.0)

    def start(self, index: int, stage: FakeStage) -> None:
        run = self.carry_out(index, stage.core.next_step(0.0, self.now))
        if run is not None:
            self.compute(index, stage, run)
            stage.busy, stage.interruptible = True, run.batch.batch_class is BatchClass.PREFILL
            step_s = self.random.uniform(0.001, 0.02)
            self.push(self.now + step_s, lambda: self.end(index, stage, run, step_s))

    def end(self, index: int, stage: FakeStage, run: RunBatch, step_s: float) -> None:
        stage.busy = False
        self.computed(index, stage, run, step_s)

    def compute(self, index: int, stage: FakeStage, run: RunBatch) -> None:
        batch = run.batch
        stage.compute(batch, self.chains)
        if batch.batch_class is BatchClass.PREFILL:
            self.prefill_spans += [(index, span) for span in batch.spans]
        if index:
            assert sum(piece.end - piece.start for piece in run.pieces) == batch.tokens
            return
        assert len(run.token_ids) == batch.tokens
        if batch.batch_class is BatchClass.DECODE:
            assert all(span.tokens == 1 + len(span.drafts) for span in batch.spans)
            assert all(span.samples for span in batch.spans)
            self.decode_sizes.append(len(batch.spans))
        else:
            assert batch.tokens <= self.span_tokens
            self.prefill_in_flight += batch.tokens
            assert self.prefill_in_flight <= self.prefill_tokens_in_flight_max

    def computed(self, index: int, stage: FakeStage, run: RunBatch, step_s: float) -> None:
        match stage.core.computed(run, step_s, 0.0, self.now):
            case SendRows(batch):
                self.send(index, batch.batch_class, BatchArrived(batch))
            case SendTokens(batch):
                at = max(self.now + self.random.uniform(0.01, 0.2), self.tail_link_free_at + 1e-6)
                self.tail_link_free_at = at
                event = self.sample(batch)
                self.push(at, lambda: self.returned(event))
        stage.core.finished(run, step_s, self.now)

    def sample(self, batch: Batch) -> BatchReturned:
        event = BatchReturned(
            batch.batch_class,
            batch.micro_batch,
            batch.spans,
            tuple(token for span in batch.spans if span.samples for token in self.verified(span)),
            batch.stamps,
        )
        if self.tail_drafter is None:
            assert self.drafter or not any(span.wants for span in batch.spans)
            return event
        return self.tail_drafter.home(event, self.text)

    def verified(self, span: Span) -> Iterator[SampledToken]:
        for position, draft in enumerate((*span.drafts, None), span.known_end):
            yield (token := self.draw(span.request_id, position))
            if token.finished or token.token_id != draft:
                return

    def draw(self, request_id: int, position: int) -> SampledToken:
        request = self.requests[request_id]
        finished = position - request.prompt_tokens + 1 >= request.sampling.max_tokens
        return SampledToken(request_id, 1000 * request_id + position, finished)

    def returned(self, event: BatchReturned) -> None:
        if event.batch_class is BatchClass.PREFILL:
            self.prefill_in_flight -= sum(span.tokens for span in event.spans)
        for token in event.sampled:
            self.answers[token.request_id].append(token.token_id)
            if token.finished:
                self.ended.append(token.request_id)
        self.receive(0, event)

    def expected_answer(self, request_id: int) -> list[int]:
        request = self.requests[request_id]
        start = request.prompt_tokens
        positions = range(start, start + request.sampling.max_tokens)
        return [1000 * request_id + position for position in positions]

    def assert_nothing_left(self) -> None:
        assert self.head.running_count == self.head.waiting_count == 0
        assert not self.head.kv.holders()
        self.assert_caches_agree()
        for stage in self.stages:
            assert not stage.kv.holders() and not stage.computed
        for stage in self.stages[1:]:
            assert not len(stage.core.source.order) and not stage.core.source.book.kv.holders()

    def assert_caches_agree(self) -> None:
        """All stages hold as many cached blocks as the head's directory says."""
        book = self.head.book
        cached = book.cache.tree.blocks
        assert book.ledger.blocks_cached == cached
        assert book.ledger.blocks_free + cached == book.ledger.blocks_total
        for stage in self.stages:
            assert stage.kv.blocks_free + cached == stage.kv.blocks_total
        if (places := book.cache.states) is not None:
            assert places.count + len(places._free) == places.capacity
        away = sum(book.cache.tree.blocks_in[1:])
        assert not book.fetches.under_way
        for stage in self.stages:
            assert len(stage.away) == away
        for stage in self.stages[1:]:
            assert stage.core.source.book.kv.blocks_cached == cached
            assert sum(map(stage.core.source.book.table.count, (HOST, FILE))) == away
