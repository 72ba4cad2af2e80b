"""Small model that drafts for a ring, on the PC of its head.

It is a ring of one stage: an engine with KV of its own, which computes the next tokens of all users
that ask, a draft each at a step. Each user is admitted with their own sampling and seed, so the
number that draws a token on the ring's tail draws its draft here, and sampled texts are guessed
nearly as well as greedy ones. What was guessed wrongly is overwritten: a span begins behind the
longest prefix that the known tokens and the computed ones have in common. That is at most as far
back as there were drafts, which windows of KV keep (`kv.layer_class.REWOUND_TOKENS_MAX`).

A prompt is computed in pieces while nobody asks, and its request is drafted for once they are done.
A request for which there is no room is not drafted for: to push another one out would have the loop
compute prompts again and again.

Rejected: a process of its own, which costs 0.13 ms a hand-over, a seventh of a small model's step.
"""

import time
from collections import deque
from dataclasses import dataclass, field, replace
from statistics import median

from molink.engine_protocol.engine import Engine
from molink.engine_protocol.values import Prepared, StepInputs
from molink.errors import StageError
from molink_scheduler.batch import DECODE, DRAFTS_MAX, PREFILL, Admission, Batch, Release, Span
from molink_scheduler.drafting.asks import DraftAsk
from molink_scheduler.kv.blocks import blocks_for
from molink_scheduler.request import SamplingParams

PIECE_TOKENS = 32
"""Tokens of a prompt in one step: a micro-batch that is ready waits for it."""

NEAR_TOKENS = 64
"""Tokens of a text that are computed together with its first draft, at most. A request of which
drafts are not worth it is asked about every 32nd round (`widths.PROBE_ROUNDS`), and one of those
rounds may bring 17 tokens."""

CAUGHT_UP_TOKENS = DRAFTS_MAX + 1
"""Tokens of a request that came since the last drafts, at most. They are computed row by row, as
decode is: on a card by a recorded step."""

SLOW_TIMES, SLOW_S = 10, 0.25
"""A step that takes so many times its usual time, and so long, is one that never ends well: a card
that swaps, memory that is on a disk. A PC that does something else for a moment is none."""

STEPS_KEPT = 9
"""Steps of which the median is the usual one: some are made beside something else."""

SHARE_MIN = 0.05
"""Share of drafts that are right of the worst model of the same words; of a wrong load it was
0.01."""


@dataclass(slots=True)
class _Drafted:
    """One request as the drafter knows it."""

    sampling: SamplingParams
    known: list[int] = field(default_factory=list)
    computed: list[int] = field(default_factory=list)
    """Tokens whose KV it holds, wrong guesses at the end."""
    common: int = 0
    """How many of these are known to be right."""
    prompt_tokens: int = 0
    """Tokens that it was told first: the prompt, as far as penalties count."""
    is_admitted: bool = False
    wanted: int = 0
    drafts: list[int] = field(default_factory=list)

    def learn(self, tokens: tuple[int, ...]) -> None:
        self.known += tokens
        self.drafts = []
        most = min(len(self.computed), len(self.known))
        while self.common < most and self.computed[self.common] == self.known[self.common]:
            self.common += 1
        self.common = min(self.common, len(self.known) - 1)
        self.prompt_tokens = self.prompt_tokens or max(1, len(self.known) - 1)

    @property
    def behind(self) -> int:
        """Known tokens that are to be computed."""
        return len(self.known) - self.common

    @property
    def is_late(self) -> bool:
        """Whether some of them are to be computed before it is drafted for."""
        return self.behind > NEAR_TOKENS

    @property
    def is_admitted_anew(self) -> bool:
        """Whether the engine's history of it must be set back each round: what it drew counts for
        penalties, and some of that never came."""
        params = self.sampling
        counts = params.frequency_penalty, params.presence_penalty, params.repetition_penalty - 1
        return any(counts) or params.min_tokens > 0

    def piece(self, request_id: int) -> tuple[Span, list[int]]:
        """The next tokens to compute, the last draft or what is known."""
        if self.drafts:
            start, tokens = len(self.computed), self.drafts[-1:]
        else:
            start = self.common
            most = PIECE_TOKENS if self.is_late else NEAR_TOKENS
            tokens = self.known[start : start + most]
        end = start + len(tokens)
        self.computed[start:] = tokens
        return Span(request_id, start, end, samples=end >= len(self.known)), tokens

    def admission(self, request_id: int) -> Admission | None:
        """What the engine must know before the next span; None: it does."""
        if self.is_admitted and (self.drafts or not self.is_admitted_anew):
            return None
        self.is_admitted = True
        prompt = self.prompt_tokens
        return Admission(
            request_id,
            prompt,
            len(self.known) + DRAFTS_MAX,
            self.sampling,
            tuple(self.known[:prompt]) if self.sampling.needs_prompt else (),
            tuple(self.known[prompt:]),
            kept_tokens=self.common,
        )


