"""One draw for each row: temperature, truncation, then inverse CDF over the token ids.

A draw needs one number per row, which follows from the request's seed and the token's position
alone. There is no state to keep, to lose with a failed stage, or to share between requests.

Probabilities and their sums are doubles: in single precision some draws of a flat row of 152,000
words would go to the neighbour of the word that is due.

Shapes: R rows, W vocabulary size.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from molink.engine.sampling.history import SequenceHistory
from molink.engine.sampling.truncation import Limits, keep_likeliest, truncates

FRACTION_BITS = 52
"""Bits of a fraction, one less than a double holds, so that uniform * total stays below total after
rounding."""

UNIFORMS_TOGETHER = 64
"""Numbers that are made at a time, and kept for the next tokens of their request."""

WORDS_OF_COUNTER = 4
"""Words that Philox makes of each position; the first is used."""


def draw_settings(
    histories: Sequence[SequenceHistory], known_tokens: Sequence[int]
) -> list[np.ndarray]:
    """Numbers that `draw` wants to be sent: doubles, [R] each; nothing where no row is random."""
    if all(history.params.is_greedy for history in histories):
        return []
    rows = list(map(_settings, histories, known_tokens))
    return list(np.array(rows, np.float64).T)


def draw(
    logits_RW: torch.Tensor, histories: Sequence[SequenceHistory], sent: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The token of each row, [R] on the device: the likeliest where it is greedy. `sent`
    are their `draw_settings` there."""
    if not sent:
        return likeliest(logits_RW)
    params = [history.params for history in histories]
    columns = (column[:, None] for column in sent)
    is_random_R1, temperatures_R1, uniforms_R1, min_p_R1, top_k_R1, top_p_R1 = columns
    scaled_RW = logits_RW / temperatures_R1.float()
    probabilities_RW = torch.softmax(scaled_RW, -1, dtype=torch.float64)
    if any(map(truncates, params)):
        top_k_R1 = top_k_R1.clamp(max=logits_RW.shape[1]).long()
        keep_likeliest(probabilities_RW, params, Limits(min_p_R1, top_k_R1, top_p_R1))
    drawn_R = inverse_cdf(probabilities_RW, uniforms_R1[:, 0])
    if not any(own.is_greedy for own in params):
        return drawn_R
    return torch.where(is_random_R1[:, 0] > 0, drawn_R, likeliest(logits_RW))


def _settings(history: SequenceHistory, known: int) -> tuple[float, ...]:
    """Whether a row is random, its temperature, number and limits; of a greedy row such that
    nothing goes wrong."""
    params = history.params
    if params.is_greedy:
        return 0.0, 1.0, 0.0, 0.0, 1.0, 1.0
    number = uniform(params.seed, known - history.prompt_tokens)
    return 1.0, params.temperature, number, params.min_p, params.top_k or math.inf, params.top_p


def likeliest(logits_RW: torch.Tensor) -> torch.Tensor:
    """The first of the likeliest words of each row, [R]."""
    if logits_RW.device.type == "cpu":
        return torch.from_numpy(logits_RW.numpy().argmax(-1))  # Ten times as fast as torch's.
    return logits_RW.argmax(-1)


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that draws the generated token at `position`.

    Philox is a counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2,
    3", SC 2011): the number is a function of a key, the seed, and a counter, the position.
    """
    block, offset = divmod(position, UNIFORMS_TOGETHER)
    return _uniforms(seed, block)[offset]


@lru_cache(maxsize=1024)
def _uniforms(seed: int, block: int) -> list[float]:
    """Numbers of neighbouring positions: a generator takes as long to make as these."""
    generator = np.random.Philox(key=seed, counter=block * UNIFORMS_TOGETHER)
    raw = generator.random_raw(UNIFORMS_TOGETHER * WORDS_OF_COUNTER)[::WORDS_OF_COUNTER]
    numbers: list[float] = ((raw >> (64 - FRACTION_BITS)) * 2.0**-FRACTION_BITS).tolist()
    return numbers


def inverse_cdf(probabilities_RW: torch.Tensor, uniforms_R: torch.Tensor) -> torch.Tensor:
    """The first word of each row at which the cumulative probability exceeds the row's number, [R].

    The probabilities are doubles of any sum; they are overwritten.
    """
    cumulative_RW = probabilities_RW.cumsum_(-1)
    # Relative to the sum as it came out, which rounding keeps from being exactly one.
    targets_R = uniforms_R * cumulative_RW[:, -1]
    words_R1 = torch.searchsorted(cumulative_RW, targets_R[:, None], right=True)
    return words_R1[:, 0].clamp_(max=cumulative_RW.shape[1] - 1)
