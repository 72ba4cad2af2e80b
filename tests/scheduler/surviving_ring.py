"""A ring that loses stages: the real core of every stage, toy layers, links with seeded delays.

A toy layer's row at a position is a hash of all rows before it at that stage, so one wrong, missing
or doubled row of KV anywhere changes every later token. A token also depends on all that the tail
has drawn before, as penalties do.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from zlib import crc32

from molink_scheduler.batch import Batch, BatchClass, Span
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    Decision,
    KeepRows,
    Refuse,
    ReleaseArrived,
    RequestCancelled,
    RequestSubmitted,
    RunBatch,
    SampledToken,
    SendRelease,
    SendRows,
    SendTokens,
    StageEvent,
    WaitUntil,
)
from molink_scheduler.head.scheduler import HeadScheduler, HeadSettings
from molink_scheduler.head.settings import RingTerms
from molink_scheduler.kv.blocks import KvLedger, blocks_for
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.resume import Resume, requests_to_resume
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.stage.replay_log import ReplayLog, SentRows

VOCABULARY = 50_000
LIMITS = ModelLimits(1 << 20, VOCABULARY)
ROW_BYTES = 4


def mixed(*values: int) -> int:
    return crc32(repr(values).encode())


def toy_answer(prompt: tuple[int, ...], max_tokens: int, seed: int, stages: int) -> list[int]:
    """What a ring answers that loses nobody."""
    chains, drawn = [0] * stages, list[int]()
    for token in prompt:
        row = feed(chains, token)
    while True:
        drawn.append(draw(row, drawn, seed))
        if len(drawn) == max_tokens:
            return drawn
        row = feed(chains, drawn[-1])


def feed(chains: list[int], row: int) -> int:
    for index, chain in enumerate(chains):
        chains[index] = row = mixed(chain, row, index)
    return row


def draw(row: int, drawn: list[int], seed: int) -> int:
    return mixed(row, *drawn, seed) % VOCABULARY


@dataclass
class ToyStage:
    """One stage process: its core, its KV, its log."""

    index: int
    core: StageCore
    log: ReplayLog
    blocks: int
    kv: dict[int, list[int]] = field(default_factory=dict)
    rows: dict[int, list[int]] = field(default_factory=dict)
    histories: dict[int, tuple[list[int], SamplingParams]] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    """Tokens that it held when its ring lost another stage, of requests that it has not released
    since."""
    busy: bool = False
    rows_again: int = 0
    """Computed of positions that it held already when its ring lost another stage."""

    def compute(self, run: RunBatch) -> list[int]:
        inputs = list(run.token_ids)
        for message, start, end in run.pieces:
            inputs += self.rows[message][start:end]
        for admission in run.batch.admissions:
            if not admission.kept_tokens:
                self.kv[admission.request_id] = []
            self.histories[admission.request_id] = list(admission.output), admission.sampling
        outputs = []
        for span in run.batch.spans:
            outputs += self.compute_span(span, inputs[len(outputs) : len(outputs) + span.tokens])
        assert len(outputs) == len(inputs) == run.batch.tokens
        held = sum(blocks_for(len(chain)) for chain in self.kv.values())
        assert held <= self.blocks, "the head has planned more than there is room for"
        return outputs

    def compute_span(self, span: Span, inputs: list[int]) -> list[int]:
        chain = self.kv[span.request_id]
        assert span.start <= len(chain), "a gap in the KV"
        kept = self.kept.get(span.request_id, 0)
        self.rows_again += max(0, min(span.end, kept) - span.start)
        del chain[span.start :]
        for row in inputs:
            chain.append(mixed(chain[-1] if chain else 0, row, self.index))
        return chain[span.start :]

    def sampled(self, spans: Iterable[Span], rows: list[int]) -> tuple[SampledToken, ...]:
        tokens, row = [], 0
        for span in spans:
            row += span.tokens
            if span.samples:
                drawn, sampling = self.histories[span.request_id]
                drawn.append(draw(rows[row - 1], drawn, sampling.seed))
                is_last = len(drawn) == sampling.max_tokens
                tokens.append(SampledToken(span.request_id, drawn[-1], is_last))
        return tuple(tokens)

    def release(self, request_id: int) -> None:
        self.kv.pop(request_id, None)
        self.kept.pop(request_id, None)
        self.histories.pop(request_id, None)
        self.log.forget(request_id)


@dataclass
class Live:
    """A request as the coordinator keeps it."""

    number: int
    """Of the request, whatever its id is now."""
    prompt: tuple[int, ...]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    held_tokens: int = 0

    def submit(self, request_id: int) -> RequestSubmitted:
        return RequestSubmitted(Request(request_id, self.prompt, self.sampling, tuple(self.tokens)))


@dataclass
class SurvivingRing:
    """Drives all from one seed until nothing is left to do."""

    seed: int
    stage_count: int
    kv_tokens: int = 4096
    log_bytes: float = 1e9
    micro_batches: int = 1

    def __post_init__(self) -> None:
        self.random, self.now, self.epoch = Random(self.seed), 0.0, 0
        self.events: list = []
        self.ids, self.request_ids, self.messages = (itertools.count(1) for _ in range(3))
        self.free_at: dict[tuple[int, BatchClass], float] = {}
        self.live: dict[int, Live] = {}
        self.answers: dict[int, list[int]] = {}
        self.gone: set[int] = set()
        """Stages that are lost and not replaced yet."""
        self.missing = self.resumed = self.losses = 0
        self.is_joined, self.told_at = True, 0.0
        resume = Resume()
        self.stages = [self.new_stage(index, resume) for index in range(self.stage_count)]

    # -- stages ----------------------------------------------------------------------------------

    def new_stage(self, index: int, resume: Resume) -> ToyStage:
        log = ReplayLog(self.log_bytes)
        return ToyStage(index, self.core(index, resume), log, blocks_for(self.kv_tokens))

    def core(self, index: int, resume: Resume, missing: frozenset[int] = frozenset()) -> StageCore:
        if index == 0:
            terms = RingTerms(self.kv_tokens, self.micro_batches, span_tokens=8)
            source = HeadScheduler(HeadSettings(terms, limits=LIMITS), resume, missing)
        else:
            book = StageBook(KvLedger(blocks_for(self.kv_tokens)), LIMITS)
            book.resume(resume)
            source = StageQueue.for_steps_of(8, book)
        return StageCore(source, index == self.stage_count - 1, resume)

    def computed_tokens(self, stage: ToyStage) -> dict[int, int]:
        source = stage.core.source
        book = source if stage.index == 0 else source.book
        return book.computed_tokens()

    def join(self, stage: ToyStage, resume: Resume) -> tuple[int, ...]:
        """A survivor enters the next epoch; what it cannot go on with."""
        missing = resume.missing(self.computed_tokens(stage), stage.log.has)
        resume = resume.without(missing)
        for request_id in stage.kv.keys() - dict(resume.requests).keys():
            stage.release(request_id)
        stage.log.go_on(resume)
        for request_id, tokens in resume.requests if not resume.fresh else ():
            del stage.kv[request_id][tokens:]
        stage.kept = dict(resume.requests)
        stage.rows.clear()
        stage.core, stage.busy = self.core(stage.index, resume, frozenset(missing)), False
        return missing

    # -- time ------------------------------------------------------------------------------------

    def push(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (at, next(self.ids), action))

    def run(self) -> None:
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
            for stage in self.stages:
                if not stage.busy and stage.index not in self.gone:
                    self.start(stage)

    def send(self, index: int, batch_class: BatchClass, event: StageEvent) -> None:
        """Over the link that leaves a stage: each class in order, decode overtakes prefill."""
        last = [self.free_at.get((index, BatchClass.DECODE), 0.0)]
        if batch_class is BatchClass.PREFILL:
            last.append(self.free_at.get((index, BatchClass.PREFILL), 0.0))
        at = max(self.now + self.random.uniform(0.01, 0.2), max(last) + 1e-6)
        self.free_at[index, batch_class] = at
        following, epoch = (index + 1) % self.stage_count, self.epoch
        self.push(at, lambda: self.receive(following, event, epoch))

    def receive(self, index: int, event: StageEvent, epoch: int) -> None:
        if epoch == self.epoch and index not in self.gone:
            stage = self.stages[index]
            self.carry_out(stage, stage.core.received(event, self.now))

    # -- a stage's loop --------------------------------------------------------------------------

    def start(self, stage: ToyStage) -> None:
        run = self.carry_out(stage, stage.core.next_step(0.0, self.now))
        if run is not None:
            rows, core, step_s = stage.compute(run), stage.core, self.random.uniform(0.001, 0.02)
            stage.busy = True
            self.push(self.now + step_s, lambda: self.end(stage, core, run, rows, step_s))

    def end(self, stage: ToyStage, core: StageCore, run: RunBatch, rows: list, step_s: float):
        if stage.core is not core or stage is not self.stages[stage.index]:
            return  # Its ring is in another epoch by now, or it is lost.
        stage.busy = False
        if stage.index not in self.gone:
            self.pass_on(stage, core.computed(run, step_s, 0.0, self.now), rows)
            core.finished(run, step_s, self.now)

    def carry_out(self, stage: ToyStage, decisions: Iterable[Decision]) -> RunBatch | None:
        for decision in decisions:
            match decision:
                case RunBatch():
                    return decision
                case SendRelease(release):
                    stage.release(release.request_id)
                    if not stage.core.is_tail:
                        self.send(stage.index, BatchClass.DECODE, ReleaseArrived(release))
                case WaitUntil(at):
                    self.push(max(at, self.now + 1e-6), lambda: None)
                case Refuse(reason):
                    raise AssertionError(f"stage {stage.index} refused: {reason}")
        return None

    def pass_on(self, stage: ToyStage, decision, rows: list[int]) -> None:
        match decision:
            case SendTokens(batch):
                sampled = stage.sampled(batch.spans, rows)
                returned = BatchReturned(
                    batch.batch_class, batch.micro_batch, batch.spans, sampled, batch.stamps
                )
                self.send(stage.index, BatchClass.DECODE, returned)
                epoch, at = self.epoch, self.now + self.random.uniform(0.01, 0.3)
                self.told_at = at = max(at, self.told_at + 1e-6)
                self.push(at, lambda: self.told(sampled, epoch))
            case KeepRows(batch):
                self.log_rows(stage, batch, rows)
            case SendRows(batch, _, replays):
                for admission in replays:
                    self.replay(stage, batch, admission)
                self.log_rows(stage, batch, rows)
                self.send_rows(stage, batch, rows)

    def replay(self, stage: ToyStage, batch: Batch, admission) -> None:
        for piece, sent in stage.log.batches(batch, admission, 8):
            self.send_rows(stage, piece, unpacked(sent.rows))

    def send_rows(self, stage: ToyStage, batch: Batch, rows: list[int]) -> None:
        number, following = next(self.messages), self.stages[stage.index + 1]
        following.rows[number] = rows
        self.send(stage.index, batch.batch_class, BatchArrived(batch, number))

    def log_rows(self, stage: ToyStage, batch: Batch, rows: list[int]) -> None:
        row = 0
        for span in batch.spans:
            packed = b"".join(
                value.to_bytes(ROW_BYTES, "big") for value in rows[row : row + span.tokens]
            )
            stage.log.add(span.request_id, SentRows(span.start, span.end, packed))
            row += span.tokens

    # -- the coordinator -------------------------------------------------------------------------

    def submit_at(self, at: float, prompt_tokens: int, max_tokens: int, seed: int) -> None:
        number = len(self.answers)
        prompt = tuple(self.random.randrange(VOCABULARY) for _ in range(prompt_tokens))
        self.answers[number] = toy_answer(prompt, max_tokens, seed, self.stage_count)
        live = Live(number, prompt, SamplingParams(max_tokens, seed=seed))
        self.push(at, lambda: self.submit(live))

    def submit(self, live: Live) -> None:
        request_id = next(self.request_ids)
        self.live[request_id] = live
        if self.is_joined:
            self.to_head(live.submit(request_id))

    def cancel_at(self, at: float, number: int) -> None:
        self.push(at, lambda: self.cancel(number))

    def cancel(self, number: int) -> None:
        for request_id, live in list(self.live.items()):
            if live.number == number:
                del self.live[request_id]
                if self.is_joined:
                    self.to_head(RequestCancelled(request_id))

    def to_head(self, event: StageEvent) -> None:
        epoch = self.epoch
        at = max(self.now + 0.01, self.free_at.get((-1, BatchClass.DECODE), 0.0) + 1e-6)
        self.free_at[-1, BatchClass.DECODE] = at
        self.push(at, lambda: self.receive(0, event, epoch))

    def told(self, sampled: tuple[SampledToken, ...], epoch: int) -> None:
        for token in sampled if epoch == self.epoch and self.is_joined else ():
            live = self.live.get(token.request_id)
            if live is None:
                continue
            live.tokens.append(token.token_id)
            live.held_tokens = len(live.prompt) + len(live.tokens) - 1
            if token.finished:
                del self.live[token.request_id]
                assert live.tokens == self.answers[live.number], f"request {live.number}"
                self.answers[live.number] = []

    def lose_at(self, at: float, stages: set[int], refill_s: float) -> None:
        self.push(at, lambda: self.lose(stages, refill_s))

    def lose(self, stages: set[int], refill_s: float) -> None:
        self.losses += 1
        self.gone |= stages
        self.is_joined = False
        loss = self.losses
        self.push(self.now + refill_s, lambda: self.refill(loss))

    def refill(self, loss: int) -> None:
        """All stages enter the next epoch, unless another one was lost meanwhile."""
        if loss != self.losses:
            return
        self.epoch += 1
        requests = requests_to_resume(
            {one: live.held_tokens for one, live in self.live.items()}, self.kv_tokens
        )
        missing: set[int] = set()
        for index in range(self.stage_count):
            following = (index + 1) % self.stage_count
            resume = Resume(requests, index in self.gone, following in self.gone and following > 0)
            if index in self.gone:
                self.stages[index] = self.new_stage(index, resume)
            else:
                missing |= set(self.join(self.stages[index], resume))
        self.gone, self.is_joined = set(), True
        self.missing += len(missing)
        self.resumed += len(requests) - len(missing)
        self.submit_all(dict(requests).keys() - missing, missing)

    def submit_all(self, resumed: set[int], missing: set[int]) -> None:
        for request_id in missing:
            self.to_head(RequestCancelled(request_id))
        for request_id, live in list(self.live.items()):
            if request_id not in resumed:
                del self.live[request_id]
                self.submit(live)
                continue
            live.held_tokens = 0
            self.to_head(live.submit(request_id))

    def assert_all_answered(self) -> None:
        assert not self.live
        for stage in self.stages:
            assert not stage.kv, f"stage {stage.index} holds KV of {set(stage.kv)}"
            source = stage.core.source
            ledger = source.kv if stage.index == 0 else source.book.kv
            assert not ledger.holders()
            assert stage.log.bytes_held == 0


def unpacked(rows: bytes) -> list[int]:
    starts = range(0, len(rows), ROW_BYTES)
    return [int.from_bytes(rows[start : start + ROW_BYTES], "big") for start in starts]
