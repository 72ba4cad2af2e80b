"""A ring in virtual time: one real head core, real stage cores, and links with seeded delays."""

import heapq
import itertools
from dataclasses import dataclass, field
from random import Random

import pytest

from molink_scheduler.batch import Batch, BatchClass, Release
from molink_scheduler.events import (
    BatchReturned,
    RequestCancelled,
    RequestSubmitted,
    SampledToken,
    SendRelease,
)
from molink_scheduler.head.scheduler import HeadScheduler, HeadSettings
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import KvBlocks, blocks_for
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.stage.batch_pieces import join_batches
from molink_scheduler.stage.order import StageOrder
from molink_scheduler.timing.decode_clock import DecodeClock
from molink_scheduler.timing.prefill_budget import PrefillBudget
from molink_scheduler.timing.step_profile import StepProfile


@dataclass
class FakeStage:
    """A stage's pure half: order, KV blocks, and how far each request is computed."""

    kv: KvBlocks
    order: StageOrder[None]
    busy: bool = False
    interruptible: bool = False
    computed: dict[int, int] = field(default_factory=dict)
    batches_by_class: list[BatchClass] = field(default_factory=list)

    def compute(self, batch: Batch) -> None:
        for admission in batch.admissions:
            assert self.computed.get(admission.request_id, 0) == 0, "admitted over live KV"
        for span in batch.spans:
            assert span.start == self.computed.get(span.request_id, 0), "a span overtook another"
            self.computed[span.request_id] = span.end
            self.kv.grow(span.request_id, span.end)  # raises OutOfBlocks if the head was wrong
        self.batches_by_class.append(batch.batch_class)

    def release(self, release: Release) -> None:
        self.computed.pop(release.request_id, None)
        self.kv.release(release.request_id)


