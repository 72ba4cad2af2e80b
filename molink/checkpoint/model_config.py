"""A model's shape from its Hugging Face `config.json`, read as plain JSON.

The names of the same number differ between families, so each is looked for under every name that is
in use. All layers count as alike: families whose first layers have no experts (DeepSeek) come out a
little off. Loading the config with transformers was rejected: it needs torch-sized imports, and
code from the hub for families that it does not know.
"""

import json
from collections.abc import Mapping
from math import gcd
from pathlib import Path
from typing import Any

from molink.checkpoint.held_weights import weight_bits
from molink.checkpoint.layers_together import SHARING, layers_together
from molink.checkpoint.mixers import (
    NO_STATE,
    layer_kinds,
    recurrent_parameters,
    state_size,
    windows_of,
)
from molink.checkpoint.model_shape import PLAIN, ModelShape
from molink.checkpoint.quantized.declared import declared_quantization
from molink.errors import UserError
from molink.utf8 import utf8_text

Config = Mapping[str, Any]

COUNT_MAX = 2**40
"""Largest number that a config may count: no model is near, and figures made of it stay finite."""

LAYERS_MAX = 10_000
"""Ten times as many as any model has; plans count layer by layer."""

WITHOUT_GATE = (
    *("gpt2", "gpt_neo", "gpt_neox", "gpt_bigcode", "gptj", "codegen"),
    *("opt", "phi", "falcon", "bloom", "mpt", "starcoder2", "apertus"),
)
"""Model types whose MLP has two matrices."""

TIED_WHEN_SILENT = ("gpt2", "gpt_bigcode", "opt", "bloom", "mpt", "gemma", "gemma2", "gemma3_text")
"""Model types whose configs leave `tie_word_embeddings` out because it is true."""

EXPERTS_PER_TOKEN = (
    *("num_experts_per_tok", "num_experts_per_token", "experts_per_token"),
    *("moe_top_k", "moe_topk", "moe_k", "top_k_experts"),
)

AVERAGED = (
    *("attention_parameters", "attention_width"),
    *("decode_attention_width", "expansion_parameters"),
)
"""Figures of layers that are averaged; KV and states are counted layer by layer."""

WITH_OUTPUT_GATE = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
"""Model types whose attention multiplies what it found with a gate of its own."""

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}

EXPERTS_ONLY = "mxfp4"
"""Method whose checkpoints quantize nothing but experts."""

CONFIG_BYTES_MAX = 4_000_000
"""Largest config.json that is read; real ones have a few kilobytes."""


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
    # meta-llama/Llama-2-13b-hf
    "llama-2-13b": _llama(40, 5120, 13824, 40, 40, 32_000),
    # meta-llama/Llama-2-70b-hf
    "llama-2-70b": _llama(80, 8192, 28672, 64, 8, 32_000),
    # huggyllama/llama-30b, the paper's example of an activation's size
    "llama-30b": _llama(60, 6656, 17920, 52, 52, 32_000),
    # huggyllama/llama-65b
    "llama-65b": _llama(80, 8192, 22016, 64, 64, 32_000),
    # meta-llama/Meta-Llama-3-70B
    "llama-3-70b": _llama(80, 8192, 28672, 64, 8, 128_256),
    # mistralai/Mixtral-8x7B-v0.1
    "mixtral-8x7b": _llama(32, 4096, 14336, 32, 8, 32_000)
    | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
    # tools/random_llama.py, the model of our own benchmarks
    "llama-88m": _llama(12, 768, 2048, 12, 4, 8192),
}
"""Shapes of models that need no file, by the name that a user types, in lower case. Each holds the
parts that decide cost of the published config of the checkpoint above it. They are in the words of
that file, and go through the same reader as a file.
"""


def known_models() -> tuple[str, ...]:
    """Names that `model_shape` takes without a file."""
    return tuple(sorted(KNOWN_CONFIGS))


def model_shape(name_or_path: str | Path) -> ModelShape:
    """The shape of a known model, or of a config.json or the directory that holds one.

    Raises UserError when it is neither, when the file does not tell the shape, or for a scheme of
    quantization that is not read.
    """
    name = str(name_or_path)
    if name.lower() in KNOWN_CONFIGS:
        return shape_of_config(name.lower(), KNOWN_CONFIGS[name.lower()])
    path = Path(name_or_path)
    if path.is_dir():
        return shape_of_config(path.name, _read(path / "config.json"))
    if path.is_file():
        return shape_of_config(path.parent.name or path.stem, _read(path))
    raise UserError(
        f"no model {name}: give a config.json, a directory that holds one, or one of "
        f"{', '.join(known_models())}."
    )


