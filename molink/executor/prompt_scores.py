"""Log-probabilities of a prompt's own tokens, for who asks how likely the model finds a text.

The row of a token predicts the next one, so a span scores the tokens one behind its own, as far as
they belong to the prompt: the first token of a prompt has no score, and what follows its last one
is drawn. A prompt that is computed again after its answer has begun is not scored again.

Shapes: R rows to score, W words of the vocabulary.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from molink.executor.sampling import SequenceHistory
from molink.wire.frames import PromptScore
from molink_scheduler.batch import Batch

__all__ = ["PromptRow", "prompt_rows", "prompt_scores"]

ROWS_AT_ONCE = 16
"""In fp32 beside the model's logits: 10 MB of a vocabulary of 150,000."""


class PromptRow(NamedTuple):
    """Row of a batch whose logits predict a token of a prompt."""

    row: int
    history: SequenceHistory
    position: int
    """Of the token that is predicted."""


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


def prompt_scores(logits_RW: torch.Tensor, rows: Sequence[PromptRow]) -> tuple[PromptScore, ...]:
    """The score of each row's token, among the likeliest at its place."""
    scores = list[PromptScore]()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        part = slice(start, start + ROWS_AT_ONCE)
        scores += _scored(logits_RW[part], rows[part])
    return tuple(scores)


def _scored(logits_RW: torch.Tensor, rows: Sequence[PromptRow]) -> Iterator[PromptScore]:
    logprobs_RW = torch.log_softmax(logits_RW.float(), -1)
    words = [row.history.scored_prompt[row.position] for row in rows]
    own_R1 = logprobs_RW.gather(1, torch.tensor(words, device=logits_RW.device)[:, None])
    ranks = ((logprobs_RW > own_R1).sum(1) + 1).tolist()
    counts = [row.history.params.prompt_logprobs or 0 for row in rows]
    best = logprobs_RW.topk(min(max(counts), logits_RW.shape[1]))
    found = zip(rows, counts, own_R1[:, 0].tolist(), ranks, strict=True)
    for place, (row, count, logprob, rank) in enumerate(found):
        ids = best.indices[place, :count].tolist()
        values = best.values[place, :count].tolist()
        top = tuple(zip(ids, values, strict=True))
        yield PromptScore(row.history.request_id, row.position, logprob, rank, top)
