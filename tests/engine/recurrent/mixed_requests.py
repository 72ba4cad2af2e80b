"""Mixed requests over three uneven stages: spans of any lengths, decode rows beside them, requests
dropped and computed again, decode steps of others inside a prompt's step."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from molink.engine.step.stage import StageExecutor
from molink.engine_protocol.drawn import DrawnToken
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.request import SamplingParams

SAMPLING = SamplingParams(max_tokens=64, temperature=0.0)
SPAN_TOKENS = (1, 2, 3, 7, 16, 17, 40, 65, 100)
PREEMPTED_ONE_IN = 20


@dataclass
class MixedRequests:
    stages: list[StageExecutor]
    prompts: Sequence[list[int]]
    new_tokens: int
    random: random.Random
    known: list[list[int]] = field(init=False)
    computed: list[int] = field(init=False)
    batches: int = 0
    mixed: int = 0
    """Batches with decode rows and spans of prompts."""
    restarts: int = 0
    inside: int = 0
    """Steps that were computed inside of others."""

    def __post_init__(self) -> None:
        self.known = [list(prompt) for prompt in self.prompts]
        self.computed = [0] * len(self.prompts)

    def run(self) -> list[list[int]]:
        while any(self._is_open(request) for request in range(len(self.known))):
            self._preempt_somebody()
            spans = self._spans()
            decodes = [span for span in spans if span.tokens == 1]
            others = [span for span in spans if span.tokens > 1]
            self.mixed += bool(decodes and others)
            if decodes and others and self.random.random() < 0.5:
                self.inside += 1
                self._compute(others, decodes)
            elif spans:
                self._compute(spans, [])
        pairs = zip(self.known, self.prompts, strict=True)
        return [known[len(prompt) :] for known, prompt in pairs]

    def _is_open(self, request: int) -> bool:
        return len(self.known[request]) - len(self.prompts[request]) < self.new_tokens

    def _preempt_somebody(self) -> None:
        for request, computed in enumerate(self.computed):
            if computed and self._is_open(request) and not self.random.randrange(PREEMPTED_ONE_IN):
                for stage in self.stages:
                    stage.release(Release(request))
                self.computed[request] = 0
                self.restarts += 1

    def _spans(self) -> list[Span]:
        spans = []
        for request in self.random.sample(range(len(self.known)), len(self.known)):
            if not self._is_open(request) or self.random.random() < 0.2:
                continue
            start, end = self.computed[request], len(self.known[request])
            end = min(end, start + self.random.choice(SPAN_TOKENS))
            spans.append(Span(request, start, end, end == len(self.known[request])))
        return spans

    def _compute(self, spans: list[Span], inside: list[Span]) -> None:
        batch, inner = self._batch(spans), self._batch(inside) if inside else None
        hidden = inner_hidden = None
        inner_drawn: list[tuple[DrawnToken, ...]] = []
        for stage in self.stages:
            steps = []

            def compute_inner(stage=stage, steps=steps, rows=inner_hidden) -> None:
                if inner is not None and not steps:
                    steps.append(None)
                    steps[0] = stage.step(inner, self._ids(inner), rows)

            output = stage.step(batch, self._ids(batch), hidden, compute_inner)
            hidden = output.hidden_TD
            if steps:
                inner_hidden = steps[0].hidden_TD
                inner_drawn.append(steps[0].drawn)
        self._learn(spans, output.drawn)
        if inner is not None:
            assert len(inner_drawn) == len(self.stages)
            self._learn(inside, inner_drawn[-1])

    def _batch(self, spans: list[Span]) -> Batch:
        self.batches += 1
        new = tuple(
            Admission(span.request_id, len(self.prompts[span.request_id]), 300, SAMPLING)
            for span in spans
            if span.start == 0
        )
        return Batch(self.batches, BatchClass.PREFILL, -1, tuple(spans), new)

    def _ids(self, batch: Batch) -> list[int]:
        spans = batch.spans
        return [
            token for span in spans for token in self.known[span.request_id][span.start : span.end]
        ]

    def _learn(self, spans: list[Span], drawn: tuple[DrawnToken, ...]) -> None:
        tokens = {token.request_id: token.token_id for token in drawn}
        for span in spans:
            self.computed[span.request_id] = span.end
            if span.samples:
                self.known[span.request_id].append(tokens[span.request_id])
