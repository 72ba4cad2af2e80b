"""Changes of logits before a draw: grammars, biases, stop tokens that come too soon, penalties.

All of them touch few words of a row, so the rows of a step are seen as one long row, of which the
touched words are gathered, changed and put back: some operations for the whole step, however many
rows and kinds of penalties it has.

Shapes: R rows, W vocabulary size, E words that are changed, of all rows together.
"""

import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from molink.engine.sampling.grammar import GrammarError
from molink.engine.sampling.history import SequenceHistory

NO_NUMBERS = np.zeros(0)

PENALTY_LEAST = 1e-6
"""A smaller repetition penalty would make logits infinite, and decides nothing more."""


class ForbiddenTokens(NamedTuple):
    """Words that the grammars of some rows forbid."""

    masks: dict[int, torch.Tensor]
    """Mask [W] of each row whose mask is ready."""
    lost: set[int]
    """Rows whose grammar cannot be followed any further."""
    late: set[int]
    """Rows whose mask is not ready."""


def forbidden_tokens(
    histories: Sequence[SequenceHistory], wait_s: float | None, order: Iterable[int]
) -> ForbiddenTokens:
    """Words that grammars forbid, as far as known within `wait_s`; None: all of them. Masks are
    waited for in this order of their rows."""
    found, until = ForbiddenTokens({}, set(), set()), time.monotonic() + (wait_s or 0.0)
    for row in order:
        history = histories[row]
        if not history.params.grammar:
            continue
        left_s = None if wait_s is None else max(0.0, until - time.monotonic())
        if left_s is not None and history.constraint and not history.constraint.is_ready(left_s):
            found.late.add(row)
            continue
        try:
            found.masks[row] = _forbidden(history)
        except GrammarError:
            found.lost.add(row)
    return found


def _forbidden(history: SequenceHistory) -> torch.Tensor:
    if history.constraint is None:
        raise GrammarError("this stage's tokenizer follows no grammars")
    return history.constraint.forbidden()


def changes(histories: Sequence[SequenceHistory], vocabulary_size: int) -> list[np.ndarray]:
    """Numbers that `change` wants to be sent: doubles, [E] each; nothing where nothing changes."""
    if not any(history.changes_logits for history in histories):
        return []
    kinds = (_biases, _early_stops, _penalties)
    return [column for kind in kinds for column in kind(histories, vocabulary_size)]


def change(logits_RW: torch.Tensor, sent: Sequence[torch.Tensor]) -> None:
    """Change the logits in place, which stand in one piece, by `changes` on their device."""
    if not sent:
        return
    bias_places, biases, stops, places, *factors = sent
    flat = logits_RW.view(-1)
    if len(biases):
        flat[bias_places.long()] += biases.float()
    if len(stops):
        _forbid(logits_RW, stops.long())
    if len(places):
        places = places.long()
        flat[places] = _penalised(flat[places], *(factor.float() for factor in factors))


def _biases(
    histories: Sequence[SequenceHistory], vocabulary_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Places [E] in all rows, and what is added there."""
    pairs = [
        (row * vocabulary_size + token_id, bias)
        for row, history in enumerate(histories)
        for token_id, bias in history.params.logit_bias
    ]
    places, biases = np.array(pairs, np.float64).T if pairs else (NO_NUMBERS, NO_NUMBERS)
    return places, biases


def _early_stops(histories: Sequence[SequenceHistory], vocabulary_size: int) -> tuple[np.ndarray]:
    """Places [E] of stop tokens that would come too soon."""
    places = [
        row * vocabulary_size + token_id
        for row, history in enumerate(histories)
        if history.is_too_short
        for token_id in history.params.stop_token_ids
    ]
    return (np.array(places, dtype=np.float64),)


def _forbid(logits_RW: torch.Tensor, stops: torch.Tensor) -> None:
    """Set words to -inf, unless no word of their row would be left: a grammar may want the end
    here."""
    flat = logits_RW.view(-1)
    before = flat[stops]
    flat[stops] = float("-inf")
    is_left_R = logits_RW.amax(-1) > float("-inf")
    is_left = is_left_R[stops.div(logits_RW.shape[1], rounding_mode="floor")]
    flat[stops] = torch.where(is_left, float("-inf"), before)


def _penalties(
    histories: Sequence[SequenceHistory], vocabulary_size: int
) -> tuple[np.ndarray, ...]:
    """Places [E] of earlier tokens; the factors of positive and of negative logits, and what is
    subtracted then."""
    parts = [
        (row * vocabulary_size + history.counts.token_ids, *_factors(history))
        for row, history in enumerate(histories)
        if history.counts is not None
    ]
    if not parts:
        return (NO_NUMBERS,) * 4
    return tuple(np.concatenate(column, dtype=np.float64) for column in zip(*parts, strict=True))


def _factors(history: SequenceHistory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    assert history.counts is not None
    params, counts = history.params, history.counts.counts
    less = counts * np.float32(params.frequency_penalty)
    less += np.float32(params.presence_penalty) * (counts > 0)
    # A penalty above 1 must make a token less likely, so negative logits are multiplied.
    penalty = max(params.repetition_penalty, PENALTY_LEAST)
    return np.full(len(counts), 1 / penalty), np.full(len(counts), penalty), less


def _penalised(
    logits_E: torch.Tensor, positive: torch.Tensor, negative: torch.Tensor, less: torch.Tensor
) -> torch.Tensor:
    return logits_E * torch.where(logits_E > 0, positive, negative) - less
