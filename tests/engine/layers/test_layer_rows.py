"""Random ragged batches over a poisoned pool: torch and our CPU kernels give what attention written
out gives, and the kernels every span the same bits alone as in company."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

import molink.engine.layers.layer_rows as layer_rows_module
from molink.engine.kernels.cpu import native_decode
from molink.engine.kernels.cpu.native_attention import kernels_for
from molink.engine.kernels.cpu.native_decode import decode_kernel_for, decode_kernel_of
from molink.engine.kernels.cpu.native_kernel import AVX2, AVX512, native_library
from molink.engine.kernels.cpu.native_spans import span_kernel_for, span_kernel_of
from molink.engine.layers.layer_rows import LayerRows
from molink.engine.layers.torch_rows import DecodeRows, TorchRows
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.kv_rows import KvRows
from molink.engine.memory.ragged_batch import RaggedSpan
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from tests.sweeps import swept
from tools.experiments.cards.random_batches import BatchSize, RandomBatch, random_batch, written_out

CPU = torch.device("cpu")
SIZE = BatchSize(spans=6, rows=40, earlier_keys=700)
BATCHES = 60


def of_own_keys(batch: RandomBatch) -> RandomBatch:
    """Without padding and rows whose keys end before them, which no stage's step has."""
    spans, row, rows = [], 0, []
    for span in batch.spans:
        if span.keys == span.start + span.rows:
            spans.append(replace(span, row=row))
            rows += range(span.row, span.row + span.rows)
            row += span.rows
    return replace(batch, q_THA=batch.q_THA[rows], spans=tuple(spans))


def layer_rows(batch: RandomBatch) -> LayerRows:
    pool = KvPool(len(batch.layer.keys.rows_SKA))
    given = (batch.layer, batch.q_THA, batch.window, batch.variant)
    return LayerRows(batch.geometry(), pool, *given)


@pytest.mark.parametrize("is_torch_alone", [True, False])
@pytest.mark.parametrize("number", swept(range(BATCHES), of=15))
def test_rows_in_fp32_are_attention_written_out(number, is_torch_alone, monkeypatch):
    """By torch, and by torch and the kernels for decode rows and spans."""
    if is_torch_alone:
        for name in ("decode_kernel_for", "span_kernel_for"):
            monkeypatch.setattr(layer_rows_module, name, lambda query, layer: None)
    batch = of_own_keys(random_batch(number, SIZE, torch.float32, CPU))
    if batch.spans:
        wanted, _ = written_out(batch)
        torch.testing.assert_close(layer_rows(batch).attend(), wanted, atol=1e-5, rtol=1e-4)


@dataclass(frozen=True)
class SpanKernels:
    """What attends spans of several rows, or all, on a kind of CPU."""

    dtype: torch.dtype
    near: float
    with_decodes: bool

    def attended(self, batch: RandomBatch, spans: Sequence[RaggedSpan]) -> torch.Tensor:
        """Attention of the whole batch over these spans; rows of others are infinite."""
        call = (batch.geometry(tuple(spans)), batch.window, batch.variant)
        if self.with_decodes:
            return kernels_for(batch.q_THA, batch.layer).attend(batch.q_THA, batch.layer, *call)
        size = (*batch.q_THA.shape[:2], batch.layer.values.size)
        out_THV = torch.full(size, torch.inf, dtype=self.dtype)
        of_avx2(self.dtype).attend(batch.q_THA, batch.layer, *call, out_THV)
        return out_THV

    def spans(self, batch: RandomBatch) -> list[RaggedSpan]:
        """Spans of the batch that it takes; skips the test where there are none."""
        if self.with_decodes:
            has_kernel = kernels_for(batch.q_THA, batch.layer) is not None
        else:
            has_kernel = span_kernel_for(batch.q_THA, batch.layer) and of_avx2(self.dtype)
        spans = [span for span in batch.spans if self.with_decodes or span.rows > 1]
        if not has_kernel or not spans:
            pytest.skip("no kernel here, or it does not take these sizes, or no such spans")
        return spans


@cache
def of_avx2(dtype):
    return span_kernel_of(native_library(AVX2), dtype)


SPAN_KERNELS = {
    "bf16, AVX512": SpanKernels(torch.bfloat16, 3e-2, with_decodes=True),
    "bf16, AVX2": SpanKernels(torch.bfloat16, 3e-2, with_decodes=False),
    "fp32, AVX2": SpanKernels(torch.float32, 2e-5, with_decodes=False),
}
by_span_kernels = pytest.mark.parametrize("by", SPAN_KERNELS.values(), ids=SPAN_KERNELS)


