"""The Triton kernels of what stands between a layer's products; `fused` launches them.

Each is a program for a row and some of its numbers, computed in fp32 and rounded once. No length,
number of rows or place in memory is a constant, so nothing is compiled in mid-service, and nothing
is read on the host, so a graph may record them.

WIDEN, which only tests set, makes what is read fp32 before anything is done with it: Triton's
interpreter computes bfloat16 wrongly.
"""

# Types of a kernel's arguments are its launches', and Triton reads annotations as its own.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc, untyped-decorator"

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)

HALF_OF_BF16 = tl.constexpr(0x7FFF)
"""Just under half of what the sixteen bits are worth that a bfloat16 has not."""

ROUNDING = tl.constexpr(12582912.0)
"""1.5 * 2**23: an fp32 of this size has no places behind the point, so adding it rounds."""


@triton.jit(do_not_specialize=["x_stride_t", "x_stride_h", "heads"])
def norm_rows(
    x, weight, out, x_stride_t, x_stride_h, heads, size, epsilon,
    COLUMNS: tl.constexpr, HAS_WEIGHT: tl.constexpr,
):  # fmt: skip
    """Divide one row by the root of its mean square."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, COLUMNS)
    inside = n < size
    x += (row // heads) * x_stride_t + (row % heads) * x_stride_h
    number = tl.load(x + n, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(number * number, 0) / size
    number *= 1 / tl.sqrt(mean + epsilon)
    if HAS_WEIGHT:
        number *= tl.load(weight + n, mask=inside, other=0.0)
    tl.store(out + row * size + n, number.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _sigmoid(x):
    return 1 / (1 + tl.exp2(-x * LOG2E))


@triton.jit
def _activated(x, slope, ACTIVATION: tl.constexpr):
    if ACTIVATION == "gelu_tanh":  # 0.5 * (1 + tanh(z)) is sigmoid(2 * z)
        return x * _sigmoid(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x))
    return x * _sigmoid(slope * x)


@triton.jit(do_not_specialize=["outputs", "x_stride"])
def gate_rows(
    x, out, outputs, x_stride, slope, limit,
    COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, ALTERNATING: tl.constexpr,
    HAS_LIMIT: tl.constexpr,
):  # fmt: skip
    """Activation of a row's gate times the other half, for some of its columns."""
    t = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = n < outputs
    if ALTERNATING:
        first, other = 2 * n, 2 * n + 1
    else:
        first, other = n, n + outputs
    gate = tl.load(x + t * x_stride + first, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + t * x_stride + other, mask=inside, other=0.0).to(tl.float32)
    if HAS_LIMIT:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1
    result = _activated(gate, slope, ACTIVATION) * up
    tl.store(out + t * outputs + n, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _turned(
    x, cos, sin, a,
    SIZE: tl.constexpr, TURNED: tl.constexpr, NEIGHBOURS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """A head's numbers, turned by the angles of its row."""
    number = tl.load(x + a, mask=a < SIZE, other=0.0).to(tl.float32)
    if TURNED > 0:
        turns = a < TURNED
        if NEIGHBOURS:
            partner, pair, is_first = a ^ 1, a // 2, a % 2 == 0
        else:
            is_first = a < TURNED // 2
            pair = tl.where(is_first, a, a - TURNED // 2)
            partner = tl.where(is_first, a + TURNED // 2, pair)
        c = tl.load(cos + pair * STEP, mask=turns, other=1.0).to(tl.float32)
        s = tl.load(sin + pair * STEP, mask=turns, other=0.0).to(tl.float32)
        beside = tl.load(x + partner, mask=turns, other=0.0).to(tl.float32)
        number = number * c + tl.where(is_first, -beside, beside) * s
    return number


@triton.jit
def _nearest_bf16(x):
    """Rounded to what a bfloat16 holds, ties to even; positive and no infinity."""
    bits = x.to(tl.int32, bitcast=True)
    bits += HALF_OF_BF16 + ((bits >> 16) & 1)
    return (bits & -65536).to(tl.float32, bitcast=True)


@triton.jit
def _stored(rows, scales, at, scale_at, number, a, SIZE: tl.constexpr, HAS_SCALES: tl.constexpr):
    inside = a < SIZE
    if HAS_SCALES:
        largest = tl.max(tl.where(inside, tl.abs(number), 0.0), 0)
        scale = tl.maximum(_nearest_bf16(largest / 127), 1.1754943508222875e-38)
        code = (number / scale + ROUNDING) - ROUNDING
        code = tl.minimum(tl.maximum(code, -127.0), 127.0)
        tl.store(rows + at + a, code.to(tl.int8), mask=inside)
        tl.store(scales + scale_at, scale.to(scales.dtype.element_ty))
    else:
        tl.store(rows + at + a, number.to(rows.dtype.element_ty), mask=inside)


@triton.jit(
    do_not_specialize=[
        *("q_stride_t", "q_stride_h", "k_stride_t", "k_stride_h", "v_stride_t", "v_stride_h"),
        *("table_stride", "scales_stride"),
    ],
    do_not_specialize_on_alignment=["slots", "q", "k", "v", "cos", "sin"],
)
def turn_and_store(
    q, k, v, cos, sin, slots, q_out, keys, values, key_scales, value_scales,
    q_stride_t, q_stride_h, k_stride_t, k_stride_h, v_stride_t, v_stride_h, table_stride,
    k_stride_s, v_stride_s, scales_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, A: tl.constexpr, V: tl.constexpr,
    A_PAD: tl.constexpr, V_PAD: tl.constexpr, TURNED: tl.constexpr, NEIGHBOURS: tl.constexpr,
    STEP: tl.constexpr, HAS_SLOTS: tl.constexpr, HAS_SCALES: tl.constexpr,
):  # fmt: skip
    """Turn one head of a row: a query is turned, a key is turned and stored, a value is stored."""
    t, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos += t * table_stride
    sin += t * table_stride
    slot = t
    if HAS_SLOTS:
        slot = tl.load(slots + t).to(tl.int64)
    a = tl.arange(0, A_PAD)
    # Every branch has names of its own: Triton gives a name one type.
    if head < HEADS:
        x = q + t * q_stride_t + head * q_stride_h
        query = _turned(x, cos, sin, a, A, TURNED, NEIGHBOURS, STEP)
        to = q_out + (t * HEADS + head) * A + a
        tl.store(to, query.to(q_out.dtype.element_ty), mask=a < A)
    elif head < HEADS + KV_HEADS:
        k_head = head - HEADS
        x_k = k + t * k_stride_t + k_head * k_stride_h
        key = _turned(x_k, cos, sin, a, A, TURNED, NEIGHBOURS, STEP)
        if HAS_SCALES:  # As it would be attended to without them.
            key = key.to(k.dtype.element_ty).to(tl.float32)
        k_at, k_scale_at = slot * k_stride_s + k_head * A, slot * scales_stride + k_head
        _stored(keys, key_scales, k_at, k_scale_at, key, a, A, HAS_SCALES)
    else:
        v_head, n = head - HEADS - KV_HEADS, tl.arange(0, V_PAD)
        x_v = v + t * v_stride_t + v_head * v_stride_h
        value = _turned(x_v, cos, sin, n, V, 0, False, 1)
        v_at, v_scale_at = slot * v_stride_s + v_head * V, slot * scales_stride + v_head
        _stored(values, value_scales, v_at, v_scale_at, value, n, V, HAS_SCALES)


@triton.jit(
    do_not_specialize=["pairs", "pairs_per_row"],
    do_not_specialize_on_alignment=["expert_of_pair", "share"],
)
def multiply_experts(
    x, weight, bias, expert_of_pair, share, out, pairs, pairs_per_row, inputs, outputs,
    x_stride, w_stride_e, w_stride_i, w_stride_o,
    PAIRS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_SHARE: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Multiply one expert's matrix and the rows that chose it, for some of its columns.

    Which rows these are every program works out for itself, from the list of all pairs.
    """
    expert = tl.program_id(0)
    p = tl.arange(0, PAIRS)
    is_mine = tl.load(expert_of_pair + p, mask=p < pairs, other=-1).to(tl.int32) == expert
    place = tl.cumsum(is_mine.to(tl.int32), 0) - 1
    count = tl.sum(is_mine.to(tl.int32), 0)
    NUMBER: tl.constexpr = tl.float32 if WIDEN else x.dtype.element_ty
    o = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    has_column = o < outputs
    matrix = weight + expert.to(tl.int64) * w_stride_e
    for first in range(0, count, ROWS):
        m = first + tl.arange(0, ROWS)
        real = m < count
        chosen = is_mine[None, :] & (place[None, :] == m[:, None])
        pair = tl.sum(tl.where(chosen, p[None, :], 0), 1)
        row = (pair // pairs_per_row).to(tl.int64)
        sums = tl.zeros([ROWS, COLUMNS], tl.float32)
        for start in range(0, inputs, INPUTS):
            i = start + tl.arange(0, INPUTS)
            has_input = i < inputs
            x_tile = tl.load(
                x + row[:, None] * x_stride + i[None, :],
                mask=real[:, None] & has_input[None, :],
                other=0.0,
            )
            w_tile = tl.load(
                matrix
                + i[:, None].to(tl.int64) * w_stride_i
                + o[None, :].to(tl.int64) * w_stride_o,
                mask=has_input[:, None] & has_column[None, :],
                other=0.0,
            )
            sums += tl.dot(x_tile.to(NUMBER), w_tile.to(NUMBER), input_precision="ieee")
        if HAS_BIAS:
            at = bias + expert.to(tl.int64) * outputs + o
            sums += tl.load(at, mask=has_column, other=0.0).to(tl.float32)[None, :]
        if HAS_SHARE:
            sums *= tl.load(share + pair, mask=real, other=0.0).to(tl.float32)[:, None]
        to = out + pair[:, None].to(tl.int64) * outputs + o[None, :]
        inside = real[:, None] & has_column[None, :]
        tl.store(to, sums.to(out.dtype.element_ty), mask=inside)
