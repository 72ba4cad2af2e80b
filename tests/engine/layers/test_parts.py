"""Attention in parts and a join give what attention to all keys gives, however these are shared
out: on every path of a CPU, for decode rows, drafts and spans."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from molink.engine.kernels.cpu import native_decode
from molink.engine.kernels.cpu.native_kernel import AVX2, native_library
from molink.engine.layers import layer_rows
from molink.engine.layers import parts as parts_module
from molink.engine.layers.latent_attention import LatentRows
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.parts import Part, attend_part, joined
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool
from molink.errors import UnsupportedModelError
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from tools.experiments.cards.random_batches import BatchSize, random_batch, written_out

CPU = torch.device("cpu")
SIZE = BatchSize(spans=4, rows=40, earlier_keys=300)
FARTHEST = {torch.float32: 2e-5, torch.bfloat16: 3e-2}
"""Difference of a joined number from attention written out in fp32, by the largest of its kind."""


def none_of(query, layer):
    """No kernel."""


def of_avx2(dtype):
    """The kernel for decode rows of CPUs that have no more."""
    return native_decode.decode_kernel_of(native_library(AVX2), dtype)


PATHS = {
    "kernels": {},
    "AVX2": {(layer_rows, "kernels_for"): none_of, (native_decode, "_kernel"): of_avx2},
    "torch": {
        (layer_rows, "kernels_for"): none_of,
        (layer_rows, "decode_kernel_for"): none_of,
        (layer_rows, "span_kernel_for"): none_of,
        (parts_module, "join_by_kernel"): lambda outs, log_sums, sinks_H: None,
    },
}


@pytest.fixture(params=["kernel", "torch"])
def join(request, monkeypatch):
    """What joins parts."""
    if request.param == "torch":
        monkeypatch.setattr(parts_module, "join_by_kernel", lambda outs, log_sums, sinks_H: None)
    return joined


def is_with_own(span):
    return span.keys == span.start + span.rows


def attended(batch, spans, order=0):
    """Part of the batch's rows over these spans."""
    pool = KvPool(len(batch.layer.keys.rows_SKA))
    call = (batch.layer, batch.q_THA, batch.window, batch.variant)
    return attend_part(LayerRows(batch.geometry(tuple(spans)), pool, *call), order)


def shared_out(random, span, window, places):
    """Blocks of a span's table by place: any for each, or neighbours in a window. Those from the
    first row's on stay together, in the last place."""
    free = span.start // BLOCK_TOKENS
    own = list(range(free, len(span.blocks)))
    if window is not None:
        cuts = sorted(random.randint(0, free) for _ in range(places - 1))
        edges = [0, *cuts, len(span.blocks)]
        return [list(range(*edge)) for edge in pairwise(edges)]
    held = [[] for _ in range(places)]
    for block in range(free):
        random.choice(held).append(block)
    held[-1] += own
    return held


@pytest.mark.parametrize("dtype", FARTHEST, ids=str)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@settings(max_examples=60)
@given(number=st.integers(0, 10**6), places=st.integers(1, 5))
@example(number=0, places=1)
@example(number=0, places=5)
def test_parts_of_any_keys_are_joined(dtype, path, number, places):
    random, batch = Random(number), random_batch(number, SIZE, dtype, CPU)
    spans = [span for span in batch.spans if is_with_own(span)]
    by_place = [[] for _ in range(places)]
    for span in spans:
        held = shared_out(random, span, batch.window, places)
        for place, blocks in enumerate(held):
            if blocks or random.random() < 0.5:
                by_place[place].append(span.over_blocks(blocks))
    with pytest.MonkeyPatch.context() as patch:
        for at, instead in path.items():
            patch.setattr(*at, instead)
        parts = [attended(batch, part, order) for order, part in enumerate(by_place) if part]
        random.shuffle(parts)
        got = joined(parts, batch.variant.sinks_H) if parts else None
    wanted, _ = written_out(batch)
    for span in spans:
        rows = slice(span.row, span.row + span.rows)
        apart = (got[rows].float() - wanted[rows]).abs().max()
        assert apart <= FARTHEST[dtype] * wanted[rows].abs().max(), batch.summary


