"""What llama.cpp's converter does to tensors is undone, in plain numbers and in blocks.

Each test does the converter's own step, in the words of its source, and wants back what was there.
The whole models that the converter itself writes: `python -m tools.real.gguf_architectures`.
"""

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from molink.checkpoint.gguf.block_types import BLOCK_TYPES, PLAIN_TYPES
from molink.checkpoint.gguf.header import GgufHeader, GgufTensor
from molink.errors import UserError
from molink.importing.gguf import changes, orders
from molink.importing.gguf.metadata import GgufModel

KEYS, VALUES, SIZE = 2, 6, 32
"""Heads of the delta rule, three of values for one of keys, and numbers of a head."""

METADATA = {
    "a.block_count": 1,
    "a.embedding_length": 64,
    "a.attention.head_count": 4,
    "a.attention.head_count_kv": 2,
    "a.ssm.group_count": KEYS,
    "a.ssm.time_step_rank": VALUES,
    "a.ssm.state_size": SIZE,
    "a.ssm.inner_size": VALUES * SIZE,
}
F32, Q8_0 = PLAIN_TYPES[0], BLOCK_TYPES[8]


def random(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def model_of(path, kind=F32, **arrays):
    """A file with these tensors of layer 0, in one type."""
    tensors, start = [], 0
    with path.open("wb") as file:
        for part, array in arrays.items():
            raw = array if kind is F32 else quantize(array, GGMLQuantizationType.Q8_0)
            name = f"blk.0.{part}.weight"
            data = np.ascontiguousarray(raw).tobytes()
            tensors.append(GgufTensor(name, array.shape, kind, start, start + len(data), path))
            start += file.write(data)
    return GgufModel(GgufHeader(path, METADATA, tuple(tensors), Counter()), "a")


def made(change, model, part):
    """The numbers of what a change makes of a part."""
    found = []
    for new in change(model, model.tensors[f"blk.0.{part}.weight"], "new"):
        (entry,) = new.entries
        raw = np.frombuffer(b"".join(new.pieces()), np.uint8)
        assert len(raw) == entry.stop - entry.start
        if entry.dtype == "U8":
            assert entry.name.endswith("_q8_0")
            found.append(dequantize(raw.reshape(entry.shape), GGMLQuantizationType.Q8_0))
        else:
            kind = np.float32 if entry.dtype == "F32" else np.float16
            found.append(raw.view(kind).reshape(entry.shape))
    return found


def stored(array, kind):
    """What a type keeps of numbers."""
    return array if kind is F32 else dequantize(quantize(array, Q), Q)


Q = GGMLQuantizationType.Q8_0
KINDS = pytest.mark.parametrize("kind", [F32, Q8_0], ids=["plain", "blocks"])


def tiled(array, axis=0, size=SIZE):
    """Heads of values in turns, as `_reorder_v_heads` of the converter leaves them."""
    array = np.moveaxis(array, axis, 0)
    heads = array.reshape(KEYS, VALUES // KEYS, size, *array.shape[1:])
    return np.moveaxis(heads.swapaxes(0, 1).reshape(array.shape), 0, axis)


@KINDS
@pytest.mark.parametrize(("part", "heads"), [("attn_q", 4), ("attn_k", 2)])
def test_rows_of_the_other_rotary_embedding(part, heads, kind, tmp_path):
    plain = random(heads * 16, 64)
    permuted = plain.reshape(heads, 2, 8, 64).swapaxes(1, 2).reshape(plain.shape)
    model = model_of(tmp_path / "f", kind, **{part: permuted})
    (found,) = made(changes.moved(orders.rotary), model, part)
    np.testing.assert_array_equal(found, stored(plain, kind))


@KINDS
def test_heads_of_values_by_their_keys(kind, tmp_path):
    above, below = random(2 * KEYS * SIZE, 64), random(VALUES * SIZE, 64)
    file = np.concatenate([above, tiled(below)])
    model = model_of(tmp_path / "f", kind, attn_qkv=file, attn_gate=tiled(below))
    (found,) = made(changes.moved(orders.channels_by_key), model, "attn_qkv")
    np.testing.assert_array_equal(found, stored(np.concatenate([above, below]), kind))
    (found,) = made(changes.moved(orders.heads_by_key), model, "attn_gate")
    np.testing.assert_array_equal(found, stored(below, kind))


@KINDS
def test_columns_of_heads_of_values(kind, tmp_path):
    plain = random(8, VALUES * SIZE)
    model = model_of(tmp_path / "f", kind, ssm_out=tiled(plain, 1))
    (found,) = made(changes.moved_columns(orders.heads_by_key), model, "ssm_out")
    np.testing.assert_allclose(found, plain, atol=0 if kind is F32 else 0.02)


@KINDS
def test_queries_keys_values_and_gates_in_one_matrix(kind, tmp_path):
    """As `in_proj_qkvz` of qwen3next is taken apart."""
    each = (SIZE, SIZE, VALUES // KEYS * SIZE, VALUES // KEYS * SIZE)
    plain = random(KEYS * sum(each), 64)
    heads = plain.reshape(KEYS, sum(each), 64)
    q, k, v, z = (part.reshape(-1, 64) for part in np.split(heads, np.cumsum(each[:-1]), 1))
    arrays = {"attn_qkv": np.concatenate([q, k, v]), "attn_gate": z}
    model = model_of(tmp_path / "f", kind, **arrays)
    change = changes.fused_rows("attn_gate", orders.grouped_qkvz)
    (found,) = made(change, model, "attn_qkv")
    np.testing.assert_array_equal(found, stored(plain, kind))


@KINDS
def test_experts_gates_above_up_projections(kind, tmp_path):
    gate, up = random(3, 8, 64), -random(3, 8, 64)
    model = model_of(tmp_path / "f", kind, ffn_gate_exps=gate, ffn_up_exps=up)
    (found,) = made(changes.fused_experts, model, "ffn_gate_exps")
    np.testing.assert_array_equal(found, stored(np.concatenate([gate, up], 1), kind))


def test_matrices_of_two_types_become_one_of_eight_bits(tmp_path):
    gate, up = random(8, 64), -random(8, 64)
    model = model_of(tmp_path / "f", F32, ffn_gate=gate, ffn_up=gate)
    other = model_of(tmp_path / "g", Q8_0, ffn_up=up)
    up_tensor = dataclasses.replace(other.header.tensors[0])
    header = GgufHeader(tmp_path / "f", METADATA, (model.header.tensors[0], up_tensor), Counter())
    (found,) = made(changes.fused_rows("ffn_up"), GgufModel(header, "a"), "ffn_gate")
    np.testing.assert_allclose(found, np.concatenate([gate, up]), atol=0.03)


def test_both_halves_of_latent_attention_s_expansion(tmp_path):
    heads, nope, rank, size = 4, 8, 16, 12
    plain = random(heads * (nope + size), rank)
    keys, values = np.split(plain.reshape(heads, nope + size, rank), [nope], 1)
    model = model_of(tmp_path / "f", attn_k_b=keys.swapaxes(1, 2), attn_v_b=values)
    (found,) = made(changes.latent_expansion, model, "attn_k_b")
    np.testing.assert_array_equal(found, plain)


def test_norms_decays_and_kernels(tmp_path):
    """Norms as far from one as in published models."""
    norm, log, kernel = 300 * random(64), random(VALUES), random(64, 1, 4)
    decay = -np.exp(tiled(log, size=1))[:, None]
    model = model_of(tmp_path / "f", attn_norm=norm + 1, ssm_a=decay, conv=kernel[:, 0])
    (found,) = made(changes.one_less, model, "attn_norm")
    np.testing.assert_allclose(found, norm, rtol=1e-5, atol=1e-4)
    (found,) = made(changes.logarithms(orders.heads_by_key), model, "ssm_a")
    np.testing.assert_allclose(found, log, rtol=1e-5, atol=1e-6)
    (found,) = made(changes.convolution(), model, "conv")
    np.testing.assert_array_equal(found, kernel)


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        (changes.fused_rows("ffn_up"), "attn_q", "no match in ffn_up"),
        (changes.fused_experts, "attn_q", "no match in ffn_up_exps"),
        (changes.moved(orders.rotary), "attn_q", "3 rows for 4 heads"),
        (changes.moved(orders.heads_by_key), "attn_q", "heads of values"),
        (changes.latent_expansion, "attn_k_b", "no match in attn_v_b"),
    ],
)
def test_what_does_not_fit_is_one_sentence(change, part, words, tmp_path):
    model = model_of(tmp_path / "f", **{part: random(3, 64)})
    with pytest.raises(UserError, match=words) as raised:
        made(change, model, part)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("part", ["attn_q", "attn_qkv"])
def test_biases_of_queries_are_seen_in_either_matrix(part):
    tensor = GgufTensor(f"blk.0.{part}.bias", (4,), F32, 0, 16, Path())
    assert GgufModel(GgufHeader(Path(), METADATA, (tensor,), Counter()), "a").has_biases
    assert not GgufModel(GgufHeader(Path(), METADATA, (), Counter()), "a").has_biases
