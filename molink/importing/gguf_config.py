"""config.json from the metadata of a GGUF file.

The metadata name sizes under the architecture (`llama.block_count`). Some settings they leave out,
because the format's own engine has them in its code: they are written here where one value is right
for all models of an architecture, and where none is, the import asks for the config of the original
model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from molink.checkpoint.gguf.header import GgufArray, GgufHeader, GgufTensor
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.gguf_architectures import ARCHITECTURES, Architecture
from molink.importing.gguf_tensors import GgufModel
from molink.printable import printable_line

__all__ = ["QUANTIZATION", "gguf_model", "model_settings"]

QUANTIZATION = {"quant_method": "gguf"}
"""What the new config.json says of its weights; the rest is in the names of the tensors."""

WITH_CONFIG = "name the folder of the original model with --config"

LLAMA3_LENGTHS = (8192, 4096, 16384, 32768)
"""Lengths for which models with llama 3's rotary embedding were trained first."""

LLAMA3_LOW, LLAMA3_HIGH = 1.0, 4.0
"""In every published model."""

FACTOR_DIGITS = 4
"""Of the largest factor, which is a whole number in published models."""

FACTORS_TOLERANCE = 1e-3
"""Relative, between the factors of a file and those that settings give: both are of fp32."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """Reader of the settings in one file."""

    header: GgufHeader
    prefix: str

    def find(self, key: str) -> Any:
        """The value of a key under the architecture, or None."""
        return self.header.metadata.get(f"{self.prefix}.{key}")

    def number(self, key: str) -> int:
        """A positive whole number. Raises CheckpointError for anything else."""
        value = self.find(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            what = "a list" if isinstance(value, GgufArray) else repr(value)
            raise CheckpointError(
                f"{self.header.path} gives no usable {self.prefix}.{key} "
                f"({printable_line(what)[:40]}): {WITH_CONFIG}"
            )
        return value

    def amount(self, key: str, default: float | None = None) -> float:
        """A number, or its default. Raises CheckpointError when there is neither."""
        value = self.find(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CheckpointError(
                f"{self.header.path} gives no usable {self.prefix}.{key}: {WITH_CONFIG}"
            )
        return float(value)

    def tensor(self, name: str) -> GgufTensor | None:
        """A tensor by its name."""
        return next((one for one in self.header.tensors if one.name == name), None)

    def floats(self, name: str) -> np.ndarray | None:
        """The numbers of a small tensor in F32; None where there is none."""
        tensor = self.tensor(name)
        if tensor is None or tensor.type.name != "F32" or tensor.stored is not None:
            return None
        data = np.memmap(tensor.path, np.uint8, "r")[tensor.start : tensor.stop]
        return data.view(np.float32).astype(np.float64)


def gguf_model(header: GgufHeader) -> tuple[GgufModel, Metadata]:
    """The model in a file. Raises UnsupportedModelError for an architecture that is not known;
    CheckpointError for metadata that lack what any model has."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{header.path} names no architecture: fetch it again")
    metadata = Metadata(header, name)
    key = f"{name} with experts" if name == "llama" and metadata.find("expert_count") else name
    if key not in ARCHITECTURES:
        known = ", ".join(one for one in ARCHITECTURES if " " not in one)
        raise UnsupportedModelError(
            f"{header.path} is of the architecture {printable_line(name)[:40]}; MoLink imports "
            f"{known}: take a safetensors version of this model"
        )
    heads = metadata.number("attention.head_count")
    kv_heads = metadata.find("attention.head_count_kv")
    kv_heads = heads if kv_heads is None else metadata.number("attention.head_count_kv")
    layers = metadata.number("block_count")
    return GgufModel(header, ARCHITECTURES[key], layers, heads, kv_heads), metadata


def model_settings(model: GgufModel, metadata: Metadata) -> dict[str, Any]:
    """The settings of config.json, without those of weights and tokens."""
    settings = _sizes(model, metadata)
    make = SETTINGS.get(model.architecture.model_type)
    return settings | (make(metadata, settings) if make else _rope(metadata, settings))