def text_settings(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a parsed config.json that speaks of the text model: all of it, or one entry."""
    thinker = config.get("thinker_config")
    if isinstance(thinker, dict):
        return text_settings(thinker)
    parts = [config.get(name) for name in ("text_config", "llm_config")]
    return next((part for part in parts if isinstance(part, dict)), config)


def _read(path: Path) -> Config:
    try:
        if path.stat().st_size > CONFIG_BYTES_MAX:
            raise UserError(f"{path} is too large for a config.json: give that of a model.")
        config = json.loads(utf8_text(path.read_bytes()))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): check the path.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): give a model's config.json.") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} holds no JSON object: give a model's config.json.")
    return {**config, **text_settings(config)}


def shape_of_config(name: str, config: Config) -> ModelShape:
    """The shape that a parsed config of a text model tells. Raises UserError when it does not."""
    hidden = _count(name, config, "hidden_size", "n_embd", "d_model", "dim")
    heads = _count(name, config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    kv_heads = _kv_heads(name, config, heads)
    head_size = _count(name, config, "head_dim", "kv_channels", default=hidden // heads)
    experts, per_token, shared = _experts(name, config)
    intermediate = _intermediate(name, config, hidden, experts)
    declared = declared_quantization(name, config)
    layers = _layers(name, config)
    weights = weight_bits(declared, gcd(hidden, intermediate))
    token_inputs, token_vocabulary = _token_tables(name, config)
    return ModelShape(
        name=name,
        layers=layers,
        hidden_size=hidden,
        intermediate_size=_mean_width(config, intermediate, layers),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocabulary=_count(name, config, "vocab_size"),
        tied_embeddings=_tied(config),
        **_attention(name, config, hidden, heads, kv_heads, head_size),
        mlp_matrices=2 if config.get("model_type") in WITHOUT_GATE else 3,
        experts=experts,
        experts_per_token=per_token,
        shared_intermediate_size=shared,
        dtype_bytes=DTYPE_BYTES.get(str(config.get("dtype") or config.get("torch_dtype")), 2),
        kv_dtype="auto",
        weights=weights,
        attention_weights=PLAIN if declared.method == EXPERTS_ONLY else weights,
        windows=windows_of(config, layers),
        together=layers_together(config, layers),
        token_inputs=token_inputs,
        token_vocabulary=token_vocabulary,
    )


def _mean_width(config: Config, intermediate: int, layers: int) -> int:
    """Width of the MLP as a mean over all layers: in some models it is twice as wide in those that
    have no keys and values of their own."""
    wide = config.get(SHARING) if config.get("use_double_wide_mlp") else 0
    wide = wide if isinstance(wide, int) and 0 <= wide <= layers else 0
    return intermediate + intermediate * wide // layers


def _token_tables(name: str, config: Config) -> tuple[int, int]:
    """Width and rows of the tables in which layers look up something of the token itself."""
    if not config.get("hidden_size_per_layer_input"):
        return 0, 0
    rows = _count(name, config, "vocab_size_per_layer_input", "vocab_size")
    return _count(name, config, "hidden_size_per_layer_input"), rows


def _layers(name: str, config: Config) -> int:
    kinds = config.get("layers_block_type")
    default = len(kinds) if isinstance(kinds, list) and kinds else None
    names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
    layers = _count(name, config, *names, default=default)
    if layers > LAYERS_MAX:
        raise UserError(f"the config of {name} names {layers} layers: {LAYERS_MAX} are the most.")
    return layers


def _kv_heads(name: str, config: Config, heads: int) -> int:
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _count(name, config, "num_key_value_heads", "num_kv_heads", default=heads)


def _tied(config: Config) -> bool:
    return bool(config.get("tie_word_embeddings", config.get("model_type") in TIED_WHEN_SILENT))


def _attention(
    name: str, config: Config, hidden: int, heads: int, kv_heads: int, head_size: int
) -> dict[str, Any]:
    """Fields of ModelShape that depend on how attention is built; weights and width as means over
    all layers, some of which may have a recurrence instead."""
    if config.get("kv_lora_rank"):
        attention = _latent_attention(name, config, hidden, heads)
    else:
        attention = _plain_attention(config, hidden, heads, kv_heads, head_size)
    layers = _layers(name, config)
    kinds, state = layer_kinds(config, layers), state_size(config)
    attending = sum(kinds.attends)
    means = {key: -(-attention[key] * attending // layers) for key in AVERAGED}
    others = (layers - attending) * recurrent_parameters(config, hidden)
    means["attention_parameters"] += others // layers
    return {
        **attention,
        **means,
        "attends": () if attending == layers else kinds.attends,
        "recurs": kinds.recurs if state != NO_STATE and any(kinds.recurs) else (),
        "state": state,
    }


def _plain_attention(
    config: Config, hidden: int, heads: int, kv_heads: int, head_size: int
) -> dict[str, int]:
    projections = 2 * heads * head_size + 2 * kv_heads * head_size
    if config.get("attn_output_gate", config.get("model_type") in WITH_OUTPUT_GATE):
        projections += heads * head_size
    return {
        "attention_parameters": hidden * projections,
        "attention_width": 2 * heads * head_size,
        "decode_attention_width": 2 * heads * head_size,
        "kv_values": 2 * kv_heads * head_size,
        "kv_vectors": 2 * kv_heads,
        "expansion_parameters": 0,
    }


def _latent_attention(name: str, config: Config, hidden: int, heads: int) -> dict[str, int]:
    """The same for DeepSeek's low-rank projections: a stage keeps the latent row.

    In int8 the row is cut into vectors of one size, none of them both latent and rotated.
    """
    rank = _count(name, config, "kv_lora_rank")
    rotated = _count(name, config, "qk_rope_head_dim")
    plain = _count(name, config, "qk_nope_head_dim")
    value = _count(name, config, "v_head_dim")
    # A key has a part without positions and a rotated one; queries come from a low rank or not.
    key = plain + rotated
    queries = hidden * heads * key
    if config.get("q_lora_rank"):
        queries = _count(name, config, "q_lora_rank") * (hidden + heads * key)
    # One projection goes down to the rank and to the rotated part that heads share, one up again.
    down, up = hidden * (rank + rotated), rank * heads * (plain + value)
    return {
        "attention_parameters": queries + down + up + heads * value * hidden,
        "attention_width": heads * (key + value),
        "decode_attention_width": heads * (rank + rotated + rank),
        "kv_values": rank + rotated,
        "kv_vectors": (rank + rotated) // gcd(rank, rotated),
        "expansion_parameters": up,
    }


def _intermediate(name: str, config: Config, hidden: int, experts: int) -> int:
    if experts > 1 and config.get("moe_intermediate_size"):
        return _count(name, config, "moe_intermediate_size")
    names: tuple[str, ...] = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    names += ("hidden_dim",)
    widths = config.get("intermediate_size")
    if isinstance(widths, list) and widths and all(isinstance(one, int) for one in widths):
        config = {**config, "intermediate_size": sum(widths) // len(widths)}  # One for each layer.
    if experts == 1:
        names = ("shared_intermediate_size", *names)  # Granite 4 without experts has that one.
    width = _count(name, config, *names, default=4 * hidden)
    return width // 2 if config.get("model_type") == "qwen" else width  # counts gate and up


def _experts(name: str, config: Config) -> tuple[int, int, int]:
    """Experts of a layer, how many of them a row passes, and the width of the shared one."""
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if all(not config.get(name) for name in names):
        return 1, 1, 0
    experts = _count(name, config, *names)
    if experts == 1:
        return 1, 1, 0
    per_token = _count(name, config, *EXPERTS_PER_TOKEN)
    if per_token > experts:
        raise UserError(f"{name} chooses {per_token} of {experts} experts: check its config.json.")
    return experts, per_token, _shared_width(name, config)


def _shared_width(name: str, config: Config) -> int:
    if config.get("enable_moe_block"):  # Gemma 4 has a whole MLP beside the experts.
        return _count(name, config, "intermediate_size")
    for width in ("shared_expert_intermediate_size", "shared_intermediate_size"):
        if config.get(width):
            return _count(name, config, width)
    if config.get("n_shared_experts"):
        experts = _count(name, config, "n_shared_experts")
        return experts * _count(name, config, "moe_intermediate_size")
    return 0


def _count(model: str, config: Config, *names: str, default: int | None = None) -> int:
    """The first of `names` that the config has; a whole number of at least 1."""
    value = next((config[name] for name in names if config.get(name) is not None), default)
    if value is None:
        raise UserError(f"the config of {model} has no {names[0]}: give that of a text model.")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_MAX:
        raise UserError(f"the config of {model} has {names[0]} {value!r}: it takes a whole number.")
    return value
