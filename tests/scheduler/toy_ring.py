"""A ring of toy stages: the real core of each, toy layers, links with seeded delays."""

import heapq
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random

from molink_scheduler.batch import Batch, BatchClass
from molink_scheduler.drafting.asks import AskDrafts, DraftAsk
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    BlocksRead,
    CacheChanged,
    Decision,
    FetchArrived,
    KeepRows,
    Refuse,
    ReleaseArrived,
    RequestCancelled,
    RequestSubmitted,
    RunBatch,
    SampledToken,
    SendCacheChange,
    SendFetched,
    SendRelease,
    SendRows,
    SendTokens,
    StageEvent,
    WaitUntil,
)
from molink_scheduler.head.kept_requests import KeptRequests
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import STATE_CHUNK_TOKENS, HeadSettings, RingTerms
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.kv.changes import NOWHERE, AwayBlocks, FetchBlocks, Fetched
from molink_scheduler.kv.layer_class import LayerClass, WindowBlocks
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import CacheTiers
from molink_scheduler.prompt_cut import PromptCut
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.resume import Resume
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.fake_stage import AlwaysSlow
from tests.scheduler.seeded_drafter import SeededDrafter, SeededTail, terms_of
from tests.scheduler.toy_books import assert_books_agree
from tests.scheduler.toy_folds import ToyFolds
from tests.scheduler.toy_stage import (
    VOCABULARY,
    ToyLayers,
    ToyStage,
    ToyWindows,
    log_rows,
    toy_answer,
    unpacked,
)

LIMITS = ModelLimits(1 << 20, VOCABULARY)

WINDOW_SLOTS, WINDOW_SNAPSHOTS = 5, 3
"""Requests, and snapshots, for which layers with a window have room."""


@dataclass
class Live:
    """A request as the coordinator keeps it."""

    number: int
    """Of the request, whatever its id is now."""
    prompt: tuple[int, ...]
    sampling: SamplingParams
    tokens: list[int] = field(default_factory=list)
    held_tokens: int = 0

    @property
    def resumable_tokens(self) -> int:
        is_cut = PromptCut.of(len(self.prompt), self.sampling.kv_budget).is_cut
        return 0 if is_cut else self.held_tokens

    def submit(self, request_id: int) -> RequestSubmitted:
        return RequestSubmitted(
            Request(request_id, token_bytes(self.prompt), self.sampling, tuple(self.tokens))
        )