@pytest.mark.parametrize("dtype", FARTHEST, ids=str)
@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize("number", range(8))
def test_log_sum_exps_are_those_written_out(number, path, dtype, monkeypatch):
    """In the natural logarithm and without sinks, also of rows whose keys end before them."""
    for at, instead in path.items():
        monkeypatch.setattr(*at, instead)
    batch = random_batch(number, SIZE, dtype, CPU)
    part = attended(batch, batch.spans)
    bare = AttentionVariant(batch.variant.scale, batch.variant.softcap)
    wanted_THV, wanted_TH = written_out(replace(batch, variant=bare))
    near = FARTHEST[dtype]
    torch.testing.assert_close(part.log_sums_TH, wanted_TH, atol=near, rtol=near / 3)
    torch.testing.assert_close(part.out_THV.float(), wanted_THV, atol=near, rtol=near)


def of_rows(order, weight, *, rows=3, heads=2, size=16, dtype=torch.float32, seed=None):
    generator = torch.Generator().manual_seed(order if seed is None else seed)
    out_THV = torch.randn(rows, heads, size, generator=generator).to(dtype)
    return Part(order, out_THV, torch.full((rows, heads), weight))


@pytest.mark.parametrize("dtype", FARTHEST, ids=str)
def test_parts_are_joined_in_the_order_of_their_keys(dtype, join):
    parts = [
        of_rows(order, weight, dtype=dtype) for order, weight in enumerate((0.3, 2.1, 1.7, 0.9))
    ]
    wanted = join(parts, None)
    for seed in range(10):
        Random(seed).shuffle(parts)
        assert torch.equal(join(parts, None), wanted)


@pytest.mark.parametrize("dtype", FARTHEST, ids=str)
def test_sinks_count_once(dtype, join):
    """Halves of one weight and a sink as heavy as each: they share it in three."""
    parts = [of_rows(order, 1.5, dtype=dtype) for order in range(2)]
    got = join(parts, torch.full((2,), 1.5))
    wanted = (parts[0].out_THV.float() + parts[1].out_THV.float()) / 3
    torch.testing.assert_close(got.float(), wanted, atol=FARTHEST[dtype], rtol=0)
    assert got.dtype is dtype


@pytest.mark.parametrize("dtype", FARTHEST, ids=str)
@pytest.mark.parametrize("sinks_H", [None, torch.zeros(2)])
def test_rows_that_see_nothing_are_zeros(dtype, sinks_H, join):
    blind = of_rows(0, -torch.inf, dtype=dtype)
    blind.out_THV.zero_()
    assert torch.equal(join([blind], sinks_H), blind.out_THV)
    assert torch.equal(join([blind, replace(blind, order=1)], sinks_H), blind.out_THV)
    seen = of_rows(1, 0.7, dtype=dtype)
    assert torch.equal(join([blind, seen], None), seen.out_THV), "to the bit"


def test_a_large_weight_does_not_overflow(join):
    parts = [of_rows(order, weight) for order, weight in enumerate((3e4, 3e4 - 20.0))]
    torch.testing.assert_close(join(parts, torch.full((2,), -3e4)), parts[0].out_THV)


def test_what_is_no_number_is_not_hidden(join):
    """As of a place that answers wrongly: the row shows it, and no other does."""
    parts = [of_rows(order, 0.5) for order in range(2)]
    parts[0].log_sums_TH[1] = torch.nan
    got = join(parts, None)
    assert got[1].isnan().all() and got[[0, 2]].isfinite().all()


def test_rows_of_no_span_see_nothing():
    for dtype in FARTHEST:
        batch = random_batch(4, SIZE, dtype, CPU)
        part = attended(batch, [span for span in batch.spans if is_with_own(span)][:1])
        inside = part.log_sums_TH.isfinite().all(1)
        assert inside.any() and not inside.all()
        assert not part.out_THV[~inside].any() and part.log_sums_TH[~inside].isneginf().all()


def test_latent_rows_have_no_parts():
    rows = LatentRows(*[None] * 7)
    with pytest.raises(UnsupportedModelError, match="in one place"):
        attend_part(rows, 0)
