"""Requests with a budget on one card: PPIO's row (4,000 tokens in, 500 out, Llama-3-8B, RTX 4090).

So many users ask for one after another, and the ring's head admits them by the book that ships.
Counted are tokens a second, and the median time to a first token, of which PPIO allows a second:
more users than there is room for wait longer. Prompts go before decode steps, as in the vLLM that
PPIO changed: the head is told of no step's time, so it cuts none short for a decode step, as it
does in a ring. Step times are a roofline's; of a prompt that was cut a decode step reads what is
kept.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

from molink.checkpoint.model_config import model_shape
from molink.hardware.gpu import gpu
from molink.hardware.roofline import RooflineCost, stage_cost
from molink_scheduler.batch import DECODE, PREFILL, Batch, Span
from molink_scheduler.events import (
    BatchReturned,
    RequestSubmitted,
    RunBatch,
    SampledToken,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.prompt_cut import WHOLE_LAYERS, PromptCut
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes

MODEL, GPU = "llama-3-8b", "rtx4090"
PROMPT_TOKENS, ANSWER_TOKENS = 4_000, 500
KV_TOKENS = 48_000
"""Room of the card beside the weights: 6.3 GB. Ten requests, where PPIO's vLLM has its limit."""

TTFT_MAX_S = 1.0
SPAN_TOKENS = 2_048
WARM_UP_S, MEASURED_S = 30.0, 60.0
USERS_MAX = 40


@dataclass(frozen=True, slots=True)
class CardServed:
    """What some users got, who ask all the time."""

    users: int
    ttft_s: float
    """Median time to a first token."""
    tokens_per_s: float
    held_most: int
    """Most requests that held KV at a time."""
    preempted: int
    """Prompts that were computed once more."""


@dataclass(slots=True)
class OneCard:
    """A ring of one card, with all layers, and its users."""

    users: int
    budget: float
    head: HeadScheduler = field(init=False)
    cost: RooflineCost = field(init=False)
    layers: int = field(init=False)
    now: float = field(init=False, default=0.0)
    held_most: int = field(init=False, default=0)
    _asked_at: dict[int, float] = field(init=False, default_factory=dict)
    _had: dict[int, int] = field(init=False, default_factory=dict)
    """Tokens of each answer."""
    _waits: list[tuple[float, float]] = field(init=False, default_factory=list)
    """When each first token came, and after how long."""
    _came_at: list[float] = field(init=False, default_factory=list)
    _begun: list[int] = field(init=False, default_factory=list)
    """Requests in order of admission."""
    _asked: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        shape = model_shape(MODEL)
        self.layers = shape.layers
        self.cost = stage_cost(shape, gpu(GPU), shape.layers, True, True)
        folds = shape.layers // WHOLE_LAYERS
        terms = RingTerms(KV_TOKENS, 1, span_tokens=SPAN_TOKENS, folds=folds)
        self.head = HeadScheduler(HeadSettings(terms))

    def play(self) -> CardServed:
        """Serve for a while, users coming one after another at first."""
        waiting, begins = None, [one * WARM_UP_S / 2 / self.users for one in range(self.users)]
        while self.now < WARM_UP_S + MEASURED_S:
            while begins and begins[0] <= self.now:
                begins.pop(0)
                self._ask()
            _, run = self.head.next_batch(0.0, self.now)
            if run is None and waiting is None:
                self.now = begins[0]
            elif run is None:
                self._return(waiting)
                waiting = None
            else:
                self._compute(run)
                waiting = run.batch if run.batch.batch_class is DECODE else waiting
        return self._served()

    def _ask(self) -> None:
        self._asked += 1
        self._asked_at[self._asked] = self.now
        sampling = SamplingParams(ANSWER_TOKENS, kv_budget=self.budget)
        request = Request(self._asked, token_bytes([1] * PROMPT_TOKENS), sampling)
        self.head.handle(RequestSubmitted(request), self.now)

    def _compute(self, run: RunBatch) -> None:
        """A step; what it computes of prompts is back at once, a decode step is waited for until no
        prompt can go on."""
        batch = run.batch
        self.now += self._step_s(batch)
        self._begun += [one.request_id for one in batch.admissions]
        self.held_most = max(self.held_most, self.head.running_count)
        if batch.batch_class is PREFILL:
            self._return(batch)

    def _step_s(self, batch: Batch) -> float:
        is_decode = batch.batch_class is DECODE
        read = sum(self._read_tokens(span) if is_decode else span.end for span in batch.spans)
        return self.cost.step_s(batch.batch_class, batch.tokens, round(read), len(batch.spans))

    def _read_tokens(self, span: Span) -> float:
        """Tokens of a request that a decode step reads, in the mean over layers."""
        moved = PromptCut.of(PROMPT_TOKENS, self.budget).moved_tokens
        return span.end - moved * (1 - WHOLE_LAYERS / self.layers)

    def _return(self, batch: Batch | None) -> None:
        assert batch is not None, "a step that is waited for was begun"
        sampled = tuple(self._drawn(batch.spans))
        returned = BatchReturned(batch.batch_class, batch.micro_batch, batch.spans, sampled)
        self.head.handle(returned, self.now)
        for _ in [one for one in sampled if one.finished]:
            self._ask()

    def _drawn(self, spans: Sequence[Span]) -> Iterator[SampledToken]:
        for span in spans:
            if span.samples:
                self._had[span.request_id] = had = self._had.get(span.request_id, 0) + 1
                self._came_at.append(self.now)
                if had == 1:
                    self._waits.append((self.now, self.now - self._asked_at[span.request_id]))
                yield SampledToken(span.request_id, 1, had == ANSWER_TOKENS)

    def _served(self) -> CardServed:
        ttfts = [wait_s for at, wait_s in self._waits if at >= WARM_UP_S]
        tokens = sum(at >= WARM_UP_S for at in self._came_at)
        again = len(self._begun) - len(set(self._begun))
        waited = median(ttfts) if ttfts else float("inf")
        return CardServed(self.users, waited, tokens / MEASURED_S, self.held_most, again)


def most_users(budget: float) -> CardServed:
    """The most users whose median first token comes within a second, and what they got: one more
    waits longer."""
    found, least, most = OneCard(1, budget).play(), 1, USERS_MAX
    while most - least > 1:
        served = OneCard((least + most) // 2, budget).play()
        if served.ttft_s < TTFT_MAX_S:
            found, least = served, served.users
        else:
            most = served.users
    return found
