"""The Triton kernels of ragged paged attention; `ragged_attention` launches them.

`attend_tiles` computes one tile (neighbouring rows of a span times the query heads of one kv head,
stacked as rows of a matrix) over the keys of its span, or over a share of them; `merge_parts` adds
the shares of a row.

What a row gets depends on its own span only. Steps over keys start at absolute multiples of KEYS,
the number of shares is a constant (elsewhere it is chosen by the batch), and a key that a row may
not see weighs exactly zero and shifts no maximum. So a row's bits are the same alone and in any
company.

Exponents are to the base of two, which is what a card computes: scores are scaled by log2(e).

Triton's interpreter computes bfloat16 wrongly (it works on the bit patterns, without an error);
WIDEN, which only tests set, makes everything fp32 as it is loaded.
"""

# Types of a kernel's arguments are its launches', and Triton reads annotations as its own.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

GEOMETRY = [
    *("tile_span", "tile_row", "tile_part"),
    *("span_row", "span_rows", "span_start", "span_keys", "blocks"),
]
"""Pieces of one upload: wherever they begin in it, the kernel is the same."""


@triton.jit
def _span_keys_of_tile(
    first, rows, start, keys, split, window,
    TILE_ROWS: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    STEPS_MIN: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """First key and end of the keys that a program walks."""
    end = tl.minimum(keys, start + tl.minimum(first + TILE_ROWS, rows))
    begin = 0
    if HAS_WINDOW:
        begin = tl.maximum(0, start + first - window + 1) // KEYS * KEYS
    if SPLITS > 1:  # A short row uses few: its own length decides, nobody else's.
        steps = tl.maximum(tl.cdiv(tl.cdiv(end - begin, KEYS), SPLITS), STEPS_MIN)
        begin += split * steps * KEYS
        end = tl.minimum(end, begin + steps * KEYS)
    return begin, end


@triton.jit
def _slots_of_keys(table, n, inside, BLOCK: tl.constexpr):
    block = tl.load(table + n // BLOCK, mask=inside, other=0)
    return block.to(tl.int64) * BLOCK + n % BLOCK


@triton.jit
def _visible_scores(
    scores, n, inside, position, real, softcap, window,
    HAS_CAP: tl.constexpr, HAS_WINDOW: tl.constexpr,
):  # fmt: skip
    """Scores to the base of two; -inf for what a row may not see."""
    if HAS_CAP:  # softcap * tanh(scores / softcap), without a library call
        scores = softcap - 2 * softcap / (tl.exp2(scores * (2 * LOG2E / softcap)) + 1)
    seen = inside[None, :] & (n[None, :] <= position[:, None]) & real[:, None]
    if HAS_WINDOW:
        seen = seen & (n[None, :] > position[:, None] - window)
    return tl.where(seen, scores * LOG2E, float("-inf"))


@triton.jit
def _weighed(scores, peak, total):
    """Online softmax: weights of the scores, new peak and total, factor for what was summed."""
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    safe = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    weights = tl.exp2(scores - safe[:, None])
    shrink = tl.exp2(peak - safe)
    return weights, new_peak, total * shrink + tl.sum(weights, 1), shrink


@triton.jit
def _with_sink(peak, total, sink):
    """A sink is one more score, that takes weight and gives no value."""
    top = tl.maximum(peak, sink)
    shrink = tl.exp2(peak - top)
    return top, total * shrink + tl.exp2(sink - top), shrink


@triton.jit
def _log_sum(peak, total):
    """Natural logarithm of the sum of all exponentials; -inf where nothing was seen."""
    logarithm = tl.log2(tl.where(total == 0, 1.0, total))
    return tl.where(total == 0, float("-inf"), (peak + logarithm) / LOG2E)


@triton.jit
def _store_part(
    part, part_peak, part_total, at, peak, total, sums, real, v,
    V: tl.constexpr,
):  # fmt: skip
    tl.store(part_peak + at, peak, mask=real)
    tl.store(part_total + at, total, mask=real)
    # A share that saw no key has nothing to say, and is not read.
    written = (real & (peak > float("-inf")))[:, None] & (v < V)[None, :]
    tl.store(part + at[:, None] * V + v[None, :], sums, mask=written)


@triton.jit
def _store_result(
    out, log_sums, sinks, at, head, peak, total, sums, real, v,
    V: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_LOG_SUMS: tl.constexpr,
):  # fmt: skip
    if HAS_SINKS:
        sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * LOG2E
        peak, total, shrink = _with_sink(peak, total, sink)
        sums = sums * shrink[:, None]
    if HAS_LOG_SUMS:
        tl.store(log_sums + at, _log_sum(peak, total), mask=real)
    result = sums / tl.where(total == 0, 1.0, total)[:, None]
    inside = real[:, None] & (v < V)[None, :]
    tl.store(out + at[:, None] * V + v[None, :], result.to(out.dtype.element_ty), mask=inside)


@triton.jit(
    # What changes from step to step must not compile a variant in mid-service.
    do_not_specialize=["blocks_stride", "window", "heads", "scales_stride_s"],
    do_not_specialize_on_alignment=GEOMETRY,
)
def attend_tiles(
    q, keys, values, key_scales, value_scales, sinks, out, log_sums, part, part_peak, part_total,
    tile_span, tile_row, tile_part, span_row, span_rows, span_start, span_keys, blocks,
    blocks_stride, scale, softcap, window, heads,
    q_stride_t, q_stride_h, k_stride_s, k_stride_h, v_stride_s, v_stride_h, scales_stride_s,
    GROUP: tl.constexpr, A: tl.constexpr, V: tl.constexpr, A_PAD: tl.constexpr,
    V_PAD: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
    SPLITS: tl.constexpr, STEPS_MIN: tl.constexpr, HAS_WINDOW: tl.constexpr,
    HAS_CAP: tl.constexpr, HAS_SINKS: tl.constexpr, HAS_SCALES: tl.constexpr,
    HAS_LOG_SUMS: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Attention of a tile's rows; with SPLITS > 1 the part of one share of the keys."""
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    span, first = tl.load(tile_span + tile), tl.load(tile_row + tile)
    n_rows, start = tl.load(span_rows + span), tl.load(span_start + span)
    begin, end = _span_keys_of_tile(
        first, n_rows, start, tl.load(span_keys + span), split, window,
        ROWS // GROUP, KEYS, SPLITS, STEPS_MIN, HAS_WINDOW,
    )  # fmt: skip

    # The interpreter computes in fp32, and rounds where a card rounds.
    NUMBER: tl.constexpr = tl.float32 if WIDEN else q.dtype.element_ty
    m, a, v = tl.arange(0, ROWS), tl.arange(0, A_PAD), tl.arange(0, V_PAD)
    row, head = first + m // GROUP, kv_head * GROUP + m % GROUP
    real = (m < ROWS // GROUP * GROUP) & (row < n_rows)
    position = start + row
    t = (tl.load(span_row + span) + row).to(tl.int64)
    q_tile = tl.load(
        q + t[:, None] * q_stride_t + head[:, None] * q_stride_h + a[None, :],
        mask=real[:, None] & (a < A)[None, :],
        other=0.0,
    ).to(NUMBER)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    sums = tl.zeros([ROWS, V_PAD], tl.float32)
    for step in range(begin, end, KEYS):
        n = step + tl.arange(0, KEYS)
        inside = n < end
        slot = _slots_of_keys(blocks + span * blocks_stride, n, inside, BLOCK)
        k_tile = tl.load(
            keys + slot[None, :] * k_stride_s + kv_head * k_stride_h + a[:, None],
            mask=inside[None, :] & (a < A)[:, None],
            other=0,
        )
        v_tile = tl.load(
            values + slot[:, None] * v_stride_s + kv_head * v_stride_h + v[None, :],
            mask=inside[:, None] & (v < V)[None, :],
            other=0,
        )
        scores = tl.dot(q_tile, k_tile.to(NUMBER), input_precision="ieee") * scale
        if HAS_SCALES:
            place = slot * scales_stride_s + kv_head
            scores *= tl.load(key_scales + place, mask=inside, other=0.0).to(tl.float32)[None, :]
            v_scale = tl.load(value_scales + place, mask=inside, other=0.0).to(tl.float32)
            v_tile = v_tile.to(tl.float32) * v_scale[:, None]
        scores = _visible_scores(
            scores, n, inside, position, real, softcap, window, HAS_CAP, HAS_WINDOW
        )
        weights, peak, total, shrink = _weighed(scores, peak, total)
        rounded = weights.to(q.dtype.element_ty).to(NUMBER)
        product = tl.dot(rounded, v_tile.to(NUMBER), input_precision="ieee")
        sums = sums * shrink[:, None] + product

    if SPLITS > 1:
        p = (tl.load(tile_part + tile) + row - first).to(tl.int64)
        at = (p * heads + head) * SPLITS + split
        _store_part(part, part_peak, part_total, at, peak, total, sums, real, v, V)
    else:
        _store_result(
            out, log_sums, sinks, t * heads + head, head, peak, total, sums, real, v,
            V, HAS_SINKS, HAS_LOG_SUMS,
        )  # fmt: skip


@triton.jit(do_not_specialize=["heads"], do_not_specialize_on_alignment=["merged_rows"])
def merge_parts(
    part, part_peak, part_total, sinks, out, log_sums, merged_rows, heads,
    V: tl.constexpr, V_PAD: tl.constexpr, SPLITS: tl.constexpr, HAS_SINKS: tl.constexpr,
    HAS_LOG_SUMS: tl.constexpr,
):  # fmt: skip
    """Add the parts of one row and head in a fixed order."""
    p, head = tl.program_id(0), tl.program_id(1)
    t = tl.load(merged_rows + p).to(tl.int64)
    s, v = tl.arange(0, SPLITS), tl.arange(0, V_PAD)
    at = (p.to(tl.int64) * heads + head) * SPLITS + s
    peaks = tl.load(part_peak + at)
    top = tl.max(peaks, 0)
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        top = tl.maximum(top, sink)
    shrink = tl.exp2(peaks - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(tl.load(part_total + at) * shrink, 0)
    if HAS_SINKS:
        total += tl.exp2(sink - top)
    written = (peaks > float("-inf"))[:, None] & (v < V)[None, :]
    parts = tl.load(part + at[:, None] * V + v[None, :], mask=written, other=0.0)
    sums = tl.sum(parts * shrink[:, None], 0) / tl.where(total == 0, 1.0, total)
    to = t * heads + head
    tl.store(out + to * V + v, sums.to(out.dtype.element_ty), mask=v < V)
    if HAS_LOG_SUMS:
        tl.store(log_sums + to, _log_sum(top, total))
