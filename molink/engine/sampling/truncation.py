"""Truncation of the vocabulary: min_p, top_k and top_p as one threshold for each row.

All three keep the likeliest words, so what they keep together is all words at least as likely as
the last one kept. Words that tie with it are kept too: 16-bit logits tie often, and a cut that
depends on a sorting algorithm would make seeded answers depend on it as well. min_p and top_k come
first, and top_p is a share of what they leave.

A GPU sorts whole rows, which takes it less than asking the host would. A CPU would take 10 ms for a
row of 152,000 words that way, so there the threshold is *selected*: a partition puts the larger
half of the words before the smaller one, their sum tells in which half the nucleus ends, and the
search goes on in that half. No half is sorted until it is small. Before that, words go that are too
unlikely to belong to the nucleus: where a few are likely, little is left to do.

Shapes: R rows, W vocabulary size. Probabilities are doubles.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from molink_scheduler.request import SamplingParams

CANDIDATES = 1024
"""Sorted outright, which takes a twentieth of what a partition of a large vocabulary does."""

TINY = float(np.finfo(np.float64).tiny)
"""Number below every probability but those of words that are forbidden."""

SELECTS_ON = frozenset({"cpu"})
"""Kinds of devices on which a row's threshold is selected rather than sorted for."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Words that the rows of a step keep, on the device."""

    min_p_R1: torch.Tensor
    top_k_R1: torch.Tensor
    """The vocabulary's size where all are kept."""
    top_p_R1: torch.Tensor


def truncates(params: SamplingParams) -> bool:
    """Whether it excludes words from a draw."""
    limits = params.min_p > 0 or params.top_k > 0 or params.top_p < 1
    return limits and not params.is_greedy


def keep_likeliest(
    probabilities_RW: torch.Tensor, params: Sequence[SamplingParams], limits: Limits
) -> None:
    """Set the probabilities of words that are excluded to zero, in place."""
    if probabilities_RW.device.type not in SELECTS_ON:
        thresholds_R1 = sorted_thresholds(probabilities_RW, limits)
        probabilities_RW.mul_(probabilities_RW >= thresholds_R1)
        return
    for row_W, own in zip(probabilities_RW, params, strict=True):
        if truncates(own):
            below = np.nextafter(selected_threshold(row_W.numpy(), own), -1)
            torch.threshold_(row_W, float(below), 0.0)


# -- on a GPU -------------------------------------------------------------------------------------


def sorted_thresholds(probabilities_RW: torch.Tensor, limits: Limits) -> torch.Tensor:
    """The probability of each row's last word kept, [R, 1]."""
    best_RW = probabilities_RW.sort(-1, descending=True).values
    kth_R1 = best_RW.gather(1, limits.top_k_R1 - 1)
    floor_R1 = torch.maximum(kth_R1, limits.min_p_R1 * best_RW[:, :1])
    sums_RW = best_RW.cumsum(-1)
    # None is left where a model gave no numbers; an index of -1 would end the process on a GPU.
    left_R1 = (best_RW >= floor_R1).sum(-1, keepdim=True).clamp_(min=1)
    wanted_R1 = limits.top_p_R1 * sums_RW.gather(1, left_R1 - 1)
    # Words before the one at which the sum reaches the nucleus; that word still belongs to it.
    reached_R1 = (sums_RW < wanted_R1).sum(-1, keepdim=True)
    last_R1 = best_RW.gather(1, reached_R1.clamp_(max=best_RW.shape[1] - 1))
    # A top_p of 1 keeps also the words that are too unlikely to change the sum.
    return torch.where(limits.top_p_R1 < 1, torch.maximum(last_R1, floor_R1), floor_R1)


# -- on a CPU -------------------------------------------------------------------------------------


def selected_threshold(probabilities_W: np.ndarray, params: SamplingParams) -> float:
    """The probability of the row's last word kept."""
    floor, left = 0.0, probabilities_W
    if params.grammar:  # A partition is slow where many values are equal.
        left = _likely(TINY, left)
    if params.min_p > 0:
        floor = params.min_p * float(left.max())
        left = _likely(floor, left)
    if 0 < params.top_k < len(left):
        floor = max(floor, _kth_largest(left, params.top_k))
        left = _likely(floor, left)
    if params.top_p == 1:
        return floor
    total = float((left * (left >= floor)).sum() if floor else left.sum())
    return max(floor, _nucleus_end(left, total, params.top_p * total))


def _kth_largest(values: np.ndarray, k: int) -> float:
    place = len(values) - k
    return float(np.partition(values, place)[place])


def _likely(least: float, values: np.ndarray) -> np.ndarray:
    """The values from `least` on, or all of them where these are many: picking many out of a row
    costs more than the sorting that it saves."""
    is_likely = values >= least
    return values[is_likely] if np.count_nonzero(is_likely) * 16 < len(values) else values


def _nucleus_end(values: np.ndarray, total: float, wanted: float) -> float:
    """The last of the largest values whose sum reaches `wanted`, which is less than `total`."""
    if not total > 0:
        return 0.0  # A model that gives no numbers.
    count = CANDIDATES
    if float(values.max()) * CANDIDATES < wanted:
        count = len(values) // 2  # As many of the largest one cannot reach it.
    else:
        # Words that together hold less than the nucleus leaves out are none of its; half of that,
        # so that rounding does not matter.
        values = _likely((total - wanted) / 2 / len(values), values)
    values = values.copy()
    while len(values) > CANDIDATES:
        place = len(values) - count
        values.partition(place)
        upper_sum = float(values[place:].sum())
        if upper_sum >= wanted:
            values = values[place:]
        else:
            values, wanted = values[:place], wanted - upper_sum
        count = len(values) // 2
    best = np.sort(values)[::-1]
    reached = int(np.searchsorted(best.cumsum(), wanted))
    return float(best[min(reached, len(best) - 1)])
