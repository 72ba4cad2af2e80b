"""Attention over the paged pool equals attention written out, however the KV lies in memory."""

from itertools import pairwise, starmap
from types import SimpleNamespace

import pytest
import torch

from molink.engine.layers.attention_function import AttentionStep, active_step, attend
from molink.engine.memory import attention_math
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.step_plan import plan_step
from molink.errors import UnsupportedModelError
from molink_scheduler.batch import Batch, BatchClass, Span
from molink_scheduler.kv.blocks import KvBlocks

HEADS, KV_HEADS, KEY_SIZE, VALUE_SIZE = 6, 2, 32, 32
LENGTHS = (37, 20, 33, 18)
PIECES = (
    ((0, 0, 20), (1, 0, 7)),
    ((1, 7, 19), (0, 20, 36), (2, 0, 32)),
    ((3, 0, 17), (0, 36, 37)),
    ((1, 19, 20), (2, 32, 33), (3, 17, 18)),
)

VARIANTS = {
    "plain": {},
    "window": dict(sliding_window=6),
    "softcap": dict(softcap=2.0),
    "sinks": dict(s_aux=torch.linspace(-1, 1, HEADS)),
    "scale": dict(scaling=0.7),
    "all": dict(sliding_window=9, softcap=3.0, s_aux=torch.linspace(-2, 1, HEADS), scaling=0.5),
}


