"""Tiny models as GGUF files, written as llama.cpp's converter writes them, and the library's model
of exactly the numbers in the file.

Names and keys come from the format's own package, so that what is read here is not what was guessed
there.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.engine.model.quantized.blocks import TYPES, blocks_of, exact
from tests.engine.model.quantized.checkpoints import model_of, plain_tensors

SIZES = {"hidden_size": 256, "intermediate_size": 512}
"""Rows of whole blocks of 256."""

ARCHITECTURES = {
    "llama": "llama",
    "tied_llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi3": "phi3",
    "gpt_oss": "gpt-oss",
}
EXPERTS = {
    "mixtral": {"w1": "ffn_gate", "w3": "ffn_up", "w2": "ffn_down"},
    "qwen3_moe": {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"},
}
TYPES_IN_TURNS = ("q4_k", "q6_k", "q5_k", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")

Rounded = tuple[np.ndarray, gguf.GGMLQuantizationType | None]


class GgufOf:
    """A GGUF file in the making, beside the exact numbers of what is in it."""

    def __init__(self, name: str, path: Path, config: dict[str, Any], types: Sequence[str]) -> None:
        self.name, self.config, self.types = name, config, types
        self.writer = gguf.GGUFWriter(path, ARCHITECTURES[name])
        arch = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == ARCHITECTURES[name])
        self.names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
        self.count = 0

    def kind(self, inputs: int) -> str:
        """The next type; as in published files, one of small blocks where a row is no multiple of
        256."""
        self.count += 1
        kind = self.types[self.count % len(self.types)]
        return "q8_0" if inputs % 256 else kind

    def add(self, name: str, plain: torch.Tensor, kind: str | None) -> torch.Tensor:
        """Store a tensor; returns the numbers that it now has."""
        if kind is None:
            self.writer.add_tensor(name, plain.float().numpy())
            return plain.float()
        raw = blocks_of(plain, kind)
        self.writer.add_tensor(name, raw.numpy(), raw_dtype=TYPES[kind])
        return exact(raw, kind)

    def file_name(self, name: str) -> str:
        if name == "lm_head.weight":  # Which the package does not know of architectures that tie.
            return "output.weight"
        found = self.names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        return found

    def tensor(self, name: str, plain: torch.Tensor) -> torch.Tensor:
        """A tensor that is no expert."""
        if name.endswith(".sinks"):
            self.writer.add_tensor(f"{self.file_name(name)}.weight", plain.float().numpy())
            return plain.float()
        added = 1.0 if self.config["model_type"].startswith("gemma") and "norm" in name else 0.0
        heads = self.rotary_heads(name)
        block = plain.dim() == 2 and not any(word in name for word in ("router", "gate.weight"))
        plain = plain.float() + added
        turned = plain if heads is None else permuted(plain, heads)
        new = self.add(self.file_name(name), turned, self.kind(plain.shape[1]) if block else None)
        return (new if heads is None else unpermuted(new, heads)) - added

    def rotary_heads(self, name: str) -> int | None:
        if ARCHITECTURES[self.name] != "llama":
            return None
        if ".q_proj." in name:
            return self.config["num_attention_heads"]
        return self.config["num_key_value_heads"] if ".k_proj." in name else None


def permuted(plain: torch.Tensor, heads: int) -> torch.Tensor:
    """As llama.cpp's converter does it."""
    parts = plain.reshape(heads, 2, plain.shape[0] // heads // 2, *plain.shape[1:])
    return parts.swapaxes(1, 2).reshape(plain.shape).contiguous()


def unpermuted(plain: torch.Tensor, heads: int) -> torch.Tensor:
    parts = plain.reshape(heads, plain.shape[0] // heads // 2, 2, *plain.shape[1:])
    return parts.swapaxes(1, 2).reshape(plain.shape).contiguous()


def save_gguf(
    name: str,
    path: Path,
    types: Sequence[str] = TYPES_IN_TURNS,
    more: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    **overrides: Any,
) -> Any:
    """Write a tiny model; returns the library's model of its numbers."""
    folder = path.parent / f"{path.stem}-plain"
    plain = plain_tensors(name, folder, **{**SIZES, **overrides})
    config = json.loads((folder / "config.json").read_text())
    file = GgufOf(name, path, config, types)
    _metadata(file.writer, config)
    add_vocabulary(file.writer, config["vocab_size"])
    more(file.writer)
    numbers = _experts(file, plain)
    for one, tensor in plain.items():
        if one not in numbers:
            numbers[one] = file.tensor(one, tensor)
    file.writer.write_header_to_file()
    file.writer.write_kv_data_to_file()
    file.writer.write_tensors_to_file()
    file.writer.close()
    return model_of(folder, numbers)


def _experts(file: GgufOf, plain: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    numbers: dict[str, torch.Tensor] = {}
    for layer in range(file.config["num_hidden_layers"]):
        before = f"blk.{layer}."
        for leaf, part in EXPERTS.get(file.name, {}).items():
            end = f".{leaf}.weight"
            own = [one for one in plain if f"layers.{layer}." in one and ".experts." in one]
            own = [one for one in own if one.endswith(end)]
            own.sort(key=lambda one: int(one.split(".experts.")[1].split(".")[0]))
            stack = torch.stack([plain[one] for one in own])
            kind = "q8_0" if stack.shape[-1] % 256 else file.types[layer % len(file.types)]
            new = file.add(f"{before}{part}_exps.weight", stack, kind)
            numbers |= dict(zip(own, new, strict=True))
        if file.name == "gpt_oss":
            numbers |= _gpt_oss_experts(file, plain, layer)
    return numbers


def _gpt_oss_experts(
    file: GgufOf, plain: dict[str, torch.Tensor], layer: int
) -> dict[str, torch.Tensor]:
    before, stem = f"blk.{layer}.", f"model.layers.{layer}.mlp.experts."
    both = plain[f"{stem}gate_up_proj"].transpose(1, 2)
    gate = file.add(f"{before}ffn_gate_exps.weight", both[:, 0::2].contiguous(), "mxfp4")
    up = file.add(f"{before}ffn_up_exps.weight", both[:, 1::2].contiguous(), "mxfp4")
    down = plain[f"{stem}down_proj"].transpose(1, 2).contiguous()
    down = file.add(f"{before}ffn_down_exps.weight", down, "mxfp4")
    bias = plain[f"{stem}gate_up_proj_bias"]
    file.add(f"{before}ffn_gate_exps.bias", bias[:, 0::2].contiguous(), None)
    file.add(f"{before}ffn_up_exps.bias", bias[:, 1::2].contiguous(), None)
    file.add(f"{before}ffn_down_exps.bias", plain[f"{stem}down_proj_bias"], None)
    return {
        f"{stem}gate_up_proj": torch.stack([gate, up], 2).flatten(1, 2).transpose(1, 2),
        f"{stem}down_proj": down.transpose(1, 2),
        f"{stem}gate_up_proj_bias": bias.float(),
        f"{stem}down_proj_bias": plain[f"{stem}down_proj_bias"].float(),
    }


def _metadata(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    size = config.get("head_dim") or hidden // heads
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(size)
    writer.add_value_length(size)
    writer.add_rope_dimension_count(size)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    rope = config["rope_parameters"]
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.get("sliding_window") and config["model_type"] != "mistral":
        writer.add_sliding_window(config["sliding_window"])
    experts = config.get("num_local_experts") or config.get("num_experts")
    if experts:
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config["num_experts_per_tok"])
        width = config.get("moe_intermediate_size") or config["intermediate_size"]
        writer.add_expert_feed_forward_length(width)
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def add_vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Some bytes as tokens, with a beginning and an end."""
    letters = [chr(code) for code in [*range(33, 127), *range(161, 173), *range(174, 256)]]
    tokens = ["<pad>", "<s>", "</s>", *letters, *(f"w{n}" for n in range(size))][:size]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (size - 3))
    writer.add_token_merges([])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
