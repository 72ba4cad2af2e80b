"""Sampling of one row as anybody would write it down: sort everything, loop over everything."""

import math

import numpy as np

from molink.engine.sampling.drawing import uniform
from molink_scheduler.request import SamplingParams


def plain_token(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: tuple[int, ...] = (),
    output: tuple[int, ...] = (),
    forbidden: frozenset[int] = frozenset(),
) -> int:
    """The token that follows `output`."""
    values = plain_logits(logits, params, prompt, output, forbidden)
    if params.temperature == 0:
        return int(values.argmax())
    scaled = (values / np.float32(params.temperature)).astype(np.float64)
    weights = np.exp(scaled - scaled.max())
    kept = np.where(weights >= plain_threshold(weights, params), weights, 0.0)
    target = uniform(params.seed, len(output)) * kept.sum()
    reached = 0.0
    for word in np.flatnonzero(kept):
        reached += kept[word]
        if reached > target:
            return int(word)
    return int(np.flatnonzero(kept)[-1])


def plain_logits(logits, params, prompt, output, forbidden) -> np.ndarray:
    values = logits.astype(np.float32).copy()
    values[list(forbidden)] = -np.inf
    for word, bias in params.logit_bias:
        values[word] += np.float32(bias)
    if len(output) < params.min_tokens:
        shortened = values.copy()
        shortened[list(params.stop_token_ids)] = -np.inf
        values = shortened if shortened.max() > -np.inf else values
    if params.repetition_penalty != 1.0:
        for word in {*prompt, *output}:
            lowers = (
                1 / params.repetition_penalty if values[word] > 0 else params.repetition_penalty
            )
            values[word] *= np.float32(lowers)
    for word in set(output):
        times = np.float32(output.count(word)) * np.float32(params.frequency_penalty)
        values[word] -= times + np.float32(params.presence_penalty)
    return values


def plain_threshold(weights: np.ndarray, params: SamplingParams) -> float:
    """The weight of the last word kept."""
    floor = params.min_p * weights.max()
    ordered = sorted(weights.tolist(), reverse=True)
    if 0 < params.top_k < len(ordered):
        floor = max(floor, ordered[params.top_k - 1])
    if params.top_p == 1:
        return floor
    left = [weight for weight in ordered if weight >= floor]
    wanted, reached = params.top_p * math.fsum(left), 0.0
    for weight in left:
        reached += weight
        if reached >= wanted:
            return weight
    return left[-1]
