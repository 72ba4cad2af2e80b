"""An imported GGUF file is a checkpoint whose stages give the tokens of the library's model of the
file's numbers."""

import json
import math
from functools import partial

import gguf
import numpy as np
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from molink.checkpoint.gguf.header import read_gguf
from molink.checkpoint.safetensors_header import read_header
from molink.errors import UserError
from molink.importing.gguf.file import import_gguf, recoded_line
from tests.checkpoint.gguf.written import Tensor, Typed, write_gguf
from tests.engine.model.quantized.test_stages import check
from tests.engine.tiny_models import tiny_config
from tests.importing.gguf_models import ARCHITECTURES, save_gguf

OVERRIDES = {
    "mistral": {"sliding_window": None},  # As since its second version: files name none.
    "qwen3_moe": {"norm_topk_prob": True},
    "gemma2": {"tie_word_embeddings": False},  # Tied, tiny ones repeat their last word.
    "gemma3_text": {"tie_word_embeddings": False},
}


def imported(path, folder, config=None):
    seen = []
    import_gguf(path, folder, config, lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    return folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_over_three_uneven_stages(name, tmp_path):
    reference = save_gguf(name, tmp_path / "m.gguf", **OVERRIDES.get(name, {}))
    check(imported(tmp_path / "m.gguf", tmp_path / "out"), reference)


@pytest.mark.parametrize("name", ["llama", "gpt_oss"])
def test_a_model_in_parts_is_imported_as_one(name, tmp_path, monkeypatch):
    """Written in parts by the format's own package, gate and up of experts in different files."""
    monkeypatch.setattr(gguf, "GGUFWriter", partial(gguf.GGUFWriter, split_max_tensors=7))
    reference = save_gguf(name, tmp_path / "m.gguf")
    files = sorted(tmp_path.glob("m-*.gguf"))
    assert len(files) > 2
    check(imported(files[1], tmp_path / "out"), reference)


# -- what is in the new folder --------------------------------------------------------------------


def test_blocks_are_those_of_the_file_byte_for_byte(tmp_path):
    save_gguf("qwen3", tmp_path / "m.gguf", ["q4_k"])
    imported(tmp_path / "m.gguf", tmp_path / "out")
    header = read_gguf(tmp_path / "m.gguf")
    up = next(one for one in header.tensors if one.name == "blk.2.ffn_up.weight")
    data = (tmp_path / "m.gguf").read_bytes()[up.start : up.stop]
    new = read_header(next((tmp_path / "out").glob("*.safetensors")))
    name = "model.layers.2.mlp.up_proj.weight_q4_k"
    found = next(one for one in new.tensors if one.name == name)
    written = next((tmp_path / "out").glob("*.safetensors")).read_bytes()
    assert (found.dtype, found.shape) == ("U8", (512, 144))
    assert written[found.start : found.stop] == data


def settings(folder):
    return json.loads((folder / "config.json").read_text())


def test_factors_of_rotary_frequencies_become_llama_3_s_settings(tmp_path):
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = tiny_config("llama", rope_parameters=scaled, head_dim=128)
    frequencies = LlamaRotaryEmbedding(config).inv_freq
    plain = 500000.0 ** -(torch.arange(0, 128, 2) / 128)
    factors = (plain / frequencies).float().numpy()

    def add(writer):
        writer.add_tensor("rope_freqs.weight", factors)

    save_gguf("llama", tmp_path / "m.gguf", more=add, rope_parameters=scaled, head_dim=128)
    imported(tmp_path / "m.gguf", tmp_path / "out")
    assert settings(tmp_path / "out")["rope_parameters"] == scaled


def test_config_and_tokenizer_of_the_original_model(tmp_path):
    reference = save_gguf("llama", tmp_path / "m.gguf")
    (tmp_path / "m-plain" / "chat_template.jinja").write_text("{{ 1 }}")
    imported(tmp_path / "m.gguf", tmp_path / "out", tmp_path / "m-plain")
    assert (tmp_path / "out" / "chat_template.jinja").read_text() == "{{ 1 }}"
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    check(tmp_path / "out", reference)


# -- bad input ------------------------------------------------------------------------------------

LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.attention.head_count": 2,
    "llama.embedding_length": 8,
    "llama.context_length": 64,
    "llama.feed_forward_length": 8,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
}


