"""Thresholds, selected or sorted for, are those of a plain loop over sorted words, ties too."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from molink.engine.sampling.truncation import (
    CANDIDATES,
    Limits,
    keep_likeliest,
    selected_threshold,
    sorted_thresholds,
)
from molink_scheduler.request import SamplingParams
from tests.engine.sampling.plain_sampling import plain_threshold

settings_of_rows = st.builds(
    SamplingParams,
    max_tokens=st.just(9),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 0.999)),
    top_k=st.one_of(st.just(0), st.integers(1, 50), st.integers(1, 6 * CANDIDATES)),
    min_p=st.one_of(st.just(0.0), st.floats(1e-9, 1.0)),
)


def row_of(words: int, scale: float, levels: int, seed: int) -> np.ndarray:
    """Probabilities of logits that are `scale` wide; few `levels` make many of them tie."""
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal(words) * levels) / levels * scale
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


rows = st.builds(
    row_of,
    st.sampled_from([1, 2, 24, CANDIDATES, CANDIDATES + 1, 5 * CANDIDATES + 3]),
    st.sampled_from([0.0, 0.01, 1.0, 6.0, 300.0]),
    st.sampled_from([1, 7, 10**9]),
    st.integers(0, 2**32),
)


def limits_of(params: list[SamplingParams], words: int) -> Limits:
    columns = zip(*((p.min_p, min(p.top_k or words, words), p.top_p) for p in params), strict=True)
    min_p, top_k, top_p = (torch.tensor(column, dtype=torch.float64)[:, None] for column in columns)
    return Limits(min_p, top_k.long(), top_p)


@given(rows, settings_of_rows)
@settings(max_examples=300, deadline=None)
def test_they_keep_what_a_plain_loop_keeps(row, params):
    kept = row >= plain_threshold(row, params)
    assert np.array_equal(row >= selected_threshold(row.copy(), params), kept)
    by_sorting = sorted_thresholds(torch.from_numpy(row)[None], limits_of([params], len(row)))
    assert np.array_equal(row >= by_sorting.item(), kept)


@given(st.lists(st.tuples(st.integers(0, 2**32), settings_of_rows), min_size=2, max_size=5))
@settings(max_examples=50, deadline=None)
def test_each_row_is_cut_by_its_own_settings(cases):
    table = np.stack([row_of(2 * CANDIDATES, 2.0, 50, seed) for seed, _ in cases])
    params = [own for _, own in cases]
    thresholds = sorted_thresholds(torch.from_numpy(table), limits_of(params, 2 * CANDIDATES))
    kept = torch.from_numpy(table.copy())
    keep_likeliest(kept, params, limits_of(params, 2 * CANDIDATES))
    for row, own, threshold, left in zip(table, params, thresholds[:, 0], kept, strict=True):
        wanted = np.where(row >= plain_threshold(row, own), row, 0.0)
        assert np.array_equal(left.numpy(), wanted)
        assert np.array_equal(row >= threshold.item(), wanted > 0)


@pytest.mark.parametrize(
    ("words", "scale"), [(32_000, 2.0), (128_256, 8.0), (152_064, 0.5), (262_144, 2.0)]
)
def test_rows_of_large_vocabularies_are_cut_alike(words, scale):
    row = row_of(words, scale, 256, words)
    for top_p, others in ((0.5, {}), (0.999, {}), (0.9, {"top_k": 20_000}), (0.9, {"min_p": 1e-3})):
        params = SamplingParams(max_tokens=9, top_p=top_p, **others)
        wanted = row >= plain_threshold(row, params)
        assert np.array_equal(row >= selected_threshold(row.copy(), params), wanted)
    by_sorting = sorted_thresholds(torch.from_numpy(row)[None], limits_of([params], words))
    assert np.array_equal(row >= by_sorting.item(), wanted)
