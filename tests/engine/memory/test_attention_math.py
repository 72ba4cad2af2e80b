"""Softcaps and sinks over some keys at a time give what they give over all at once."""

from functools import partial

import pytest
import torch

from molink.engine.memory import attention_math
from molink.engine.memory.attention_math import AttentionVariant, attend_packed, causal_mask

BATCH, KV_HEADS, GROUP, ROWS, KEYS, SIZE = 3, 2, 3, 7, 90, 16
VARIANTS = {
    "softcap": AttentionVariant(0.3, 2.0),
    "sinks": AttentionVariant(0.3, None, torch.linspace(-3, 3, KV_HEADS * GROUP)),
    "both": AttentionVariant(0.3, 3.0, torch.linspace(-3, 3, KV_HEADS * GROUP)),
}


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(dtype=torch.float32, keys=KEYS):
    q = random(BATCH, KV_HEADS, GROUP * ROWS, SIZE, dtype=dtype)
    k, v = (random(BATCH, KV_HEADS, keys, SIZE, dtype=dtype, seed=seed) for seed in (1, 2))
    return q, k, v


def written_out(q, k, v, mask, variant):
    scores = q.double() @ k.double().transpose(-1, -2) * variant.scale
    if variant.softcap is not None:
        scores = torch.tanh(scores / variant.softcap) * variant.softcap
    scores = scores + mask
    if variant.sinks_H is not None:
        sinks = variant.sinks_H.view(KV_HEADS, GROUP).repeat_interleave(ROWS, 1)
        scores = torch.cat([scores, sinks[None, :, :, None].expand(BATCH, -1, -1, 1)], -1)
    return torch.softmax(scores, -1)[..., : k.shape[2]] @ v.double()


def mask_of(window, dtype=torch.float32):
    return partial(causal_mask, ROWS, KEYS, window, GROUP, dtype, torch.device("cpu"))


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("window", [None, 1, 20])
@pytest.mark.parametrize("keys_together", [1, 8, 64, KEYS])
def test_pieces_are_the_whole(variant, window, keys_together, monkeypatch):
    monkeypatch.setattr(attention_math, "SCORES_MAX", 0)
    monkeypatch.setattr(attention_math, "KEYS_MIN", keys_together)
    made = mask_of(window)
    wanted = written_out(*inputs(), made(), variant)
    for mask in (made(), lambda part: made(part=part)):
        got = attend_packed(*inputs(), mask, variant)
        torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_mask_for_each_sequence(variant, monkeypatch):
    """As decode rows of uneven lengths have it: whole pieces are hidden."""
    monkeypatch.setattr(attention_math, "SCORES_MAX", 0)
    monkeypatch.setattr(attention_math, "KEYS_MIN", 16)
    lengths = torch.tensor([5, KEYS, 40])
    hidden = torch.arange(KEYS)[None] >= lengths[:, None]
    mask = torch.zeros(BATCH, KEYS).masked_fill_(hidden, float("-inf"))[:, None, None]
    got = attend_packed(*inputs(), mask, variant)
    wanted = written_out(*inputs(), mask, variant)
    torch.testing.assert_close(got.double(), wanted, atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_thousands_of_large_values_do_not_overflow(dtype):
    q, k, v = inputs(dtype, keys=4000)
    got = attend_packed(q * 0, k, v * 0 + 50, None, VARIANTS["softcap"])
    torch.testing.assert_close(got, torch.full_like(got, 50))


def test_no_tensor_grows_with_the_keys(monkeypatch):
    """The largest that is made is one of scores, as large as the limit allows."""
    monkeypatch.setattr(attention_math, "SCORES_MAX", 2**16)
    rows = BATCH * KV_HEADS * GROUP * ROWS
    largest = [sizes_made(keys) for keys in (2_000, 20_000)]
    assert largest[0] == largest[1] <= max(2**16, rows * attention_math.KEYS_MIN)


def sizes_made(keys):
    """Numbers in the largest tensor that any operation makes."""
    made = []

    class Sizes(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not result._is_view():
                made.append(result.numel())
            return result

    given = inputs(keys=keys)
    mask = partial(causal_mask, ROWS, keys, None, GROUP, torch.float32, torch.device("cpu"))
    with Sizes():
        attend_packed(*given, lambda part: mask(part=part), VARIANTS["both"])
    return max(made)
