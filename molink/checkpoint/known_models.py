"""The shapes of models that need no file: those parts of their config.json that decide cost.

Each is the published config of the checkpoint named beside it, in the words of that file, and goes
through the same reader as a file does.
"""

from collections.abc import Mapping
from typing import Any

__all__ = ["KNOWN_CONFIGS"]


def _llama(
    layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, vocabulary: int
) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


KNOWN_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    # Qwen/Qwen-7B, the paper's model; its intermediate_size counts gate and up projection.
    "qwen-7b": _llama(32, 4096, 22016, 32, 32, 151_936)
    | {"model_type": "qwen", "kv_channels": 128},
    # Qwen/Qwen2.5-7B
    "qwen2.5-7b": _llama(28, 3584, 18944, 28, 4, 152_064) | {"model_type": "qwen2"},
    # meta-llama/Meta-Llama-3-8B
    "llama-3-8b": _llama(32, 4096, 14336, 32, 8, 128_256),
    # meta-llama/Llama-2-7b-hf
    "llama-2-7b": _llama(32, 4096, 11008, 32, 32, 32_000),
    # meta-llama/Llama-2-70b-hf
    "llama-2-70b": _llama(80, 8192, 28672, 64, 8, 32_000),
    # huggyllama/llama-30b, the paper's example of an activation's size
    "llama-30b": _llama(60, 6656, 17920, 52, 52, 32_000),
    # mistralai/Mixtral-8x7B-v0.1
    "mixtral-8x7b": _llama(32, 4096, 14336, 32, 8, 32_000)
    | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    # tools/random_llama.py, the model of our own benchmarks
    "llama-88m": _llama(12, 768, 2048, 12, 4, 8192),
}
"""By the name that a user types, in lower case."""