@dataclass
class ToyRing:
    """Drives a ring from one seed until nothing is left to do."""

    seed: int
    stage_count: int
    kv_tokens: int = 4096
    log_bytes: float = 1e9
    micro_batches: int = 1
    broken_share: float = 0.0
    """Of epochs before which yet another stage is lost, when all but one have joined."""
    prefix_cache: bool = False
    """Prompts begin alike then, and each may be the beginning of another."""
    tiers: CacheTiers | None = None
    chains_stay: bool = False
    """Survivors keep what is cached, where the head is one and no neighbour takes lost layers."""
    window: int | None = None
    """Tokens that every layer sees; None: all."""
    shapes: tuple[tuple[int, int], ...] = ()
    """Of each place: layers that keep all of a cut prompt, and all layers; none: nothing is
    folded."""
    drafter: SeededDrafter | None = None
    tail_drafter: SeededTail | None = None

    def __post_init__(self) -> None:
        self.random, self.now, self.epoch = Random(self.seed), 0.0, 0
        self.events: list = []
        self.wakes: set[float] = set()
        self.ids, self.request_ids, self.messages = (itertools.count(1) for _ in range(3))
        self.free_at: dict[tuple[int, BatchClass], float] = {}
        self.live: dict[int, Live] = {}
        self.answers: dict[int, list[int]] = {}
        self.begun_cached: list[int] = []
        """Cached tokens of each request, in order of admission."""
        self.gone: list[ToyStage] = []
        """Stages that are lost, and stand in their places until others do."""
        self.fetches = self.blocks_lost = 0
        self.is_joined, self.told_at = True, 0.0
        self.stages = self.new_stages()

    def new_stages(self) -> list[ToyStage]:
        count = self.stage_count
        return [self.new_stage(place, (place,), count) for place in range(count)]

    def is_gone(self, stage: ToyStage) -> bool:
        return any(stage is one for one in self.gone)

    # -- stages ----------------------------------------------------------------------------------

    def new_stage(self, index: int, layers: tuple[int, ...], stages: int) -> ToyStage:
        core, log = self.core(index, stages, Resume()), ReplayLog(self.log_bytes)
        made = self.new_layers(layers)
        room = blocks_for(self.kv_tokens)
        return ToyStage(index, core, log, room, made, directory=self.epoch)

    def new_layers(self, layers: tuple[int, ...]) -> ToyLayers:
        if self.shapes:
            blocks, shape = blocks_for(self.kv_tokens), self.shapes[layers[0]]
            return ToyLayers(layers, folds=ToyFolds(blocks, *shape))
        if self.window is None:
            return ToyLayers(layers)
        classed = LayerClass(frozenset(layers), self.window)
        blocks = WindowBlocks(classed, self.slots or 0, WINDOW_SNAPSHOTS)
        return ToyLayers(layers, windows=ToyWindows(blocks))

    @property
    def folds(self) -> int:
        return min((ToyFolds(1, *shape).folds for shape in self.shapes), default=1)

    @property
    def slots(self) -> int | None:
        return None if self.window is None else WINDOW_SLOTS

    def core(
        self,
        index: int,
        stages: int,
        resume: Resume,
        missing: frozenset[int] = frozenset(),
        before: ToyStage | None = None,
        away: AwayBlocks = NOWHERE,
    ) -> StageCore:
        if index == 0:
            terms = RingTerms(
                self.kv_tokens,
                self.micro_batches,
                span_tokens=8,
                prefix_cache=self.prefix_cache,
                tiers=self.tiers,
                state_slots=self.slots,
                state_snapshots=WINDOW_SNAPSHOTS,
                can_go_back=self.window is not None,
                draft_width_fixed=True,
                folds=self.folds,
                **terms_of(self.drafter, self.tail_drafter),
            )
            stays = before is not None and resume.chains_stay
            directory = before.core.source.book.cache if stays else None
            settings = HeadSettings(terms, limits=LIMITS)
            source = HeadScheduler(settings, KeptRequests(resume, missing), directory)
            if self.tiers is not None:
                source.book.fetches.pace = AlwaysSlow()
        else:
            ledger = KvLedger(blocks_for(self.kv_tokens), self.slots, self.folds)
            book = StageBook.of(BlockTable.of(ledger, self.tiers), LIMITS, WINDOW_SNAPSHOTS)
            offered = [] if before is None else before.layers.parts()[0].cached
            book.resume(resume, frozenset(offered), away)
            cut = 1 if self.window is None else STATE_CHUNK_TOKENS
            source = StageQueue.for_steps_of(8, book, cut, refills=resume.chains_stay)
        return StageCore(source, index == stages - 1, resume)

    # -- time ------------------------------------------------------------------------------------

    def push(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.events, (at, next(self.ids), action))

    def wake(self, at: float) -> None:
        if at not in self.wakes:
            self.wakes.add(at)
            self.push(at, lambda: self.wakes.discard(at))

    def run(self) -> None:
        while self.events:
            self.now, _, action = heapq.heappop(self.events)
            action()
            for stage in self.stages:
                if not stage.busy and not self.is_gone(stage):
                    self.start(stage)

    def send(self, index: int, batch_class: BatchClass, event: StageEvent) -> None:
        """Over the link that leaves a stage: each class in order, decode overtakes prefill."""
        last = [self.free_at.get((index, BatchClass.DECODE), 0.0)]
        if batch_class is BatchClass.PREFILL:
            last.append(self.free_at.get((index, BatchClass.PREFILL), 0.0))
        at = max(self.now + self.random.uniform(0.01, 0.2), max(last) + 1e-6)
        self.free_at[index, batch_class] = at
        following, epoch = (index + 1) % len(self.stages), self.epoch
        self.push(at, lambda: self.receive(following, event, epoch))

    def receive(self, index: int, event: StageEvent, epoch: int) -> None:
        for stage in self.stages[index : index + 1]:
            if epoch == self.epoch and not self.is_gone(stage):
                self.carry_out(stage, stage.core.received(event, self.now))

    # -- a stage's loop --------------------------------------------------------------------------

    def start(self, stage: ToyStage) -> None:
        run = self.carry_out(stage, stage.core.next_step(0.0, self.now))
        if run is not None:
            rows, core, step_s = stage.compute(run), stage.core, self.random.uniform(0.001, 0.02)
            stage.busy = True
            self.push(self.now + step_s, lambda: self.end(stage, core, run, rows, step_s))

    def end(self, stage: ToyStage, core: StageCore, run: RunBatch, rows: list, step_s: float):
        if stage.core is not core or all(stage is not one for one in self.stages):
            return  # Its ring is in another epoch by now, or it is lost.
        stage.busy = False
        if not self.is_gone(stage):
            self.pass_on(stage, core.computed(run, step_s, 0.0, self.now), rows)
            core.finished(run, step_s, self.now)

    def carry_out(self, stage: ToyStage, decisions: Iterable[Decision]) -> RunBatch | None:
        for decision in decisions:
            match decision:
                case RunBatch():
                    if stage.index == 0:
                        self.begun_cached += [
                            one.cached_tokens for one in decision.batch.admissions
                        ]
                    return decision
                case AskDrafts(asks):
                    self.ask(asks)
                case SendRelease(release):
                    stage.release(release.request_id)
                    if stage.index == 0 and self.drafter:
                        self.drafter.forget(release.request_id)
                    if not stage.core.is_tail:
                        self.send(stage.index, BatchClass.DECODE, ReleaseArrived(release))
                case SendCacheChange(change):
                    if isinstance(change, FetchBlocks):
                        self.read(stage, change)
                    stage.change_cache(change)
                    if not stage.core.is_tail:
                        self.send(stage.index, BatchClass.DECODE, CacheChanged(change))
                case SendFetched(fetched):
                    self.send(stage.index, BatchClass.DECODE, FetchArrived(fetched))
                case WaitUntil(at):
                    self.wake(max(at, self.now + 1e-6))
                case Refuse(reason):
                    raise AssertionError(f"stage {stage.index} refused: {reason}")
        return None

    def ask(self, asks: tuple[DraftAsk, ...]) -> None:
        for after_s, event in self.drafter.answers(asks, self.text):
            self.push(self.now + after_s, partial(self.receive, 0, event, self.epoch))

    def text(self, request_id: int) -> tuple[int, ...]:
        live = self.live.get(request_id)
        return (*live.prompt, *self.answers[live.number]) if live else ()

    def short_at(self, at: float, place: int, until: float) -> None:
        """A stage's host is short of memory for a while: what it holds in lower tiers is lost, and
        what comes meanwhile, too."""
        self.push(at, lambda: self.spare(place, can_spare=False))
        self.push(until, lambda: self.spare(place, can_spare=True))

    def spare(self, place: int, *, can_spare: bool) -> None:
        for stage in self.stages[place : place + 1]:
            for part in stage.layers.parts():
                part.can_spare = can_spare
                part.away.clear()

    def read(self, stage: ToyStage, change: FetchBlocks) -> None:
        self.fetches += 1
        numbers = list(change.numbers)
        sure = min(part.sure(numbers) for part in stage.layers.parts())
        self.blocks_lost += len(numbers) - sure
        event = BlocksRead(Fetched(change.fetch_id, sure))
        index, epoch, at = stage.index, self.epoch, self.now + self.random.uniform(0.0, 0.5)
        self.push(at, lambda: self.receive(index, event, epoch))

    def pass_on(self, stage: ToyStage, decision, rows: list[int]) -> None:
        match decision:
            case SendTokens(batch):
                sampled = stage.sampled(batch.spans, rows)
                returned = BatchReturned(
                    batch.batch_class, batch.micro_batch, batch.spans, sampled, batch.stamps
                )
                if self.tail_drafter is not None:
                    returned = self.tail_drafter.home(returned, self.text)
                self.send(stage.index, BatchClass.DECODE, returned)
                epoch, at = self.epoch, self.now + self.random.uniform(0.01, 0.3)
                self.told_at = at = max(at, self.told_at + 1e-6)
                self.push(at, lambda: self.told(sampled, epoch))
            case KeepRows(batch):
                if rows is not None:
                    log_rows(stage.log, batch, rows)
            case SendRows(batch, _, replays):
                for admission in replays:
                    self.replay(stage, batch, admission)
                log_rows(stage.log, batch, rows)
                self.send_rows(stage, batch, rows)

    def replay(self, stage: ToyStage, batch: Batch, admission) -> None:
        for piece, sent in stage.log.batches(batch, admission, 8):
            self.send_rows(stage, piece, unpacked(sent.rows))

    def send_rows(self, stage: ToyStage, batch: Batch, rows: list[int]) -> None:
        number, following = next(self.messages), self.stages[stage.index + 1]
        following.rows[number] = rows
        self.send(stage.index, batch.batch_class, BatchArrived(batch, number))

    # -- the coordinator -------------------------------------------------------------------------

    def submit_at(
        self, at: float, prompt_tokens: int, max_tokens: int, seed: int, budget: float = 1.0
    ) -> None:
        number = len(self.answers)
        source = Random(number % 2) if self.prefix_cache else self.random
        prompt = tuple(source.randrange(VOCABULARY) for _ in range(prompt_tokens))
        self.answers[number] = toy_answer(prompt, max_tokens, seed, self.stage_count, budget)
        live = Live(number, prompt, SamplingParams(max_tokens, seed=seed, kv_budget=budget))
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

    def assert_all_answered(self) -> None:
        assert not self.live
        for stage in self.stages:
            for part in stage.layers.parts():
                assert not part.kv, f"stage {stage.index} holds KV of {set(part.kv)}"
            source = stage.core.source
            ledger = source.kv if stage.index == 0 else source.book.kv
            assert not ledger.holders()
            assert_books_agree(self.stages, stage)
            stage.log.begin_epoch(Resume())
            assert stage.log.bytes_held == 0