def written_out(q, k, v, scaling=None, sliding_window=None, softcap=None, s_aux=None):
    """Reference for one sequence: [H, T, A], [K, T, A], [K, T, V] -> [T, H, V]."""
    tokens = q.shape[1]
    k, v = (t.repeat_interleave(HEADS // KV_HEADS, 0) for t in (k, v))
    scores = q @ k.transpose(1, 2) * (scaling or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    ahead = torch.arange(tokens)[None] - torch.arange(tokens)[:, None]
    hidden = (ahead > 0) | (ahead <= -(sliding_window or tokens + 1))
    scores = scores.masked_fill(hidden, float("-inf"))
    if s_aux is not None:
        sinks = s_aux[:, None, None].expand(-1, tokens, 1)
        return (torch.cat([scores, sinks], -1).softmax(-1)[..., :-1] @ v).transpose(0, 1)
    return (scores.softmax(-1) @ v).transpose(0, 1)


def tensors(value_size: int, dtype: torch.dtype = torch.float32):
    generator = torch.Generator().manual_seed(3)
    return [
        [
            torch.randn(heads, tokens, size, generator=generator).to(dtype)
            for heads, size in ((HEADS, KEY_SIZE), (KV_HEADS, KEY_SIZE), (KV_HEADS, value_size))
        ]
        for tokens in LENGTHS
    ]


def rounded(rows: torch.Tensor) -> torch.Tensor:
    """What int8 KV makes of keys or values: a step of each token and head is its largest / 127."""
    step = (rows.float().abs().amax(-1, keepdim=True) / 127).bfloat16().float()
    return (rows.float() / step).round().clamp(-127, 127) * step


def paged(sequences, expected: dict[int, int], kv_dtype: str = "auto", **variant):
    """All rows of all sequences, computed in `PIECES`; `expected` says where KV is placed."""
    kv, pool = KvBlocks(32), KvPool(512, kv_dtype)
    outputs = {sequence: [] for sequence in range(len(LENGTHS))}
    for number, pieces in enumerate(PIECES):
        spans = tuple(Span(*piece, samples=False) for piece in pieces)
        for span in spans:
            kv.grow(span.request_id, span.end, expected.get(span.request_id, 0))
        batch = Batch(number, BatchClass.PREFILL, -1, spans)
        parts = zip(
            *([t[:, s.start : s.end] for t in sequences[s.request_id]] for s in spans), strict=True
        )
        query, key, value = (torch.cat(part, 1)[None] for part in parts)
        step = AttentionStep(plan_step(batch, kv, torch.device("cpu")), pool)
        with active_step(step):
            out, _ = attend(SimpleNamespace(layer_idx=4), query, key, value, None, **variant)
        assert step.layers_called == [4]
        row = 0
        for span in spans:
            outputs[span.request_id].append(out[0, row : row + span.tokens])
            row += span.tokens
    return [torch.cat(outputs[sequence]) for sequence in outputs], kv


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value_size", [VALUE_SIZE, 24])
@pytest.mark.parametrize("together", [True, False])
def test_paged_attention_equals_attention_written_out(variant, value_size, together):
    sequences = tensors(value_size)
    expected = dict(enumerate(LENGTHS)) if together else {}
    outputs, kv = paged(sequences, expected, **VARIANTS[variant])
    tables = [list(kv.table(sequence)) for sequence in range(len(LENGTHS))]
    assert all(one == list(range(one[0], one[0] + len(one))) for one in tables) == together
    for sequence, output in zip(sequences, outputs, strict=True):
        torch.testing.assert_close(
            output, written_out(*sequence, **VARIANTS[variant]), atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("together", [True, False])
def test_a_few_keys_at_a_time_give_the_same(variant, together, monkeypatch):
    monkeypatch.setattr(attention_math, "SCORES_MAX", 0)
    monkeypatch.setattr(attention_math, "KEYS_MIN", 8)
    sequences = tensors(VALUE_SIZE)
    outputs, _ = paged(sequences, dict(enumerate(LENGTHS)) if together else {}, **VARIANTS[variant])
    for sequence, output in zip(sequences, outputs, strict=True):
        exact = written_out(*sequence, **VARIANTS[variant])
        torch.testing.assert_close(output, exact, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value_size", [VALUE_SIZE, 24])
@pytest.mark.parametrize("together", [True, False])
def test_int8_kv_is_attention_over_rounded_keys_and_values(variant, value_size, together):
    sequences = tensors(value_size)
    expected = dict(enumerate(LENGTHS)) if together else {}
    outputs, _ = paged(sequences, expected, "int8", **VARIANTS[variant])
    for (query, key, value), output in zip(sequences, outputs, strict=True):
        exact = written_out(query, rounded(key), rounded(value), **VARIANTS[variant])
        torch.testing.assert_close(output, exact, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value_size", [VALUE_SIZE, 24, 80])
@pytest.mark.parametrize("together", [True, False])
def test_int8_kv_in_bfloat16_is_as_good_as_its_rounding(variant, value_size, together):
    """Through our own kernels where they exist and take the sizes (24 they do not)."""
    sequences = tensors(value_size, torch.bfloat16)
    expected = dict(enumerate(LENGTHS)) if together else {}
    outputs, _ = paged(sequences, expected, "int8", **VARIANTS[variant])
    for (query, key, value), output in zip(sequences, outputs, strict=True):
        exact = written_out(query.float(), rounded(key), rounded(value), **VARIANTS[variant])
        torch.testing.assert_close(output.float(), exact, atol=3e-2, rtol=3e-2)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("value_size", [VALUE_SIZE, 16, 24, 48])
@pytest.mark.parametrize("together", [True, False])
def test_bfloat16_attention_is_as_good_as_its_rounding(variant, value_size, together):
    """Through our own kernels where they exist and take the sizes (24 they do not)."""
    sequences = tensors(value_size, torch.bfloat16)
    expected = dict(enumerate(LENGTHS)) if together else {}
    outputs, _ = paged(sequences, expected, **VARIANTS[variant])
    for sequence, output in zip(sequences, outputs, strict=True):
        exact = written_out(*(tensor.float() for tensor in sequence), **VARIANTS[variant])
        torch.testing.assert_close(output.float(), exact, atol=3e-2, rtol=3e-2)


LONG = (700, 801, 802, 803)
"""Ends of spans: two that fill a prompt, then decode rows that read several chunks of keys."""


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("heads", [(6, 2), (5, 1), (4, 4)])
@pytest.mark.parametrize("sizes", [(64, 64), (96, 80)])
@pytest.mark.parametrize("variant", ["plain", "all"])
def test_bfloat16_is_near_fp32_on_a_long_context(kv_dtype, heads, sizes, variant):
    """Through our own kernels where they exist."""
    generator = torch.Generator().manual_seed(0)

    def random(heads: int, size: int) -> torch.Tensor:
        return torch.randn(1, heads, LONG[-1], size, generator=generator).to(torch.bfloat16)

    (heads_Q, heads_K), (key_size, value_size) = heads, sizes
    sequence = [random(heads_Q, key_size), random(heads_K, key_size), random(heads_K, value_size)]
    options = VARIANTS[variant]
    if options:
        options = options | dict(sliding_window=500, s_aux=torch.linspace(-2, 1, heads_Q))

    def outputs(dtype: torch.dtype) -> list[torch.Tensor]:
        kv, pool, results = KvBlocks(64), KvPool(1024, kv_dtype), []
        for span in starmap(lambda start, end: Span(1, start, end, False), pairwise((0, *LONG))):
            kv.grow(1, span.end, LONG[-1])
            plan = plan_step(Batch(0, BatchClass.PREFILL, -1, (span,)), kv, torch.device("cpu"))
            parts = [tensor[:, :, span.start : span.end].to(dtype) for tensor in sequence]
            with active_step(AttentionStep(plan, pool)):
                out, _ = attend(SimpleNamespace(layer_idx=0), *parts, None, **options)
            results.append(out)
        return results

    for got, wanted in zip(outputs(torch.bfloat16), outputs(torch.float32), strict=True):
        torch.testing.assert_close(got.float(), wanted, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("name", ["block_indices", "position_bias", "is_causal"])
def test_an_argument_that_nobody_knows_is_refused(name):
    """It would be ignored, and the answer quietly wrong."""
    with pytest.raises(UnsupportedModelError, match=f"hands its attention {name!r}"):
        paged(tensors(VALUE_SIZE), {}, **{name: torch.zeros(1)})


def test_a_mask_is_refused():
    q = torch.zeros(1, HEADS, 1, KEY_SIZE)
    with pytest.raises(UnsupportedModelError, match="'attention_mask'"):
        attend(SimpleNamespace(layer_idx=0), q, q, q, torch.zeros(1, 1, 1, 1))


def test_arguments_without_effect_are_taken():
    given = dict(dropout=0.0, use_cache=False, position_ids=torch.zeros(1), position_bias=None)
    plain, _ = paged(tensors(VALUE_SIZE), {})
    outputs, _ = paged(tensors(VALUE_SIZE), {}, **given)
    assert all(map(torch.equal, outputs, plain))
