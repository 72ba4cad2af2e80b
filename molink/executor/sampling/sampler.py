"""From logits to tokens: what the tail does with the last row of each sequence.

The order is that of vLLM: grammar, logit biases, stop tokens that come too soon, penalties,
temperature, min_p, top_k, top_p, then one draw. Log-probabilities are those of the raw logits,
before biases, penalties and temperature, as OpenAI and vLLM report them; where a grammar leaves
only some words, of these.

All of it is computed in tensors that hold many rows, each with its own settings, and nothing is
read before one copy back at the end: a GPU never waits for the host. On a CPU rows are taken as
many at a time as its cache holds.

Every row is computed from its own logits and its own random number. Neither its neighbours nor
their number matter.

Shapes: R rows (sequences that sample now), W words of the vocabulary, C columns of a table.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from molink.executor.grammar import GrammarState
from molink.executor.sampling.copies import download
from molink.executor.sampling.drawing import draw
from molink.executor.sampling.history import DrawnToken, SequenceHistory
from molink.executor.sampling.logit_changes import change, forbidden_words
from molink_scheduler.batch import Batch, Span
from molink_scheduler.request import LOGPROBS_MAX

__all__ = ["Sampling", "ranked", "rows_at_once", "sample", "sampling_rows", "with_logprobs"]

WORDS_AT_ONCE = {"cpu": 2**17, "cuda": 2**22}
"""As doubles they fill a CPU's second cache of a megabyte. On a GPU the bound is memory: 32 MB of
doubles, some four times over while they are sorted."""


def rows_at_once(words: int, device: torch.device) -> int:
    """How many rows of a vocabulary are computed together, at least one."""
    return max(1, WORDS_AT_ONCE["cpu" if device.type == "cpu" else "cuda"] // words)


def sampling_rows(batch: Batch) -> tuple[list[Span], list[int]]:
    """The spans that sample, and the last row of each."""
    samplers, rows, end = [], [], 0
    for span in batch.spans:
        end += span.tokens
        if span.samples:
            samplers.append(span)
            rows.append(end - 1)
    return samplers, rows


def sample(
    logits_RW: torch.Tensor, histories: Sequence[SequenceHistory], known_tokens: Sequence[int]
) -> list[DrawnToken]:
    """Draw one token per row and add it to its history; `known_tokens` counts prompt and output of
    each so far.
    """
    sampling = Sampling(histories)
    (table_RC,) = download(sampling.table(logits_RW, known_tokens))
    return sampling.take(table_RC)


class Sampling:
    """Draws of one step: a table on the device, and tokens once that is on the host."""

    def __init__(self, histories: Sequence[SequenceHistory]) -> None:
        """Waits for masks of grammars that are not ready."""
        self._histories = histories
        self._masks, self._lost = forbidden_words(histories)

    def table(self, logits_RW: torch.Tensor, known_tokens: Sequence[int]) -> torch.Tensor:
        """[R, C] doubles: each row's word, and where log-probabilities are asked for that of the
        word, the likeliest words and theirs. Logits and histories stay as they are."""
        if not self._histories:
            return logits_RW.new_zeros(0, 1)
        count = rows_at_once(logits_RW.shape[1], logits_RW.device)
        starts = range(0, len(self._histories), count)
        parts = [self._part(logits_RW, known_tokens, at, at + count) for at in starts]
        columns = max(part.shape[1] for part in parts)
        return torch.cat([F.pad(part, (0, columns - part.shape[1])) for part in parts])

    def _part(
        self, logits_RW: torch.Tensor, known_tokens: Sequence[int], first: int, end: int
    ) -> torch.Tensor:
        histories = self._histories[first:end]
        masks = {row - first: mask for row, mask in self._masks.items() if first <= row < end}
        changes = bool(masks) or any(history.changes_logits for history in histories)
        own_RW = logits_RW[first:end].to(torch.float32, copy=changes)
        for row, forbidden_W in masks.items():
            own_RW[row].masked_fill_(forbidden_W, float("-inf"))
        is_scored = any(history.params.logprobs is not None for history in histories)
        logprobs_RW = torch.log_softmax(own_RW, -1) if is_scored else None
        change(own_RW, histories)
        drawn_R1 = draw(own_RW, histories, known_tokens[first:end])[:, None]
        if logprobs_RW is None:
            return drawn_R1.double()
        return with_logprobs(drawn_R1, logprobs_RW)

    def take(self, table_RC: np.ndarray) -> list[DrawnToken]:
        """The tokens, each added to its history; from the table on the host."""
        rows = zip(self._histories, table_RC.tolist(), strict=True)
        return [self._token(row, history, columns) for row, (history, columns) in enumerate(rows)]

    def _token(self, row: int, history: SequenceHistory, columns: list[float]) -> DrawnToken:
        token_id, count = int(columns[0]), history.params.logprobs
        state = GrammarState.FAILED if row in self._lost else history.add(token_id)
        if count is None:
            return DrawnToken(history.request_id, token_id, grammar=state)
        logprob, top = ranked(columns, count)
        return DrawnToken(history.request_id, token_id, logprob, top, state)


# -- log-probabilities ----------------------------------------------------------------------------


def with_logprobs(words_R1: torch.Tensor, logprobs_RW: torch.Tensor) -> torch.Tensor:
    """[R, C] doubles: the words, their log-probabilities, the likeliest words and theirs."""
    # Always as many: which of equally likely words come last must not depend on the neighbours.
    best = logprobs_RW.topk(min(LOGPROBS_MAX, logprobs_RW.shape[1]))
    columns = (words_R1, logprobs_RW.gather(1, words_R1), best.indices, best.values)
    return torch.cat([column.double() for column in columns], 1)


def ranked(columns: Sequence[float], count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Of such a row: the word's log-probability, and the `count` likeliest words, best first."""
    half = 2 + (len(columns) - 2) // 2
    both = zip(columns[2:half][:count], columns[half:], strict=False)
    top = tuple((int(word), logprob) for word, logprob in both if logprob > float("-inf"))
    return columns[1], top