def _sizes(model: GgufModel, metadata: Metadata) -> dict[str, Any]:
    hidden = metadata.number("embedding_length")
    embeddings = metadata.tensor("token_embd.weight")
    if embeddings is None or embeddings.shape[1:] != (hidden,):
        raise CheckpointError(f"{metadata.header.path} has no embeddings of {hidden}: fetch again")
    head_size = metadata.find("attention.key_length")
    if head_size is not None:
        head_size = metadata.number("attention.key_length")
    architecture: Architecture = model.architecture
    return {
        "architectures": [architecture.model_class],
        "model_type": architecture.model_type,
        "num_hidden_layers": model.layers,
        "hidden_size": hidden,
        "intermediate_size": _intermediate(metadata),
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": head_size or hidden // model.heads,
        "vocab_size": embeddings.shape[0],
        "max_position_embeddings": metadata.number("context_length"),
        "rms_norm_eps": metadata.amount("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": model.tied and embeddings.is_plain,
        "dtype": "bfloat16",
    }


def _intermediate(metadata: Metadata) -> int:
    key = "feed_forward_length"
    if not metadata.find(key) and metadata.find("expert_feed_forward_length"):
        key = "expert_feed_forward_length"
    return metadata.number(key)


# -- rotary embeddings ----------------------------------------------------------------------------


def _rope(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    return {"rope_parameters": _rope_parameters(metadata, settings)}


def _rope_parameters(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    theta = metadata.amount("rope.freq_base", 10000.0)
    factors = metadata.floats("rope_freqs.weight")
    if factors is not None:
        return _llama3(metadata, factors, theta, settings["head_dim"])
    kind = metadata.find("rope.scaling.type") or "none"
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    factor = metadata.amount("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        original = metadata.number("rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "beta_fast": metadata.amount("rope.scaling.yarn_beta_fast", 32.0),
            "beta_slow": metadata.amount("rope.scaling.yarn_beta_slow", 1.0),
            "original_max_position_embeddings": original,
        }
    raise _needs_config(metadata, f"scales its rotary embedding by {printable_line(str(kind))}")


def _llama3(metadata: Metadata, factors: np.ndarray, theta: float, size: int) -> dict[str, Any]:
    """The settings that give the factors by which the file divides frequencies."""
    factor = round(float(factors.max()), FACTOR_DIGITS)
    for original in LLAMA3_LENGTHS if factor > 1 else ():
        settings = {
            "rope_type": "llama3",
            "rope_theta": theta,
            "factor": factor,
            "low_freq_factor": LLAMA3_LOW,
            "high_freq_factor": LLAMA3_HIGH,
            "original_max_position_embeddings": original,
        }
        found = _llama3_factors(theta, size, factor, original)
        if found.shape == factors.shape and np.allclose(found, factors, FACTORS_TOLERANCE):
            return settings
    raise _needs_config(metadata, "has factors of rotary frequencies other than llama 3's")


def _llama3_factors(theta: float, size: int, factor: float, original: int) -> np.ndarray:
    frequencies = theta ** -(np.arange(0, size, 2) / size)
    turns = original * frequencies / (2 * np.pi)
    smooth = np.clip((turns - LLAMA3_LOW) / (LLAMA3_HIGH - LLAMA3_LOW), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _needs_config(metadata: Metadata, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{metadata.header.path} {why}, which its metadata do not say in full: {WITH_CONFIG}"
    )


# -- single architectures -------------------------------------------------------------------------


def _mixtral(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    return _rope(metadata, settings) | {
        "num_local_experts": metadata.number("expert_count"),
        "num_experts_per_tok": metadata.number("expert_used_count"),
    }


def _qwen3_moe(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    return _rope(metadata, settings) | {
        "num_experts": metadata.number("expert_count"),
        "num_experts_per_tok": metadata.number("expert_used_count"),
        "moe_intermediate_size": metadata.number("expert_feed_forward_length"),
        "norm_topk_prob": True,
    }


def _gpt_oss(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    rope = _rope_parameters(metadata, settings)
    return {
        "rope_parameters": rope | ({"truncate": False} if rope["rope_type"] == "yarn" else {}),
        "intermediate_size": metadata.number("expert_feed_forward_length"),
        "num_local_experts": metadata.number("expert_count"),
        "num_experts_per_tok": metadata.number("expert_used_count"),
        "sliding_window": metadata.number("attention.sliding_window"),
        "attention_bias": True,
    }


def _gemma2(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    return _rope(metadata, settings) | {
        "query_pre_attn_scalar": _gemma_scalar(settings, layers_of_27b=46),
        "sliding_window": metadata.number("attention.sliding_window"),
        "attn_logit_softcapping": metadata.amount("attn_logit_softcapping", 50.0),
        "final_logit_softcapping": metadata.amount("final_logit_softcapping", 30.0),
    }


def _gemma3(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    whole = _rope_parameters(metadata, settings)
    if metadata.find("rope.freq_base") is None:
        whole["rope_theta"] = 1_000_000.0
    local = {"rope_type": "default", "rope_theta": 10_000.0}
    return {
        "rope_parameters": {"full_attention": whole, "sliding_attention": local},
        "query_pre_attn_scalar": _gemma_scalar(settings, layers_of_27b=62),
        "sliding_window": metadata.number("attention.sliding_window"),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": metadata.find("final_logit_softcapping"),
    }


def _gemma_scalar(settings: dict[str, Any], layers_of_27b: int) -> int:
    """What queries are divided by the root of: a head's size, but not in the models of 27B."""
    if settings["num_hidden_layers"] == layers_of_27b:
        return int(settings["hidden_size"]) // int(settings["num_attention_heads"])
    return int(settings["head_dim"])


def _phi3(metadata: Metadata, settings: dict[str, Any]) -> dict[str, Any]:
    length = settings["max_position_embeddings"]
    rope: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": metadata.amount("rope.freq_base", 10000.0),
    }
    long, short = (metadata.floats(f"rope_factors_{kind}.weight") for kind in ("long", "short"))
    original = metadata.find("rope.scaling.original_context_length") or length
    if long is not None and short is not None:
        rope |= {
            "rope_type": "longrope",
            "long_factor": long.tolist(),
            "short_factor": short.tolist(),
            "original_max_position_embeddings": original,
        }
    size = settings["head_dim"]
    rope["partial_rotary_factor"] = (metadata.find("rope.dimension_count") or size) / size
    window = metadata.find("attention.sliding_window")
    return {
        "rope_parameters": rope,
        "original_max_position_embeddings": original,
        "sliding_window": window or None,
        "pad_token_id": None,
    }


SETTINGS: dict[str, Callable[[Metadata, dict[str, Any]], dict[str, Any]]] = {
    "mixtral": _mixtral,
    "qwen3_moe": _qwen3_moe,
    "gpt_oss": _gpt_oss,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
}
"""What an architecture has beside sizes, or in place of plain rotary embeddings."""
