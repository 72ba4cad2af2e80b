"""The compared systems' head and stages: every micro-batch is an engine of its own, one step at a
time.

As vLLM 0.7 does pipeline parallelism: as many schedulers as micro-batches, each with its share of
the KV memory and of the requests. One of them has one batch under way; when it is back the next is
planned: the prompts that wait, whole, as many as a step may have tokens, or else one token for each
of its running requests. So a prompt stands in for the decode of its micro-batch, whose users wait
for as long as the prompt takes round the ring. Under pressure the newest request is recomputed.

Baselines, no decisions of ours: those are `HeadScheduler` and `StageQueue` of `molink_scheduler`.
"""

from collections import deque
from dataclasses import dataclass, field

from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, BatchClass, Release, Span
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    Piece,
    ReleaseArrived,
    RequestSubmitted,
    RunBatch,
    SendRelease,
    StageEvent,
)
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.blocks import BLOCK_TOKENS, blocks_for
from molink_scheduler.kv.capacity import StageRoom
from molink_scheduler.timing.steps import DecodeClock

STEP_TOKENS_MAX = 2048
"""The least that vLLM takes as `max_num_batched_tokens` without chunked prefill; a longer prompt
goes alone. A model of 8,192 tokens gets as many unless told otherwise, which up to 0.3 requests per
second changes no mean by a tenth (docs/benchmarks/simulator.md)."""


@dataclass(slots=True)
class _Engine:
    """Engine of one micro-batch."""

    number: int
    blocks_free: int
    waiting: deque[Sequence] = field(default_factory=deque)
    running: dict[int, Sequence] = field(default_factory=dict)
    """Sequences that run, by request, in order of admission."""
    under_way: bool = False
    computes_prompts: bool = False
    """Whether that batch is one of prompts."""

    @property
    def requests(self) -> int:
        """Number of requests that have not ended."""
        return len(self.waiting) + len(self.running)


