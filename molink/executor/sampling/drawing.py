"""One draw for each row: temperature, truncation, then inverse CDF over the token ids.

A draw needs one number per row, which follows from the request's seed and the token's position
alone. There is no state to keep, to lose with a failed stage, or to share between requests.

Probabilities and their sums are doubles: in single precision some draws of a flat row of 152,000
words would go to the neighbour of the word that is due.

Shapes: R rows, W words of the vocabulary.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch

from molink.executor.sampling.copies import upload
from molink.executor.sampling.history import SequenceHistory
from molink.executor.sampling.truncation import Limits, keep_likeliest, truncates

__all__ = ["draw", "inverse_cdf", "uniform"]

FRACTION_BITS = 52
"""One less than a double holds, so that uniform * total stays below total after rounding."""


def draw(
    logits_RW: torch.Tensor, histories: Sequence[SequenceHistory], known_tokens: Sequence[int]
) -> torch.Tensor:
    """The token of each row, [R] on the device: the likeliest where the temperature is 0."""
    params = [history.params for history in histories]
    is_random = [own.temperature > 0 for own in params]
    if not any(is_random):
        return likeliest(logits_RW)
    columns = zip(*map(_settings, histories, known_tokens), strict=True)
    sent = [column[:, None] for column in upload(logits_RW.device, is_random, *columns)]
    is_random_R1, temperatures_R1, uniforms_R1, min_p_R1, top_k_R1, top_p_R1 = sent
    scaled_RW = logits_RW / temperatures_R1.float()
    probabilities_RW = torch.softmax(scaled_RW, -1, dtype=torch.float64)
    if any(map(truncates, params)):
        top_k_R1 = top_k_R1.clamp(max=logits_RW.shape[1]).long()
        keep_likeliest(probabilities_RW, params, Limits(min_p_R1, top_k_R1, top_p_R1))
    drawn_R = inverse_cdf(probabilities_RW, uniforms_R1[:, 0])
    if all(is_random):
        return drawn_R
    return torch.where(is_random_R1[:, 0] > 0, drawn_R, likeliest(logits_RW))


def _settings(history: SequenceHistory, known: int) -> tuple[float, ...]:
    """Temperature, number and limits of one row; of a greedy row such that nothing goes wrong."""
    params = history.params
    if params.temperature == 0:
        return 1.0, 0.0, 0.0, 1.0, 1.0
    number = uniform(params.seed, known - history.prompt_tokens)
    return params.temperature, number, params.min_p, params.top_k or math.inf, params.top_p


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
    raw = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (raw >> (64 - FRACTION_BITS)) * 2.0**-FRACTION_BITS


def inverse_cdf(probabilities_RW: torch.Tensor, uniforms_R: torch.Tensor) -> torch.Tensor:
    """The first word of each row at which the cumulative probability exceeds the row's number, [R].

    The probabilities are doubles of any sum; they are overwritten.
    """
    cumulative_RW = probabilities_RW.cumsum_(-1)
    # Relative to the sum as it came out, which rounding keeps from being exactly one.
    targets_R = uniforms_R * cumulative_RW[:, -1]
    words_R1 = torch.searchsorted(cumulative_RW, targets_R[:, None], right=True)
    return words_R1[:, 0].clamp_(max=cumulative_RW.shape[1] - 1)
