"""An imported GGUF file is a checkpoint whose stages give the tokens of the library's model of the
file's numbers."""

import json
import math
from functools import partial

import gguf
import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from molink.checkpoint.gguf.header import read_gguf
from molink.checkpoint.safetensors_header import read_header
from molink.errors import UserError
from molink.importing.gguf_file import import_gguf
from tests.checkpoint.gguf.written import Tensor, write_gguf
from tests.executor.quantized.test_stages import check
from tests.executor.tiny_models import tiny_config
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
        ({"llama.block_count": 0}, WHOLE, "no usable llama.block_count"),
        ({"llama.attention.head_count": [1, 2]}, WHOLE, "a list"),
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


def test_the_config_of_another_model_is_refused(tmp_path):
    save_gguf("llama", tmp_path / "m.gguf")
    config = settings(tmp_path / "m-plain")
    (tmp_path / "m-plain" / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(UserError, match="another model: its num_hidden_layers is 3"):
        imported(tmp_path / "m.gguf", tmp_path / "out", tmp_path / "m-plain")