def rows_of(spans: Sequence[RaggedSpan]) -> list[int]:
    return [row for span in spans for row in range(span.row, span.row + span.rows)]


@by_span_kernels
@pytest.mark.parametrize("number", swept(range(BATCHES), of=15))
def test_our_kernels_are_attention_written_out_and_know_no_company(number, by):
    batch = random_batch(number, SIZE, by.dtype, CPU)
    spans = by.spans(batch)
    rows = rows_of(spans)
    got, (wanted, _) = by.attended(batch, batch.spans), written_out(batch)
    torch.testing.assert_close(got[rows].float(), wanted[rows], atol=by.near, rtol=by.near)
    alone = torch.cat([by.attended(batch, (span,))[rows_of((span,))] for span in spans])
    assert torch.equal(got[rows], alone)
    got[rows] = torch.inf
    assert got.isinf().all(), "rows of other spans are not written"


@pytest.mark.parametrize("by", list(SPAN_KERNELS.values())[1:], ids=list(SPAN_KERNELS)[1:])
@pytest.mark.parametrize("number", swept(range(BATCHES), of=15))
def test_rows_of_a_span_are_those_of_decode(number, by):
    batch = random_batch(number, SIZE, by.dtype, CPU)
    spans = by.spans(batch)
    decode = decode_kernel_of(native_library(AVX2), by.dtype)
    if decode_kernel_for(batch.q_THA, batch.layer) is None:
        pytest.skip("the kernel for decode rows takes no int8")
    alone = tuple(
        replace(span, row=span.row + row, rows=1, start=span.start + row)
        for span in spans
        for row in range(span.rows)
    )
    got = by.attended(batch, spans)
    wanted = torch.full_like(got, torch.inf)
    call = (batch.geometry(alone), batch.window, batch.variant)
    decode.attend(batch.q_THA, batch.layer, *call, wanted)
    torch.testing.assert_close(got, wanted, atol=by.near, rtol=by.near)