@dataclass(slots=True)
class IterationHead:
    """The requests of one ring, from arrival to their last token; a `WorkSource`."""

    kv_tokens_capacity: int
    micro_batch_count: int
    prompts_alone: bool = False
    """Whether no engine begins prompts while those of another one are under way."""
    clock: DecodeClock = field(init=False, default_factory=DecodeClock)
    wait_until: float | None = field(init=False, default=None)
    """Time to ask again, never: only a message brings work."""
    room: StageRoom = field(default_factory=lambda: StageRoom(1))
    """Room of its stage, which never changes."""
    _engines: list[_Engine] = field(init=False)
    _idle: deque[_Engine] = field(init=False)
    """Engines without a batch under way, the longest idle first."""
    _next_batch_id: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        blocks = self.kv_tokens_capacity // BLOCK_TOKENS // self.micro_batch_count
        self._engines = [_Engine(number, blocks) for number in range(self.micro_batch_count)]
        self._idle = deque(self._engines)

    @property
    def tokens_max(self) -> int:
        """Largest request that an engine can hold, with room for the token to come."""
        blocks = self.kv_tokens_capacity // BLOCK_TOKENS // self.micro_batch_count
        return blocks * BLOCK_TOKENS - 1

    @property
    def decode_rows_waiting(self) -> int:
        """Rows of the next batch, if it is one of decode."""
        engine = self._idle[0] if self._idle else None
        return len(engine.running) if engine is not None and not engine.waiting else 0

    def computed_tokens(self) -> dict[int, int]:
        """Nothing that outlives a lost stage."""
        return {}

    def handle(self, event: StageEvent, now: float) -> list[SendRelease]:
        """Take one event into account."""
        if isinstance(event, RequestSubmitted):
            engine = min(self._engines, key=lambda engine: engine.requests)
            engine.waiting.append(Sequence(event.request))
            return []
        assert isinstance(event, BatchReturned), "the compared systems' users are patient"
        return self._return(event, now)

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[list[SendRelease], RunBatch | None]:
        """The next batch for a free device, of the engine that has been idle for longest."""
        releases: list[SendRelease] = []
        for _ in range(len(self._idle)):
            engine = self._idle.popleft()
            run = self._prefill(engine) or self._decode(engine, releases)
            if run is not None:
                engine.under_way = True
                engine.computes_prompts = run.batch.batch_class is PREFILL
                return releases, run
            self._idle.append(engine)
        return releases, None

    def next_decode(self, now: float) -> tuple[list[SendRelease], RunBatch | None]:
        """Nothing interrupts a step."""
        return [], None

    def computed(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        """Nothing depends on it."""

    def _return(self, event: BatchReturned, now: float) -> list[SendRelease]:
        engine = self._engines[event.micro_batch]
        engine.under_way = engine.computes_prompts = False
        self._idle.append(engine)
        if event.batch_class is DECODE:
            self.clock.seen(event.micro_batch, now)
        sampled = {token.request_id: token for token in event.sampled}
        releases: list[SendRelease] = []
        for request_id, token in sampled.items():
            sequence = engine.running[request_id]
            sequence.known.append(token.token_id)
            sequence.decoding = True
            if token.finished:
                releases.append(_leave(engine, sequence))
        return releases

    def _prefill(self, engine: _Engine) -> RunBatch | None:
        if self.prompts_alone and any(other.computes_prompts for other in self._engines):
            return None
        taken: list[Sequence] = []
        tokens = 0
        while engine.waiting and self._fits(engine, engine.waiting[0], tokens):
            sequence = engine.waiting.popleft()
            tokens += len(sequence.known)
            engine.blocks_free -= blocks_for(len(sequence.known) + 1)
            engine.running[sequence.request_id] = sequence
            taken.append(sequence)
        admissions = [sequence.admission() for sequence in taken]
        spans = [sequence.take_span(len(sequence.known)) for sequence in taken]
        return self._run(PREFILL, engine, spans, admissions) if taken else None

    def _fits(self, engine: _Engine, sequence: Sequence, tokens: int) -> bool:
        within_step = tokens == 0 or tokens + len(sequence.known) <= STEP_TOKENS_MAX
        return within_step and blocks_for(len(sequence.known) + 1) <= engine.blocks_free

    def _decode(self, engine: _Engine, releases: list[SendRelease]) -> RunBatch | None:
        for request_id, sequence in list(engine.running.items()):
            if request_id in engine.running:
                self._grow(engine, sequence, releases)
        spans = [sequence.take_span(1) for sequence in engine.running.values()]
        return self._run(DECODE, engine, spans, []) if spans else None

    def _grow(self, engine: _Engine, sequence: Sequence, releases: list[SendRelease]) -> None:
        """Take a block if the token to come begins one; the newest gives way."""
        if len(sequence.known) % BLOCK_TOKENS:
            return
        while engine.blocks_free < 1:
            newest = next(reversed(engine.running.values()))
            releases.append(_leave(engine, newest))
            newest.forget_computed()
            engine.waiting.appendleft(newest)
            if newest is sequence:
                return
        engine.blocks_free -= 1

    def _run(
        self,
        batch_class: BatchClass,
        engine: _Engine,
        spans: list[Span],
        admissions: list[Admission],
    ) -> RunBatch:
        batch = Batch(
            self._next_batch_id, batch_class, engine.number, tuple(spans), tuple(admissions)
        )
        self._next_batch_id += 1
        return RunBatch(batch, (0,) * batch.tokens)


def _leave(engine: _Engine, sequence: Sequence) -> SendRelease:
    """Take a sequence out, and its blocks back: those of what it knows and the token to come."""
    del engine.running[sequence.request_id]
    engine.blocks_free += blocks_for(len(sequence.known))
    return SendRelease(Release(sequence.request_id))


@dataclass(slots=True)
class FifoStageQueue:
    """A stage of the compared systems: batches in the order in which the head planned them.

    vLLM 0.7 calls its workers in that order, and a worker that is called waits for the rows of just
    this batch: decode that arrives while a prompt is on its way to the stage stays behind it.
    """

    clock: DecodeClock = field(default_factory=DecodeClock)
    wait_until: float | None = None
    room: StageRoom = field(default_factory=lambda: StageRoom(1))
    """Room of its stage, which never changes."""
    _batches: dict[int, Batch] = field(init=False, default_factory=dict)
    _next_id: int = field(init=False, default=0)

    @property
    def decode_rows_waiting(self) -> int:
        """Rows of the batch whose turn it is, once it has come, if it is one of decode."""
        batch = self._batches.get(self._next_id)
        return batch.tokens if batch is not None and batch.batch_class is DECODE else 0

    def computed_tokens(self) -> dict[int, int]:
        """Nothing that outlives a lost stage."""
        return {}

    def handle(self, event: StageEvent, now: float) -> list[SendRelease]:
        """Keep a batch until its turn; pass a release on."""
        if isinstance(event, BatchArrived):
            if event.batch.batch_class is DECODE:
                self.clock.seen(event.batch.micro_batch, now)
            self._batches[event.batch.batch_id] = event.batch
            return []
        assert isinstance(event, ReleaseArrived)
        return [SendRelease(event.release)]

    def next_batch(
        self, link_bytes_per_s: float, now: float
    ) -> tuple[list[SendRelease], RunBatch | None]:
        """The batch whose turn it is, once it has come."""
        batch = self._batches.pop(self._next_id, None)
        if batch is None:
            return [], None
        self._next_id += 1
        return [], RunBatch(batch, (), (Piece(0, 0, batch.tokens),))

    def next_decode(self, now: float) -> tuple[list[SendRelease], RunBatch | None]:
        """Nothing interrupts a step."""
        return [], None

    def computed(self, run: RunBatch, elapsed_s: float, now: float) -> None:
        """Nothing depends on it."""
