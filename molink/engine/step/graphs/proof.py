"""Proof that a recorded decode step computes what the stage computes without it.

A recording bakes in whatever was no tensor when it was made, and then answers well for that step
alone. So each is replayed twice over the stage's own pools, with other requests, lengths and rows,
once full and once with padding, and compared with the step as it is launched. Recordings are made
over padding only: what they have baked in is never right by chance.

The launched step always has all of the bucket's rows, since a product of fewer rows is summed in
another order, and a router that hesitates would then choose another expert.

A replay comes first, and reads what it wrote; then the launched step writes the same again. States
move on, so both begin with the same random ones, and what they leave behind is compared by its sum
in every slot, those of nobody included.

Shapes: T rows of a step, D hidden size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from molink.engine.step.graphs.recorded_step import RecordedStep, decode_rows
from molink.engine.step.runnable import RunnableStage
from molink_scheduler.batch import DECODE, PREFILL, Admission, Batch, Release, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from molink_scheduler.request import SamplingParams

DIFFERENCES_MAX = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 2e-2}
"""Largest difference of a row, relative to its largest number."""

TOKENS_MAX = 40
"""Tokens of a request: some blocks each, and lengths that differ."""

ROWS_TOGETHER = 256
"""Rows of prompts computed at a time: half of the span whose memory was measured."""

STATE_SIZE = 0.1
"""Size of random states."""

REQUEST_ID = -2
"""The first request; the others count down. The coordinator counts from zero, and -1 warms up."""


@dataclass(slots=True)
class Proof:
    """Requests of nobody, with which recorded steps of a stage are tried."""

    stage: RunnableStage
    tokens: list[int]
    """Computed of each request."""

    @classmethod
    @contextmanager
    def over(cls, stage: RunnableStage, rows: int) -> Iterator["Proof"]:
        """Requests in the stage's pools, one for each of `rows` rows or as many as fit; gone after
        the block."""
        count = min(rows, stage.kv.blocks_total, stage.state_slots or rows)
        room = stage.kv.blocks_total // count * BLOCK_TOKENS
        longest = max(1, min(TOKENS_MAX, room, stage.description.model_len_max) - 2)
        proof = cls(stage, [1 + 11 * number % longest for number in range(count)])
        try:
            proof._compute_prompts()
            yield proof
        finally:
            for number in range(count):
                stage.release(Release(REQUEST_ID - number))
            for pool in (stage.kv_memory, stage.windows.tensors):
                pool.clear()  # Random rows may have left the range of numbers.

    def trouble(self, step: RecordedStep) -> str | None:
        """Fault of a recorded step; None: nothing is wrong."""
        known, limit = len(self.tokens), DIFFERENCES_MAX[self.stage.dtype]
        count = min(step.inputs.rows, known)
        full = self._batch(range(count), later=0), count
        padded = self._batch(range(known - 1, known - 1 - count, -1), later=1), count // 2 + 1
        for batch, rows in (full, padded):
            difference = self._difference(step, batch, min(rows, count))
            if not difference <= limit:
                return f"a replayed step differs by {difference:.1e} from a launched one"
        return None

    def _compute_prompts(self) -> None:
        rows, spans = 0, list[Span]()
        for number, tokens in enumerate(self.tokens):
            if rows + tokens > ROWS_TOGETHER:
                self._compute(spans)
                rows, spans = 0, []
            rows += tokens
            spans.append(Span(REQUEST_ID - number, 0, tokens, False))
        self._compute(spans)
        for number, tokens in enumerate(self.tokens):
            self.stage.kv.grow(REQUEST_ID - number, tokens + 2)
            self.stage.windows.grow([Span(REQUEST_ID - number, tokens, tokens + 2, False)])

    def _compute(self, spans: list[Span]) -> None:
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        # None is told how long it gets, so their blocks lie scattered in the end.
        admissions = tuple(Admission(span.request_id, span.end, 1, sampling) for span in spans)
        batch = Batch(0, PREFILL, -1, tuple(spans), admissions)
        self.stage.step(batch, *self._rows(batch))

    def _batch(self, requests: Sequence[int], later: int) -> Batch:
        """The next token of each, or a later one."""
        at = {number: self.tokens[number] + later for number in requests}
        spans = (Span(REQUEST_ID - n, start, start + 1, False) for n, start in at.items())
        return Batch(0, DECODE, 0, tuple(spans))

    def _rows(self, batch: Batch) -> tuple[list[int], torch.Tensor]:
        """Token ids and rows [T, D] for a batch."""
        stage, rows = self.stage, batch.tokens
        generator = torch.Generator().manual_seed(batch.spans[0].start)
        ids = torch.randint(stage.description.vocabulary_size, (rows,), generator=generator)
        hidden_TD = torch.randn(rows, stage.hidden_size, generator=generator).to(stage.dtype)
        return ids.tolist(), hidden_TD

    def _difference(self, step: RecordedStep, batch: Batch, rows: int) -> float:
        """Largest relative difference of the batch's first rows, and of the states that all but
        the other rows leave."""
        stage = self.stage
        ids, on_host_TD = self._rows(batch)
        hidden_TD = on_host_TD.to(stage.device)
        keep = range(batch.tokens) if stage.is_tail else ()
        given = decode_rows(stage, batch, ids)
        self._begin_states()
        got = step.computed(given[:rows], hidden_TD[:rows])[0].clone()
        got_sums = self._state_sums()
        self._begin_states()
        wanted = stage.launched_rows(batch, ids, hidden_TD, keep)[0][:rows]
        idle = {row.state_slot for row in given[rows:]}
        slots = [slot for slot in range(stage.states.slots) if slot not in idle]
        pairs = zip(got_sums, self._state_sums(), strict=True)
        states = [_relative(a[slots][None], b[slots][None]) for a, b in pairs]
        return max([_relative(got, wanted), *states])

    def _begin_states(self) -> None:
        for seed, state in enumerate(self._states()):
            generator = torch.Generator(state.device).manual_seed(seed)
            state.normal_(0, STATE_SIZE, generator=generator)

    def _state_sums(self) -> list[torch.Tensor]:
        return [state.flatten(1).sum(1, dtype=torch.float32) for state in self._states()]

    def _states(self) -> Iterator[torch.Tensor]:
        for layer in self.stage.states.layers.values():
            yield from layer.values()


def _relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference of a row [T, ...], relative to its largest number; infinite where either
    has none."""
    difference = (got.float() - wanted.float()).abs().amax(-1)
    relative = difference / wanted.float().abs().amax(-1).clamp(min=1e-30)
    return float(relative.nan_to_num(nan=float("inf")).max())
