"""A ring in one process whose spans end in drafts: an oracle's, right to any depth."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from molink.engine.step.stage import StageExecutor
from molink_scheduler.batch import Admission, Batch, BatchClass, KeptState, Release, Span
from molink_scheduler.request import SamplingParams

SAMPLING = SamplingParams(max_tokens=64, temperature=0.0)
EXPECTED_TOKENS = 300


@dataclass
class Request:
    """Request whose text is known to the test; `start`: its next row."""

    text: list[int]
    prompt: int
    start: int


@dataclass(frozen=True)
class Turn:
    """One request's part of a decode step: so many drafts, of which the first `right` come true."""

    request_id: int
    drafts: int = 0
    right: int = 0
    snapshot: int | None = None
    """Where states are kept behind what is known."""


@dataclass
class DraftedRing:
    stages: Sequence[StageExecutor]
    words: int
    requests: dict[int, Request] = field(default_factory=dict)
    batches: int = 0
    tried: int = 0
    passed: int = 0

    def begin(self, request_id: int, text: list[int], prompt: int, **admitted) -> torch.Tensor:
        """Compute all of a prompt but what is cached; logits of its last row."""
        start = 16 * sum(blocks for _, blocks in admitted.get("cached", ()))
        admission = Admission(request_id, prompt, EXPECTED_TOKENS, SAMPLING, **admitted)
        self.requests[request_id] = Request(text, prompt, prompt)
        span = Span(request_id, start, prompt, True)
        return self._logits(BatchClass.PREFILL, (span,), text[start:prompt], (admission,))[-1]

    def release(self, request_id: int) -> None:
        self.requests.pop(request_id)
        for stage in self.stages:
            stage.release(Release(request_id))

    def step(self, turns: Sequence[Turn]) -> dict[int, tuple[int, torch.Tensor]]:
        """Logits of the rows of each request that came true, and the position of the first."""
        spans, ids, kept = list[Span](), list[int](), list[KeptState]()
        for turn in turns:
            one = self.requests[turn.request_id]
            drafts = min(turn.drafts, len(one.text) - one.start - 1)
            right = min(turn.right, drafts)
            true = one.text[one.start : one.start + 1 + right]
            wrong = [(token + 1) % self.words for token in one.text[one.start + 1 + right :]]
            rows = [*true, *wrong][: 1 + drafts]
            end = one.start + len(rows)
            spans.append(Span(turn.request_id, one.start, end, True, tuple(rows[1:])))
            ids += rows
            if turn.snapshot is not None:
                kept.append(KeptState(turn.request_id, spans[-1].known_end, turn.snapshot))
        logits, found, row = self._logits(BatchClass.DECODE, tuple(spans), ids, (), kept), {}, 0
        for turn, span in zip(turns, spans, strict=True):
            right = min(turn.right, len(span.drafts))
            found[turn.request_id] = span.start, logits[row : row + 1 + right]
            self.requests[turn.request_id].start = span.known_end + right
            row, self.tried, self.passed = (
                row + span.tokens,
                self.tried + len(span.drafts),
                self.passed + right,
            )
        return found

    def _logits(self, kind, spans, ids, admissions, kept=()) -> torch.Tensor:
        self.batches += 1
        micro_batch = 0 if kind is BatchClass.DECODE else -1
        batch = Batch(self.batches, kind, micro_batch, spans, admissions, snapshots=tuple(kept))
        *inner, tail = self.stages
        hidden = None
        for stage in inner:
            hidden = stage.step(batch, ids, hidden).hidden_TD
        return tail_logits(tail, batch, ids, hidden)


def tail_logits(
    tail: StageExecutor, batch: Batch, ids: Sequence[int], hidden_TD: torch.Tensor | None
) -> torch.Tensor:
    """Logits of all rows of a batch, which the tail computes as a step does."""
    for admission in batch.admissions:
        tail.admit(admission)
    tail._grow(batch)
    given = ids if tail.is_head else ()
    with torch.inference_mode():
        logits = tail.launched_rows(batch, given, hidden_TD, range(batch.tokens))[0].clone()
        tail.states.keep(batch.snapshots)
    tail.windows.computed(batch.spans, batch.snapshots)
    return logits
