"""Rows of a step whose logits the tail needs, and the tokens and scores that come of them.

Logits of the others are never computed: of a prompt's span only the last row draws, and only where
prompts are scored do more rows count. What is asked of them is known before the step, and goes to
the device with what else the step wants there; what came of them returns in one copy. Every number
that a GPU is handed on its own, and every one that is read from it, costs more than computing it.

Shapes: R rows, W vocabulary size.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.late_draws import LateDraw
from molink.engine.sampling.prompt_scores import (
    PromptRow,
    prompt_rows,
    score_table,
    scored_token_ids,
    take_scores,
)
from molink.engine.sampling.sampler import Sampling, download, sampling_rows
from molink.engine_protocol.drawn import DrawnToken
from molink.engine_protocol.values import Drafts
from molink.wire.frames import PromptScore
from molink_scheduler.batch import Batch

MASKS_WAIT_S = 0.002
"""Seconds that a step waits for all masks of grammars together that are not ready."""


class TailRows(NamedTuple):
    """Rows whose logits a stage needs; a stage that is no tail needs none."""

    sampling: Sampling | None = None
    scored: Sequence[PromptRow] = ()
    rows: Sequence[int] = ()
    """First those that sample, then the scored ones."""

    @classmethod
    def of(
        cls,
        batch: Batch,
        histories: Mapping[int, SequenceHistory],
        vocabulary_size: int,
        device: torch.device,
    ) -> "TailRows":
        """Rows of a batch on the tail."""
        samplers, rows = sampling_rows(batch)
        for span in samplers:
            histories[span.request_id].wants = span.wants
        drafts = [span.drafts for span in samplers]
        own = [row for span in samplers for row in histories[span.request_id].along(span.drafts)]
        known = [end for span in samplers for end in range(span.known_end, span.end + 1)]
        sampling = Sampling(own, known, vocabulary_size, device, MASKS_WAIT_S, drafts)
        scored = prompt_rows(batch, histories)
        return cls(sampling, scored, [*rows, *(one.row for one in scored)])

    @property
    def settings(self) -> list[np.ndarray]:
        """Numbers that `results` wants to be sent."""
        if self.sampling is None:
            return []
        return [scored_token_ids(self.scored), *self.sampling.settings]

    def results(
        self,
        logits_RW: torch.Tensor,
        sent: Sequence[torch.Tensor],
        read: Callable[[torch.Tensor], torch.Tensor],
    ) -> tuple[tuple[DrawnToken, ...], tuple[PromptScore, ...], tuple[LateDraw, ...]]:
        """Tokens and scores, of logits and `settings` on their device, and what is drawn later;
        `read` copies them from there, once."""
        assert self.sampling is not None, "only a tail draws"
        (words_R, *of_sampling), count = sent, len(self.sampling)
        drawn, scores = download(
            self.sampling.table(logits_RW[:count], of_sampling),
            score_table(logits_RW[count:], words_R),
            read=read,
        )
        late = [LateDraw(*one, time.monotonic()) for one in self.sampling.late(logits_RW)]
        return tuple(self.sampling.take(drawn)), take_scores(scores, self.scored), tuple(late)


def forced_drafts(batch: Batch, histories: Mapping[int, SequenceHistory]) -> Drafts:
    """Tokens that grammars allow alone behind those that were drawn, of requests that want
    drafts."""
    wanting = [histories[span.request_id] for span in batch.spans if span.wants]
    grammars = [(one.request_id, one.constraint) for one in wanting if one.constraint is not None]
    return tuple((request_id, one.forced) for request_id, one in grammars if one.forced)
