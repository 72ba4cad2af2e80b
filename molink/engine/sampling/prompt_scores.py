"""Log-probabilities of a prompt's own tokens, for who asks how likely the model finds a text.

The row of a token predicts the next one, so a span scores the tokens one behind its own, as far as
they belong to the prompt: the first token of a prompt has no score, and what follows its last one
is drawn. A prompt that is computed again after its answer has begun is not scored again.

Shapes: R rows to score, W vocabulary size, C columns of a table.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.sampler import ranked, rows_at_once, with_logprobs
from molink.wire.frames import PromptScore
from molink_scheduler.batch import Batch


class PromptRow(NamedTuple):
    """Row of a batch whose logits predict a token of a prompt."""

    row: int
    history: SequenceHistory
    position: int
    """Position of the token that is predicted."""


def prompt_rows(batch: Batch, histories: Mapping[int, SequenceHistory]) -> list[PromptRow]:
    """The rows that score prompts, in the order of the batch."""
    found, first_row = list[PromptRow](), 0
    for span in batch.spans:
        history = histories[span.request_id]
        last = min(span.end, len(history.scored_prompt) - 1)
        found += [
            PromptRow(first_row + position - 1 - span.start, history, position)
            for position in range(span.start + 1, last + 1)
        ]
        first_row += span.tokens
    return found


def scored_token_ids(rows: Sequence[PromptRow]) -> np.ndarray:
    """Words [R] of the prompts that the rows predict."""
    return np.array([row.history.scored_prompt[row.position] for row in rows], np.int32)


def score_table(logits_RW: torch.Tensor, words_R: torch.Tensor) -> torch.Tensor:
    """Doubles [R, C]: the rank of each row's word, its log-probability, the likeliest words and
    theirs."""
    if not len(words_R):
        return logits_RW.new_zeros(0, 1)
    count = rows_at_once(logits_RW.shape[1], logits_RW.device)
    words_R1 = words_R.long()[:, None]
    parts = zip(torch.split(logits_RW, count), torch.split(words_R1, count), strict=True)
    return torch.cat([_scored(*part) for part in parts])


def _scored(logits_RW: torch.Tensor, words_R1: torch.Tensor) -> torch.Tensor:
    logprobs_RW = torch.log_softmax(logits_RW.float(), -1)
    table_RC = with_logprobs(words_R1, logprobs_RW)
    table_RC[:, 0] = (logprobs_RW > logprobs_RW.gather(1, words_R1)).sum(-1) + 1
    return table_RC


def take_scores(table_RC: np.ndarray, rows: Sequence[PromptRow]) -> tuple[PromptScore, ...]:
    """The score of each row's token; from the table on the host."""
    return tuple(map(_score, rows, table_RC.tolist()))


def _score(row: PromptRow, columns: list[float]) -> PromptScore:
    history = row.history
    logprob, top = ranked(columns, history.params.prompt_logprobs or 0)
    return PromptScore(history.request_id, row.position, logprob, int(columns[0]), top)
