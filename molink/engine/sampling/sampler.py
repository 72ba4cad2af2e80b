"""From logits to tokens: what the tail does with the last row of each sequence, and with those of
drafts behind it.

The order is that of vLLM: grammar, logit biases, stop tokens that come too soon, penalties,
temperature, min_p, top_k, top_p, then one draw. Log-probabilities are those of the raw logits,
before biases, penalties and temperature, as OpenAI and vLLM report them; where a grammar leaves
only some words, of these.

All of it is computed in tensors that hold many rows, each with its own settings, and nothing is
read before one copy back at the end: a GPU never waits for the host. On a CPU rows are taken as
many at a time as its cache holds.

Every row is computed from its own logits and its own random number. Neither its neighbours nor
their number matter. So the row behind some drafts is drawn with all others, as if these were the
sequence's tokens, and afterwards counts or does not (`verified`).

Shapes: R rows (sequences that sample now, once for each token that may come), W vocabulary
size, C columns of a table.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from molink.engine.device.streams import uploaded
from molink.engine.sampling.drawing import draw, draw_settings
from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.logit_changes import (
    ForbiddenTokens,
    change,
    changes,
    forbidden_tokens,
)
from molink.engine_protocol.drawn import DrawnToken, GrammarState
from molink_scheduler.batch import Batch, Span
from molink_scheduler.request import LOGPROBS_MAX

LOGITS_AT_ONCE = {"cpu": 2**17, "cuda": 2**22}
"""Logits of all rows at once. As doubles they fill a CPU's second cache of a megabyte. On a GPU the
bound is memory: 32 MB of doubles, some four times over while they are sorted."""


def rows_at_once(vocabulary_size: int, device: torch.device) -> int:
    """How many rows of a vocabulary are computed together, at least one."""
    return max(1, LOGITS_AT_ONCE["cpu" if device.type == "cpu" else "cuda"] // vocabulary_size)


def sampling_rows(batch: Batch) -> tuple[list[Span], list[int]]:
    """The spans that sample, and the rows of each that are drawn: that of its last token known, and
    those of its drafts."""
    samplers, rows, end = list[Span](), list[int](), 0
    for span in batch.spans:
        end += span.tokens
        if span.samples:
            samplers.append(span)
            rows += range(end - len(span.drafts) - 1, end)
    return samplers, rows


def sample(
    logits_RW: torch.Tensor, histories: Sequence[SequenceHistory], known_tokens: Sequence[int]
) -> list[DrawnToken]:
    """Draw one token per row and add it to its history; `known_tokens` counts prompt and output of
    each so far."""
    sampling = Sampling(histories, known_tokens, logits_RW.shape[1], logits_RW.device)
    sent = uploaded(sampling.settings, logits_RW.device)
    (table_RC,) = download(sampling.table(logits_RW, sent))
    return sampling.take(table_RC)


def download(
    *tables: torch.Tensor, read: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.cpu
) -> list[np.ndarray]:
    """The tables on the host, as doubles of their shapes, which hold token ids, counts and single
    precision exactly; `read` copies one there, and makes the host wait."""
    filled = [table for table in tables if table.numel()]
    if len(filled) == 1:  # Most steps score no prompts.
        whole = read(filled[0].double()).numpy()
        return [whole if table is filled[0] else np.zeros(table.shape) for table in tables]
    sizes = [table.numel() for table in tables]
    numbers = read(torch.cat([table.double().flatten() for table in tables]))
    parts = zip(torch.split(numbers, sizes), tables, strict=True)
    return [part.view(table.shape).numpy() for part, table in parts]


class _Part(NamedTuple):
    """Rows that are computed together, and what of their settings is sent."""

    first_row: int
    histories: Sequence[SequenceHistory]
    changes: list[np.ndarray]
    draws: list[np.ndarray]


class Sampling:
    """Draws of one step: settings on the host, a table on the device, and tokens once that is on
    the host."""

    def __init__(
        self,
        histories: Sequence[SequenceHistory],
        known_tokens: Sequence[int],
        vocabulary_size: int,
        device: torch.device,
        masks_wait_s: float | None = None,
        drafts: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """`masks_wait_s`: for which grammars are waited for; None: as long as it takes. `drafts` of
        each sequence, whose rows are one more and stand together; None: there are none."""
        self._histories, self._known_tokens = histories, known_tokens
        none: Sequence[Sequence[int]] = [()] * len(histories)
        self._drafts = none if drafts is None else drafts
        ends = accumulate((len(one) + 1 for one in self._drafts), initial=0)
        self._runs = [range(*pair) for pair in pairwise(ends)]
        self._masks_wait_s, self._forbidden = masks_wait_s, ForbiddenTokens({}, set(), set())
        count = rows_at_once(vocabulary_size, device)
        self._parts = list[_Part]()
        for first in range(0, len(histories), count):
            own = histories[first : first + count]
            draws = draw_settings(own, known_tokens[first : first + count])
            self._parts.append(_Part(first, own, changes(own, vocabulary_size), draws))

    def __len__(self) -> int:
        return len(self._histories)

    @property
    def settings(self) -> list[np.ndarray]:
        """Numbers that `table` wants to be sent."""
        return [array for part in self._parts for array in (*part.changes, *part.draws)]

    def table(self, logits_RW: torch.Tensor, sent: Sequence[torch.Tensor]) -> torch.Tensor:
        """Doubles [R, C]: each row's word, and where log-probabilities are asked for that of the
        word, the likeliest words and theirs; of logits, which stay as they are, and `settings` on
        their device. -1 is the word of logits that are not finite."""
        if not self._histories:
            return logits_RW.new_zeros(0, 1)
        # Nobody waits for the mask of a draft in place of that of a sequence.
        order = sorted((behind, row) for run in self._runs for behind, row in enumerate(run))
        rows = [row for _, row in order]
        self._forbidden = forbidden_tokens(self._histories, self._masks_wait_s, rows)
        left, tables = iter(sent), list[torch.Tensor]()
        for part in self._parts:
            of_changes, of_draws = (
                [next(left) for _ in arrays] for arrays in (part.changes, part.draws)
            )
            tables.append(_table(part, logits_RW, self._forbidden.masks, of_changes, of_draws))
        if len(tables) == 1:
            return tables[0]
        columns = max(table.shape[1] for table in tables)
        return torch.cat([F.pad(table, (0, columns - table.shape[1])) for table in tables])

    def take(self, table_RC: np.ndarray) -> list[DrawnToken]:
        """The tokens, those of a sequence in order, each added to its history, but for those that
        are late; from the table on the host."""
        table = table_RC.tolist()
        pairs = zip(self._runs, self._drafts, strict=True)
        return [token for run, drafts in pairs for token in self._of_run(run, drafts, table)]

    def token_ids(self, table_RC: np.ndarray) -> list[int | None]:
        """Token id of each row, added to no history; None where there is none: its mask is not
        ready, nothing may follow, or its logits are not finite. From the table on the host."""
        gone = self._forbidden.lost | self._forbidden.late
        token_ids = [int(columns[0]) for columns in table_RC.tolist()]
        return [
            None if row in gone or token_id < 0 else token_id
            for row, token_id in enumerate(token_ids)
        ]

    def late(self, logits_RW: torch.Tensor) -> list[tuple[SequenceHistory, torch.Tensor, int]]:
        """Rows whose masks were not ready: each one's history, a copy of its logits [W], and how
        many tokens are known of it."""
        return [
            (self._histories[row], logits_RW[row].clone(), self._known_tokens[row])
            for row in (run[0] for run in self._runs)
            if row in self._forbidden.late
        ]

    def _of_run(
        self, run: range, drafts: Sequence[int], table: Sequence[list[float]]
    ) -> list[DrawnToken]:
        """Tokens of one sequence, added to its history, which is that of the run's first row."""
        lost, late, first = self._forbidden.lost, self._forbidden.late, run[0]
        # Behind the first row no mask means that nothing can follow the draft, or not yet.
        token_ids = [
            None if row in late or (row in lost and row > first) else int(table[row][0])
            for row in run
        ]
        tokens = [self._token(row, table[row]) for row in run[: rows_that_count(drafts, token_ids)]]
        if not tokens:
            return []
        history, last = self._histories[first], tokens[-1]
        history.go_on_as(self._histories[first + len(tokens) - 1])
        if last.is_lost:
            return tokens
        state = GrammarState.FAILED if first in lost else history.add(last.token_id)
        return [*tokens[:-1], replace(last, grammar=state)]

    def _token(self, row: int, columns: list[float]) -> DrawnToken:
        history, token_id = self._histories[row], int(columns[0])
        if token_id < 0:
            return DrawnToken(history.request_id, 0, is_lost=True)
        if history.params.logprobs is None:
            return DrawnToken(history.request_id, token_id)
        return DrawnToken(history.request_id, token_id, *ranked(columns, history.params.logprobs))


