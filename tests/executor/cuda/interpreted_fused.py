"""Computes random cases of the fused operators, with the kernels in Triton's interpreter and with
torch, and a rewritten model in stages; the interpreter has to be chosen before Triton is imported:
so this is a process of its own.

    python -m tests.executor.cuda.interpreted_fused

Prints JSON: for each operator and format the largest difference, relative to the largest result;
the difference of the stages from the whole model, and how often each kernel was launched there.
"""

import json
import os
from collections import Counter
from itertools import product

os.environ["TRITON_INTERPRET"] = "1"

import torch

from molink.executor.architecture import self_test
from molink.executor.attention.kv_pool import KvPool
from molink.executor.cuda import fused
from molink.executor.cuda.fused import TritonFused
from molink.executor.cuda.fused_choice import FusedChoice
from molink.executor.cuda.fused_math import ExpertCall, Gate, PlainFused, Rotation, Turn
from tests.executor.cuda.test_rewriting import config_of, description_of

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GATES = (
    Gate("silu"),
    Gate("gelu_tanh"),
    Gate("silu", alternating=True, slope=1.702, limit=0.7),
)
ROTATIONS = (
    (Rotation(24, neighbours=False, step=1), 24),
    (Rotation(24, neighbours=False, step=1), 12),
    (Rotation(16, neighbours=True, step=1), 16),
    (Rotation(8, neighbours=True, step=2), 8),
    None,
)
"""With the width of the tables."""

HEADS, KV_HEADS, KEY, VALUE = 4, 2, 24, 20
SLOTS = 48

SCHEDULE = (((0, 0, 2),), ((1, 0, 2), (0, 2, 3)))
"""Of the stages: (sequence, start, end). A program takes milliseconds."""


def random(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def difference(got, wanted):
    assert got.shape == wanted.shape and got.dtype == wanted.dtype
    return float((got.float() - wanted.float()).abs().max() / wanted.float().abs().max())


def norms(operators, dtype):
    """Rows in one piece, and heads that are views of a wider product."""
    weight, x = random(70, seed=7) + 1, random(1, 5, 70, dtype=dtype)
    q, k, _ = heads(dtype)
    small = [operators.normed(one[None], weight[:KEY], 1e-5) for one in (q, k)]
    return [operators.normed(x, weight, 1e-3), operators.normed(x * 1e-3, None, 1e-5), *small]


def gates(operators, dtype):
    x = random(1, 5, 2 * 1030, dtype=dtype)
    return [operators.gated(x, gate) for gate in GATES]


def heads(dtype):
    """Queries, keys and values as views of one product, as joined linears leave them."""
    rows = random(7, HEADS * KEY + KV_HEADS * (KEY + VALUE), dtype=dtype, seed=1)
    q, k, v = rows.split([HEADS * KEY, KV_HEADS * KEY, KV_HEADS * VALUE], -1)
    return q.view(7, HEADS, KEY), k.view(7, KV_HEADS, KEY), v.view(7, KV_HEADS, VALUE)


def turn_of(rotation, dtype):
    if rotation is None:
        return None
    angles = random(7, rotation[1], seed=2) * 3
    return Turn(rotation[0], angles.cos().to(dtype), angles.sin().to(dtype))


def rotations(operators, dtype):
    q, k, _ = heads(dtype)
    turns = [turn_of(rotation, dtype) for rotation in ROTATIONS if rotation is not None]
    return [one for turn in turns for one in operators.rotated(q, k, turn)]


def writes(operators, dtype):
    """What queries are attended with, and the whole pool, whose other slots are not touched."""
    results = []
    slots = torch.tensor([33, 1, 2, 17, 40, 5, 47])
    for rotation, kv_dtype in product(ROTATIONS, ("auto", "int8")):
        q, k, v = heads(dtype)
        layer = KvPool(SLOTS, kv_dtype).layer_of(0, k, v)
        q_out = operators.write(q, k, v, turn_of(rotation, dtype), slots, layer)
        results += [q_out, layer.keys.numbers(dtype), layer.values.numbers(dtype)]
    return results


def experts(operators, dtype):
    results = []
    scores = torch.rand(9, 5, generator=torch.Generator().manual_seed(3))
    weights, index = scores.topk(2)
    index[:] = index.where(index != 4, 0)  # One is chosen by nobody, one by many.
    pairs = index.reshape(-1)
    for transposed, has_bias, has_share in ((True, True, False), (False, False, True)):
        shape = (5, 70, 90) if transposed else (5, 90, 70)
        weight = random(*shape, dtype=dtype, seed=4) / 8
        weight = weight if transposed else weight.transpose(1, 2)
        bias = random(5, 90, dtype=dtype, seed=5) if has_bias else None
        share = weights.reshape(-1) if has_share else None
        few, many = (random(rows, 70, dtype=dtype, seed=6) for rows in (9, 18))
        for x, per_row in ((few, 2), (many, 1)):
            call = ExpertCall(x, weight, bias, pairs, per_row, share)
            results.append(operators.expert_product(call))
    return results


def stages(name):
    """Difference of a miniature's stages from the whole model, and the launches it took."""
    launches, launched = Counter(), fused.launched

    def counted(kernel, grid):
        launches[kernel.fn.__name__] += 1
        return launched(kernel, grid)

    fused.launched = counted
    config = config_of(name)
    self_test.SCHEDULE = SCHEDULE
    self_test.SEQUENCE_TOKENS = (3, 2)
    small = self_test._miniature(config, name)
    choice = FusedChoice(TritonFused())
    return self_test._largest_difference(small, description_of(config), choice), launches


def main():
    torch.set_num_threads(1)
    found = {}
    for compute, dtype in product((norms, gates, rotations, writes, experts), DTYPES):
        kernels = TritonFused(widen=dtype is torch.bfloat16)
        pairs = zip(compute(kernels, dtype), compute(PlainFused(), dtype), strict=True)
        name = f"{compute.__name__} {str(dtype).removeprefix('torch.')}"
        found[name] = max(difference(got, wanted) for got, wanted in pairs)
    print(json.dumps([found, *stages("gpt_oss")]))


if __name__ == "__main__":
    main()