@dataclass(slots=True)
class ModelDrafter:
    """Drafter that computes a small model; see `drafters.Drafter`."""

    name: str
    engine: Engine
    layers: Prepared
    share_min: float = SHARE_MIN
    _steps_s: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=STEPS_KEPT))
    _requests: dict[int, _Drafted] = field(init=False, default_factory=dict)
    _asked: dict[int, _Drafted] = field(init=False, default_factory=dict)
    _batches: int = field(init=False, default=0)

    @property
    def step_s(self) -> float:
        """Usual seconds of one more draft for all who ask."""
        return median(self._steps_s) if self._steps_s else 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a prompt is still to be computed."""
        return any(one.is_late for one in self._requests.values())

    def learn(self, ask: DraftAsk) -> None:
        """Take in what is new of a request; one that fits nowhere is left alone."""
        request_id = ask.request_id
        self._asked.pop(request_id, None)
        if ask.start == 0:
            self.forget(request_id)
            self._requests[request_id] = _Drafted(_drawing(ask.sampling))
        request = self._requests.get(request_id)
        if request is None or len(request.known) != ask.start:
            return self.forget(request_id)
        request.learn(ask.tokens)
        if not self._has_room(request):
            self.forget(request_id)
        return None

    def begin(self, ask: DraftAsk) -> bool:
        """Whether it will draft: it has nearly caught up with the text."""
        request = self._requests.get(ask.request_id)
        if request is None or request.is_late or ask.width < 1:
            return False
        request.wanted = ask.width
        self._asked[ask.request_id] = request
        return True

    def step(self) -> dict[int, tuple[int, ...]]:
        """One draft more of each who asks, or a piece of a prompt where nobody does."""
        if not self._asked:
            late = (one for one in self._requests.items() if one[1].is_late)
            if (first := next(late, None)) is not None:
                self._compute(dict([first]))
                first[1].common = len(first[1].computed)
            return {}
        self._draft()
        done = {i: one for i, one in self._asked.items() if len(one.drafts) >= one.wanted}
        for request_id in done:
            del self._asked[request_id]
        return {request_id: tuple(one.drafts) for request_id, one in done.items()}

    def forget(self, request_id: int) -> None:
        """Forget a request; one that is unknown is fine."""
        self._asked.pop(request_id, None)
        if (request := self._requests.pop(request_id, None)) is not None and request.is_admitted:
            self.engine.release(Release(request_id), wiped=False)

    def clear(self) -> None:
        """Forget all requests, and give their KV back."""
        for request_id in list(self._requests):
            self.forget(request_id)

    def _has_room(self, request: _Drafted) -> bool:
        tokens = len(request.known) + DRAFTS_MAX
        blocks = sum(blocks_for(len(one.known) + DRAFTS_MAX) for one in self._requests.values())
        slots = self.layers.loaded.state_slots
        return (
            blocks <= self.layers.kv_blocks
            and tokens < self.layers.limits.sequence_tokens_max
            and (slots is None or len(self._requests) <= slots)
        )

    def _draft(self) -> None:
        """Draw the next token of all who ask."""
        most_behind = max(one.behind for one in self._asked.values())
        began = time.monotonic()
        drawn = self._compute(self._asked)
        for request_id, request in self._asked.items():
            request.common = max(request.common, len(request.known) - 1)
            request.drafts.append(drawn[request_id])
        if most_behind <= DRAFTS_MAX + 1:  # Else it has computed a prompt, too.
            self._took(time.monotonic() - began)

    def _compute(self, requests: dict[int, _Drafted]) -> dict[int, int]:
        """Compute a piece of each request; the tokens that were drawn. Raises StageError where one
        is none."""
        admissions = [one.admission(request_id) for request_id, one in requests.items()]
        pieces = [one.piece(request_id) for request_id, one in requests.items()]
        spans = tuple(span for span, _ in pieces)
        is_decode = all(span.tokens <= CAUGHT_UP_TOKENS for span in spans)
        self._batches += 1
        batch = Batch(
            self._batches,
            DECODE if is_decode else PREFILL,
            0 if is_decode else -1,
            spans,
            tuple(one for one in admissions if one is not None),
        )
        ids = [token for _, tokens in pieces for token in tokens]
        result = self.engine.step(StepInputs(batch, ids), _no_interrupt, _no_interrupt)
        if any(one.is_lost for one in result.drawn):
            raise StageError("its numbers are not finite")
        return {one.request_id: one.token_id for one in result.drawn}

    def _took(self, seconds: float) -> None:
        """A step took so long. Raises StageError where that is far beyond its usual time."""
        usual_s = self.step_s or seconds
        if seconds > max(SLOW_TIMES * usual_s, SLOW_S):
            raise StageError(f"a step took {seconds:.2f} s, {usual_s:.4f} s is usual")
        self._steps_s.append(seconds)


def _drawing(sampling: SamplingParams) -> SamplingParams:
    """How drafts are drawn: as the ring's tail draws, without what only reads or ends an answer;
    what a grammar forbids, the tail finds out."""
    return replace(sampling, grammar="", logprobs=None, prompt_logprobs=None, stop=(), quiet=())


def _no_interrupt() -> None:
    """Nothing else is computed within a step."""