def unseen_of_first_rows(span: RaggedSpan, window: int) -> list[int]:
    """Slots of keys that all rows of a span but the last leave out: its last key, and those before
    the window of its first row, of the block in which that begins."""
    first = max(0, span.start - window + 1)
    before = range(first // BLOCK_TOKENS * BLOCK_TOKENS, first)
    keys = (*before, span.keys - 1)
    return [span.blocks[key // BLOCK_TOKENS] * BLOCK_TOKENS + key % BLOCK_TOKENS for key in keys]


@by_span_kernels
@pytest.mark.parametrize("scale", [torch.nan, torch.inf])
@pytest.mark.parametrize("number", swept(range(BATCHES), of=30))
def test_scales_of_keys_that_a_row_leaves_out_are_no_part_of_it(number, scale, by):
    """Codes are finite, so a weight of zero is enough for them; a scale may be of a row that went
    beyond its format."""
    batch = random_batch(number, SIZE, by.dtype, CPU)
    scales = batch.layer.keys.scales_SK
    spans = [one for one in by.spans(batch) if one.rows > 1 and one.keys == one.start + one.rows]
    if scales is None or not spans:
        pytest.skip("no scales, or no span of several rows")
    window = 7

    def attended(span, layer):
        own = replace(batch, layer=layer, window=window)
        return by.attended(own, (span,))[span.row : span.row + span.rows - 1]

    for span in spans:
        slots, parts = unseen_of_first_rows(span, window), []
        for rows in (batch.layer.keys, batch.layer.values):
            spoilt = rows.scales_SK.clone()
            spoilt[slots] = scale
            parts.append(KvRows(rows.rows_SKA, spoilt))
        got = attended(span, type(batch.layer)(*parts))
        assert torch.equal(got, attended(span, batch.layer))


LONG = BatchSize(spans=4, rows=70, earlier_keys=1_700)
"""Contexts of several pieces, as the kernel takes them."""


@by_span_kernels
@pytest.mark.parametrize("window", [None, 600])
@pytest.mark.parametrize("number", swept(range(BATCHES), of=15))
def test_rows_behind_long_contexts_are_the_same_in_a_span_and_in_two(number, window, by):
    batch = random_batch(number, LONG, by.dtype, CPU)
    # So that a few keys of any piece take most of the weight.
    batch = replace(batch, q_THA=8 * batch.q_THA, window=window)
    spans, halves = by.spans(batch), []
    for span in spans:
        rows = span.rows // 2
        is_cut = min(rows, span.rows - rows) > 1
        halves.append(replace(span, rows=rows) if is_cut else span)
        if is_cut:
            of = (span.row + rows, span.rows - rows, span.start + rows)
            halves.append(RaggedSpan(*of, span.keys, span.blocks))
    rows, (wanted, _) = rows_of(spans), written_out(batch)
    got, again = (by.attended(batch, some)[rows] for some in (spans, halves))
    torch.testing.assert_close(got.float(), wanted[rows], atol=by.near, rtol=by.near)
    assert torch.equal(got, again)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_bits_do_not_depend_on_threads(dtype, monkeypatch):
    """Which share out rows and heads among them, as many heads together as they are few."""
    for number in range(10):
        rows, outs = layer_rows(of_own_keys(random_batch(number, SIZE, dtype, CPU))), []
        for threads in (1, 2, 5):
            monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
            outs.append(rows.attend() if rows.batch.spans else torch.zeros(1))
        assert torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])


DECODE_KERNELS = {
    "fp32, AVX2": (AVX2, torch.float32, 1e-5),
    "fp32, AVX512": (AVX512, torch.float32, 1e-5),
    "bf16, AVX2": (AVX2, torch.bfloat16, 1e-2),
}


@pytest.mark.parametrize(("of", "dtype", "near"), DECODE_KERNELS.values(), ids=DECODE_KERNELS)
@pytest.mark.parametrize("number", swept(range(BATCHES), of=15))
def test_decode_is_attention_written_out_and_knows_no_company(number, of, dtype, near, monkeypatch):
    kernel = decode_kernel_of(native_library(of), dtype)
    monkeypatch.setattr(native_decode, "_kernel", lambda dtype: kernel)
    batch = random_batch(number, SIZE, dtype, CPU)
    decodes = [span for span in batch.spans if span.rows == 1]
    if not decodes or decode_kernel_for(batch.q_THA, batch.layer) is None:
        pytest.skip("no kernel here, or it does not take these sizes, or no decode rows")
    rows, (wanted, _) = [span.row for span in decodes], written_out(batch)

    def attended(spans):
        out_THV = torch.full_like(wanted, torch.inf, dtype=dtype)
        call = (batch.geometry(spans), batch.window, batch.variant)
        kernel.attend(batch.q_THA, batch.layer, *call, out_THV)
        return out_THV

    got = attended(batch.spans)
    torch.testing.assert_close(got[rows].float(), wanted[rows], atol=near, rtol=10 * near)
    assert torch.equal(got[rows], torch.cat([attended((one,))[[one.row]] for one in decodes]))
    got[rows] = torch.inf
    assert got.isinf().all(), "rows of other spans are not written"


@pytest.mark.parametrize("number", swept(range(BATCHES), of=15))
def test_decode_rows_that_are_gathered_together(number):
    """As on a card without our kernel."""
    batch = of_own_keys(random_batch(number, SIZE, torch.float32, CPU))
    batch = replace(
        batch, layer=type(batch.layer)(*map(finite, (batch.layer.keys, batch.layer.values)))
    )
    decodes = [span for span in batch.spans if span.rows == 1]
    if not decodes:
        return
    rows = layer_rows(batch)
    size = batch.layer.values.size
    call = (batch.geometry(), batch.q_THA, size, rows._numbers, batch.window, batch.variant)
    torch_rows, wanted = TorchRows(*call), written_out(batch)[0]
    for together in torch_rows._shared(decodes):
        (got,) = torch_rows._decodes(together, rows.pool)
        torch.testing.assert_close(got, wanted[together.rows_R], atol=1e-5, rtol=1e-4)


def finite(rows: KvRows) -> KvRows:
    """A pool's slots hold numbers, if only old ones: gathered blocks end in some."""
    scales = None if rows.scales_SK is None else rows.scales_SK.nan_to_num(3.0)
    return KvRows(rows.rows_SKA.nan_to_num(3.0), scales)


def test_decode_rows_of_like_lengths_share_a_call():
    batch = random_batch(0, SIZE, torch.float32, CPU)
    span = replace(batch.spans[0], row=0, rows=1, start=0, keys=1, blocks=(0,))
    lengths = (16, 15, 40, 64, 1000, 900)
    spans = [
        replace(span, row=row, start=keys - 1, keys=keys, blocks=range(-(-keys // 16)))
        for row, keys in enumerate(lengths)
    ]
    rows = layer_rows(replace(batch, q_THA=torch.zeros(6, 2, 8), spans=tuple(spans), window=None))
    torch_rows = TorchRows(rows.batch, rows.q_THA, 8, rows._numbers, None, rows.variant)
    calls: list[DecodeRows] = list(torch_rows._shared(spans))
    assert [call.rows_R.tolist() for call in calls] == [[0, 1], [2, 3], [4, 5]]