def plain(name, *dimensions):
    return Tensor(name, dimensions, 0, bytes(4 * math.prod(dimensions)))


WHOLE = [
    plain("token_embd.weight", 8, 4),
    plain("output_norm.weight", 8),
    *(plain(f"blk.0.{part}_norm.weight", 8) for part in ("attn", "ffn")),
    *(plain(f"blk.0.attn_{part}.weight", 8, 8) for part in ("q", "k", "v", "output")),
    *(plain(f"blk.0.ffn_{part}.weight", 8, 8) for part in ("gate", "up", "down")),
]


@pytest.mark.parametrize(
    ("change", "tensors", "words"),
    [
        ({"general.architecture": "rwkv6"}, WHOLE, "architecture rwkv6"),
        ({"general.architecture": 5}, WHOLE, "names no architecture"),
        ({"split.count": 3}, WHOLE, "as in NAME-00001-of-00003.gguf"),
        ({"llama.block_count": 2}, WHOLE, "lacks blk.1.attn_k.weight and 8 other"),
        ({"llama.block_count": 10**9}, WHOLE, "promises 1000000000 layers and holds 11 tensors"),
        ({"general.architecture": "clip"}, WHOLE, "mmproj.*give the model's own file"),
        ({"llama.block_count": 0}, WHOLE, "no usable llama.block_count"),
        ({"llama.attention.head_count": [1, 2]}, WHOLE, "a list"),
        ({"llama.nextn_predict_layers": "abc"}, WHOLE, "no usable llama.nextn_predict_layers"),
        ({"llama.nextn_predict_layers": [1]}, WHOLE, "no usable llama.nextn_predict_layers"),
        (
            {"llama.rope.dimension_count": Typed(5, -4)},
            WHOLE,
            "no usable llama.rope.dimension_count",
        ),
        ({"llama.rope.dimension_count": "abc"}, WHOLE, "no usable llama.rope.dimension_count"),
        ({"llama.rope.freq_base": math.nan}, WHOLE, "no usable llama.rope.freq_base"),
        ({"llama.context_length": Typed(10, 2**63)}, WHOLE, "no usable llama.context_length"),
        (
            {"llama.rope.dimension_count": Typed(10, 4 * 10**9)},
            [*WHOLE, plain("rope_freqs.weight", 2)],
            "no usable llama.rope.dimension_count",
        ),
        (
            {"llama.rope.dimension_count": 2 * 10**9},
            [*WHOLE, Tensor("rope_freqs.weight", (2,), 0, np.float32([8, 8]).tobytes())],
            "rotary frequencies.*--config",
        ),
        ({"llama.attention.head_count": 3}, WHOLE, "8 rows for 3 heads"),
        ({"llama.embedding_length": 16}, WHOLE, "no embeddings of 16"),
        ({"llama.rope.scaling.type": "odd"}, WHOLE, "--config"),
        ({}, [*WHOLE, plain("blk.0.mystery.weight", 8)], "blk.0.mystery.weight"),
        ({}, [*WHOLE, plain("blk.1.ffn_up.weight", 8)], "blk.1.ffn_up.weight"),
        ({}, [*WHOLE, plain("rope_freqs.weight", 2)], "rotary frequencies.*--config"),
        ({}, WHOLE, "holds no tokens.*--config"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence_and_leaves_nothing(
    tmp_path, change, tensors, words
):
    path = write_gguf(tmp_path / "m.gguf", LLAMA | change, tensors)
    with pytest.raises(UserError, match=words) as raised:
        imported(path, tmp_path / "out")
    assert "\n" not in str(raised.value)
    assert [one.name for one in tmp_path.iterdir()] == ["m.gguf"]


def test_a_refusal_names_all_that_is_missing(tmp_path):
    """The architecture and every type, with counts, from the table alone."""
    missing = [
        Tensor(f"blk.0.odd_{at}", (256, 1), kind, bytes(66)) for at, kind in enumerate((99, 99, 9))
    ]
    path = write_gguf(tmp_path / "m.gguf", LLAMA, [*WHOLE, *missing])
    with pytest.raises(UserError, match=r"1 of Q8_1, 2 of number 99\): take a version of it"):
        imported(path, tmp_path / "out")
    path = write_gguf(tmp_path / "m.gguf", {"general.architecture": "rwkv6"}, missing)
    with pytest.raises(UserError, match=r"1 of Q8_1, 2 of number 99.*architecture rwkv6.*take a"):
        imported(path, tmp_path / "out")


# -- types that are written anew ------------------------------------------------------------------


def test_types_without_a_kernel_are_written_anew_and_said(tmp_path):
    """Also where rows move: those of q and k."""
    sizes = {"llama.embedding_length": 256, "llama.feed_forward_length": 256}
    tensors = [
        plain("token_embd.weight", 256, 4),
        plain("output_norm.weight", 256),
        *(plain(f"blk.0.{part}_norm.weight", 256) for part in ("attn", "ffn")),
        *(plain(f"blk.0.attn_{part}.weight", 256, 256) for part in ("v", "output")),
        *(plain(f"blk.0.ffn_{part}.weight", 256, 256) for part in ("gate", "up")),
        Tensor("blk.0.attn_q.weight", (256, 256), 35, TERNARY),
        Tensor("blk.0.attn_k.weight", (256, 256), 35, TERNARY),
        Tensor("blk.0.ffn_down.weight", (256, 256), 20, bytes(18 * 8 * 256)),
    ]
    path = write_gguf(tmp_path / "m.gguf", LLAMA | sizes | vocabulary(), tensors)
    assert recoded_line(path) == (
        "Written anew in 8 bits, which takes more room than in the file: tensors 1 in IQ4_NL, "
        "2 in TQ2_0."
    )
    imported(path, tmp_path / "out")
    file = next((tmp_path / "out").glob("*.safetensors"))
    name = "model.layers.0.self_attn.q_proj.weight_q8_0"
    found = next(one for one in read_header(file).tensors if one.name == name)
    assert found.shape == (256, 256 // 32 * 34)
    raw = np.frombuffer(file.read_bytes()[found.start : found.stop], np.uint8)
    numbers = gguf.quants.dequantize(raw.reshape(found.shape), gguf.GGMLQuantizationType.Q8_0)
    # Each row is the number of its place in the file: heads of 128 rows, in turns of two halves.
    rows = np.arange(256).reshape(2, 64, 2).swapaxes(1, 2).ravel()
    assert np.allclose(numbers, (rows[:, None] + 1) / 256, rtol=1e-3)


TERNARY = b"".join(b"\xaa" * 64 + np.float16((row + 1) / 256).tobytes() for row in range(256))
"""256 rows of a block in which every number is the scale."""


def vocabulary():
    before = "tokenizer.ggml."
    return {f"{before}model": "gpt2", f"{before}pre": "gpt-2", f"{before}tokens": ["a", "b"]}


# -- sampling settings ----------------------------------------------------------------------------


def generation_config(tmp_path, more):
    path = write_gguf(tmp_path / "m.gguf", LLAMA | vocabulary() | more, WHOLE)
    imported(path, tmp_path / "out")
    return json.loads((tmp_path / "out" / "generation_config.json").read_text())


def test_sampling_settings_of_the_makers_are_kept(tmp_path):
    before = "general.sampling."
    given = {"temp": 0.7, "top_k": 20, "top_p": 0.95, "min_p": 0.0, "penalty_repeat": 1.05}
    more = {f"{before}{key}": value for key, value in given.items()} | {f"{before}mirostat": 1}
    assert generation_config(tmp_path, more) == {
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": 0.0,
        "repetition_penalty": 1.05,
        "do_sample": True,
    }


def test_a_model_without_sampling_settings_says_nothing_of_them(tmp_path):
    assert generation_config(tmp_path, {"tokenizer.ggml.eos_token_id": 1}) == {"eos_token_id": [1]}


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", "hot"), ("temp", -1.0), ("top_p", 7.0), ("top_k", True), ("min_p", [0.1])],
)
def test_a_sampling_setting_that_none_can_be_is_refused(tmp_path, key, value):
    with pytest.raises(UserError, match=f"general.sampling.{key}, which is no number"):
        generation_config(tmp_path, {f"general.sampling.{key}": value})
    assert [one.name for one in tmp_path.iterdir()] == ["m.gguf"]


def test_the_config_of_another_model_is_refused(tmp_path):
    save_gguf("llama", tmp_path / "m.gguf")
    config = settings(tmp_path / "m-plain")
    (tmp_path / "m-plain" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="another model: its num_hidden_layers is 3"):
        imported(tmp_path / "m.gguf", tmp_path / "out", tmp_path / "m-plain")