def _table(
    part: _Part,
    logits_RW: torch.Tensor,
    masks: Mapping[int, torch.Tensor],
    changes: Sequence[torch.Tensor],
    draws: Sequence[torch.Tensor],
) -> torch.Tensor:
    first, end = part.first_row, part.first_row + len(part.histories)
    own_masks = {row - first: mask for row, mask in masks.items() if first <= row < end}
    copy = bool(own_masks or changes)
    own_RW = logits_RW[first:end].to(torch.float32, copy=copy)
    for row, forbidden_W in own_masks.items():
        own_RW[row].masked_fill_(forbidden_W, float("-inf"))
    is_scored = any(history.params.logprobs is not None for history in part.histories)
    logprobs_RW = torch.log_softmax(own_RW, -1) if is_scored else None
    change(own_RW, changes)
    drawn_R1 = draw(own_RW, part.histories, draws)[:, None]
    table_RC = drawn_R1.double() if logprobs_RW is None else with_logprobs(drawn_R1, logprobs_RW)
    is_lost_R1 = ~logits_RW[first:end].amax(-1, keepdim=True).isfinite()
    table_RC[:, :1].masked_fill_(is_lost_R1, -1.0)
    return table_RC


# -- log-probabilities ----------------------------------------------------------------------------


def with_logprobs(words_R1: torch.Tensor, logprobs_RW: torch.Tensor) -> torch.Tensor:
    """Doubles [R, C]: the words, their log-probabilities, the likeliest words and theirs."""
    # Always as many: which of equally likely words come last must not depend on the neighbours.
    best = logprobs_RW.topk(min(LOGPROBS_MAX, logprobs_RW.shape[1]))
    columns = (words_R1, logprobs_RW.gather(1, words_R1), best.indices, best.values)
    return torch.cat([column.double() for column in columns], 1)


def ranked(columns: Sequence[float], count: int) -> tuple[float, tuple[tuple[int, float], ...]]:
    """Log-probability of the word of such a row, and the `count` likeliest words, best first."""
    half = 2 + (len(columns) - 2) // 2
    both = zip(columns[2:half][:count], columns[half:], strict=False)
    top = tuple((int(word), logprob) for word, logprob in both if logprob > float("-inf"))
    return columns[1], top


def rows_that_count(drafts: Sequence[int], token_ids: Sequence[int | None]) -> int:
    """Verification of drafts: how many of a span's rows count, from the first on. `token_ids`: what
    each row drew, one more than there are drafts; None: nothing, as its grammar's mask was not
    there.

    A row stands behind the drafts before it, so its token is the sequence's if those are what was
    drawn in front of it. The first draft that is not ends the run, and the token that was drawn in
    its place is the sequence's next one: a span gives one token at least, the same with any drafts.
    """
    for row, token_id in enumerate(token_ids):
        if token_id is None:
            return row
        if row == len(drafts) or token_id != drafts[row]:
            return row + 1
    raise ValueError("a row is drawn behind each draft, and one before them")