@dataclass
class FakeRing:
    """Drives the cores from one seed until nothing is left to do."""

    seed: int
    stage_count: int
    kv_tokens: int
    micro_batch_count: int = 1
    span_tokens: int = 16
    prefill_tokens_in_flight_max: int = 64

    def __post_init__(self) -> None:
        self.random = Random(self.seed)
        self.now = 0.0
        self.head = HeadScheduler(
            HeadSettings(
                RingTerms(self.kv_tokens, self.micro_batch_count, span_tokens=self.span_tokens),
                prefill_tokens_in_flight_max=self.prefill_tokens_in_flight_max,
            )
        )
        blocks = blocks_for(self.kv_tokens)
        self.stages = [
            FakeStage(KvBlocks(blocks), StageOrder(PrefillBudget(16, DecodeClock(), StepProfile())))
            for _ in range(self.stage_count)
        ]
        self.events: list = []
        self.ids = itertools.count()
        self.link_free_at: dict[tuple[int, BatchClass], float] = {}
        self.answers: dict[int, list[int]] = {}
        self.requests: dict[int, Request] = {}
        self.ended: list[int] = []
        self.preemptions = 0
        self.decode_sizes: list[int] = []
        self.interrupts = 0
        self.prefill_in_flight = 0
        self.tail_link_free_at = 0.0

    def submit_at(self, at: float, request: Request) -> None:
        self.requests[request.request_id] = request
        self.answers[request.request_id] = []
        self.push(at, lambda: self.handle(RequestSubmitted(request)))

    def cancel_at(self, at: float, request_id: int) -> None:
        self.push(at, lambda: self.handle(RequestCancelled(request_id)))

    def push(self, at: float, action) -> None:
        heapq.heappush(self.events, (at, next(self.ids), action))

    def run(self) -> None:
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
            self.start_idle_devices()

    def handle(self, event) -> None:
        self.carry(self.head.handle(event, self.now))

    def carry(self, releases: list[SendRelease]) -> None:
        for command in releases:
            if command.release.request_id not in self.ended:
                self.preemptions += len(self.answers[command.release.request_id]) > 0
            self.stages[0].release(command.release)
            self.send(0, BatchClass.DECODE, lambda s, c=command: self.forget(s, c.release))

    def forget(self, index: int, release: Release) -> None:
        self.stages[index].release(release)
        if index + 1 < self.stage_count:
            self.send(index, BatchClass.DECODE, lambda s: self.forget(s, release))

    def send(self, index: int, batch_class: BatchClass, action) -> None:
        """Over a link that keeps each class in order, and lets decode overtake prefill only."""
        target = (index + 1) % self.stage_count
        not_before = [self.link_free_at.get((index, BatchClass.DECODE), 0.0)]
        if batch_class is BatchClass.PREFILL:
            not_before.append(self.link_free_at.get((index, BatchClass.PREFILL), 0.0))
        at = max(self.now + self.random.uniform(0.01, 0.2), max(not_before) + 1e-6)
        self.link_free_at[index, batch_class] = at
        if index + 1 < self.stage_count:
            self.push(at, lambda: action(target))

    def start_idle_devices(self) -> None:
        for index, stage in enumerate(self.stages):
            if not stage.busy and (batch := self.next_batch(index)) is not None:
                stage.busy = True
                stage.compute(batch)
                stage.interruptible = batch.batch_class is BatchClass.PREFILL
                step_s = self.random.uniform(0.001, 0.02)
                self.push(self.now + step_s, lambda i=index, b=batch: self.computed(i, b))
                if stage.interruptible:
                    self.profile(index).observe(batch.tokens, step_s)
            while stage.busy and stage.interruptible and (batch := self.next_decode(index)):
                stage.compute(batch)
                self.interrupts += 1
                self.hand_on(index, batch)

    def profile(self, index: int) -> StepProfile:
        return self.stages[index].order.budget.profile if index else self.head.prompts.profile

    def next_batch(self, index: int) -> Batch | None:
        if index:
            order = self.stages[index].order
            pieces = order.next_pieces(self.now)
            self.wake_at(order.wait_until)
            return join_batches([piece.batch for piece in pieces]) if pieces else None
        releases, run = self.head.next_batch(self.now)
        self.wake_at(self.head.wait_until)
        self.carry(releases)
        if run is None:
            return None
        self.check_plan(run.batch, run.token_ids)
        return run.batch

    def next_decode(self, index: int) -> Batch | None:
        """What runs between two layers of a prefill step, in no time here."""
        if index:
            pieces = self.stages[index].order.next_decode()
            return join_batches([piece.batch for piece in pieces]) if pieces else None
        releases, run = self.head.next_decode(self.now)
        self.carry(releases)
        if run is None:
            return None
        self.check_plan(run.batch, run.token_ids)
        return run.batch

    def wake_at(self, at: float | None) -> None:
        if at is not None and at > self.now:
            self.push(at, lambda: None)

    def check_plan(self, batch: Batch, token_ids: tuple[int, ...]) -> None:
        assert len(token_ids) == batch.tokens
        if batch.batch_class is BatchClass.DECODE:
            assert all(span.tokens == 1 and span.samples for span in batch.spans)
            self.decode_sizes.append(len(batch.spans))
        else:
            assert batch.tokens <= self.span_tokens
            self.prefill_in_flight += batch.tokens
            assert self.prefill_in_flight <= self.prefill_tokens_in_flight_max

    def computed(self, index: int, batch: Batch) -> None:
        self.stages[index].busy = False
        self.hand_on(index, batch)

    def hand_on(self, index: int, batch: Batch) -> None:
        if index + 1 < self.stage_count:
            self.send(index, batch.batch_class, lambda s: self.arrive(s, batch))
        else:
            at = max(self.now + self.random.uniform(0.01, 0.2), self.tail_link_free_at + 1e-6)
            self.tail_link_free_at = at
            event = self.sample(batch)
            self.push(at, lambda: self.returned(event))

    def arrive(self, index: int, batch: Batch) -> None:
        self.stages[index].order.push(batch, None, self.now)

    def sample(self, batch: Batch) -> BatchReturned:
        return BatchReturned(
            batch.batch_class,
            batch.micro_batch,
            batch.spans,
            tuple(self.draw(span.request_id, span.end) for span in batch.spans if span.samples),
        )

    def draw(self, request_id: int, position: int) -> SampledToken:
        request = self.requests[request_id]
        finished = position - len(request.prompt) + 1 >= request.sampling.max_tokens
        return SampledToken(request_id, 1000 * request_id + position, finished)

    def returned(self, event: BatchReturned) -> None:
        if event.batch_class is BatchClass.PREFILL:
            self.prefill_in_flight -= sum(span.tokens for span in event.spans)
        for token in event.sampled:
            self.answers[token.request_id].append(token.token_id)
            if token.finished:
                self.ended.append(token.request_id)
        self.handle(event)

    def expected_answer(self, request_id: int) -> list[int]:
        request = self.requests[request_id]
        start = len(request.prompt)
        positions = range(start, start + request.sampling.max_tokens)
        return [1000 * request_id + position for position in positions]

    def assert_nothing_left(self) -> None:
        assert self.head.running_count == self.head.waiting_count == 0
        assert not self.head.kv.holders()
        for stage in self.stages:
            assert not stage.kv.holders() and not len(stage.order) and not stage.computed


@pytest.fixture(scope="session")
def make_ring():
    return FakeRing


@pytest.fixture(scope="session")
def make_request():
    def make(request_id: int, prompt_tokens: int, max_tokens: int, **sampling) -> Request:
        prompt = tuple(range(1, prompt_tokens + 1))
        return Request(request_id, prompt, SamplingParams(max_tokens=max_tokens, **sampling))

    return make
