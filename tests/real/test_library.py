"""Rounded weights as the library is given them, and a text cut into windows."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from molink.importing.plain_model import import_plain
from tools.real.library import WINDOW_TOKENS, Library, windows_of


@pytest.fixture
def tiny_llama(tmp_path):
    """A random llama with tied tables, whose rounded head is a matrix of its own."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 176}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, **heads, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


class Letters:
    """A vocabulary of letters that wants a token 1 before each text."""

    def encode(self, text):
        return [1, *map(ord, text)]


def test_windows_begin_as_the_model_wants_it():
    text = "abcdefghij" * 120
    windows = windows_of(Letters(), text)
    assert [len(window) for window in windows] == [WINDOW_TOKENS, WINDOW_TOKENS, 179]
    assert "".join(chr(token) for window in windows for token in window[1:]) == text
    assert all(window[0] == 1 for window in windows)


def test_rounded_weights_take_the_place_of_plain_ones(tmp_path, tiny_llama):
    for bits, near in (("int8", 0.02), ("int4", 0.15)):
        import_plain(tiny_llama, tmp_path / bits, bits, 32, lambda *_: None)
        plain = Library(tiny_llama, torch.float32)
        rounded = Library(tiny_llama, torch.float32, tmp_path / bits)
        name = "model.layers.0.mlp.gate_proj.weight"
        before = plain._model.get_parameter(name)
        after = rounded._model.get_parameter(name)
        assert not torch.equal(before, after)
        assert (before - after).abs().max() < near * before.abs().max()
        logits = rounded.logits([1, 2, 3, 4], 2)
        assert logits.shape[0] == 2 and not torch.equal(logits, plain.logits([1, 2, 3, 4], 2))


def test_a_stored_code_is_what_it_says(tmp_path, tiny_llama):
    import_plain(tiny_llama, tmp_path / "int8", "int8", 128, lambda *_: None)
    (file,) = (tmp_path / "int8").glob("*.safetensors")
    stored = load_file(file)
    name = "model.layers.0.self_attn.q_proj.weight"
    rounded = Library(tiny_llama, torch.float32, tmp_path / "int8")._model.get_parameter(name)
    expected = stored[name].float() * stored[f"{name}_scale"].float()
    assert torch.equal(rounded, expected)
