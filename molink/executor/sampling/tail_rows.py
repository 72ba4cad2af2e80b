"""Rows of a step whose logits the tail needs, and the tokens and scores that come of them.

Logits of the others are never computed: of a prompt's span only the last row draws, and only where
prompts are scored do more rows count.

Shapes: R rows, W words of the vocabulary.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from molink.executor.sampling.copies import download
from molink.executor.sampling.history import DrawnToken, SequenceHistory
from molink.executor.sampling.prompt_scores import PromptRow, prompt_rows, score_table, take_scores
from molink.executor.sampling.sampler import Sampling, sampling_rows
from molink.wire.frames import PromptScore
from molink_scheduler.batch import Batch, Span

__all__ = ["TailRows"]


class TailRows(NamedTuple):
    """Rows whose logits a stage needs; a stage that is no tail needs none."""

    samplers: list[Span]
    scored: list[PromptRow]
    rows: list[int]
    """First those of the samplers, then the scored ones."""

    @classmethod
    def of(cls, batch: Batch, histories: Mapping[int, SequenceHistory]) -> "TailRows":
        """Those of a batch on the tail."""
        samplers, rows = sampling_rows(batch)
        scored = prompt_rows(batch, histories)
        return cls(samplers, scored, [*rows, *(one.row for one in scored)])

    def results(
        self,
        logits_RW: torch.Tensor,
        histories: Mapping[int, SequenceHistory],
        read: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[tuple[DrawnToken, ...], tuple[PromptScore, ...]]:
        """Tokens and scores; `read` copies them from the device, once."""
        sampling = Sampling([histories[span.request_id] for span in self.samplers])
        known_tokens, count = [span.end for span in self.samplers], len(self.samplers)
        drawn, scores = download(
            sampling.table(logits_RW[:count], known_tokens),
            score_table(logits_RW[count:], self.scored),
            read=read,
        )
        return tuple(sampling.take(drawn)), take_scores(scores, self.scored)
