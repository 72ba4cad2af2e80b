"""Timing of a real stage's steps, with batches of its own making, one stage at a time.

A step is measured where requests stand in the middle of their life: their KV is computed first, in
spans, because memory that was never written is quicker to read than any KV. The same step is then
repeated; it writes the same keys to the same slots.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.request import SamplingParams

FILL_SPAN_TOKENS = 512
"""How KV is computed before the clock starts: longer spans are no quicker and take memory."""

REPEATS_MIN, REPEATS_MAX, MEASURE_S = 5, 200, 0.25
"""Least and most repeats, and the seconds that are enough beyond the least."""

TOKEN_ID = 1


@dataclass(frozen=True, slots=True)
class TimedStep:
    """Median time of one step's repeats."""

    rows: int
    context: int
    """Decode: tokens that each row attends to. Prefill: tokens before the span."""
    step_s: float


@dataclass(slots=True)
class StepTimer:
    """Timer of one stage's steps.

    Decode requests stay filled from step to step: ask for long contexts first.
    """

    stage: StageExecutor
    _filled: dict[int, int] = field(default_factory=dict)

    def decode(self, rows: int, context: int) -> TimedStep:
        """Time a micro-batch of `rows` requests, each of `context` tokens with the new one."""
        for request_id in range(rows):
            self._fill(request_id, context, expected=context)
        spans = tuple(Span(i, context - 1, context, self.stage.is_tail) for i in range(rows))
        return TimedStep(rows, context, self._median_s(BatchClass.DECODE, spans))

    def prefill(self, rows: int, before: int) -> TimedStep:
        """Time a prompt's last span: `rows` rows after `before` tokens."""
        self.forget()
        self._fill(0, before, expected=before + rows)
        spans = (Span(0, before, before + rows, self.stage.is_tail),)
        step = TimedStep(rows, before, self._median_s(BatchClass.PREFILL, spans))
        self.forget()
        return step

    def decode_after_idle_s(self, context: int, idle_s: float, repeats: int) -> float:
        """Mean seconds of one row's steps, each after so long without a step."""
        self._fill(0, context, expected=context)
        spans = (Span(0, context - 1, context, self.stage.is_tail),)
        times = []
        for _ in range(repeats):
            time.sleep(idle_s)
            times.append(self._step(BatchClass.DECODE, spans))
        return statistics.fmean(times)

    def prefill_mean_s(self, rows: int, before: int, duration_s: float) -> float:
        """The mean of spans that are computed again and again for so long, at least once.

        A mean, because of a core that is shared a median tells only of the luckier half."""
        self.forget()
        self._fill(0, before, expected=before + rows)
        spans = (Span(0, before, before + rows, self.stage.is_tail),)
        times = [self._step(BatchClass.PREFILL, spans)]
        while sum(times) < duration_s:
            times.append(self._step(BatchClass.PREFILL, spans))
        return statistics.fmean(times)

    def forget(self) -> None:
        """Release all requests and their KV."""
        for request_id in self._filled:
            self.stage.release(Release(request_id))
        self._filled.clear()

    def _fill(self, request_id: int, tokens: int, expected: int) -> None:
        if request_id not in self._filled:
            sampling = SamplingParams(max_tokens=1, temperature=0.0)
            self.stage.admit(Admission(request_id, expected, expected, sampling))
            self._filled[request_id] = 0
        for start, end in _pieces(self._filled[request_id], tokens):
            self._step(BatchClass.PREFILL, (Span(request_id, start, end, False),))
        self._filled[request_id] = max(tokens, self._filled[request_id])

    def _median_s(self, batch_class: BatchClass, spans: tuple[Span, ...]) -> float:
        self._step(batch_class, spans)
        times: list[float] = []
        while len(times) < REPEATS_MIN or (sum(times) < MEASURE_S and len(times) < REPEATS_MAX):
            times.append(self._step(batch_class, spans))
        return statistics.median(times)

    def _step(self, batch_class: BatchClass, spans: tuple[Span, ...]) -> float:
        for span in spans:
            if not self.stage.windows.blocks.can_go_on(span.request_id, span.start):
                self.stage.windows.release(span.request_id)  # Whatever stands there takes as long.
        batch = Batch(0, batch_class, 0, spans)
        token_ids, hidden_TD = None, None
        if self.stage.is_head or self.stage.takes_token_ids:
            token_ids = [TOKEN_ID] * batch.tokens
        if not self.stage.is_head:
            shape = (batch.tokens, self.stage.hidden_size)
            hidden_TD = torch.ones(shape, dtype=self.stage.dtype)
        start = time.perf_counter()
        self.stage.step(batch, token_ids, hidden_TD)
        return time.perf_counter() - start


def _pieces(start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        yield start, min(start + FILL_SPAN_TOKENS, end)
        start += FILL_SPAN_TOKENS
