"""config.json from the metadata of a GGUF file.

The metadata name sizes under the architecture (`llama.block_count`). Some settings they leave out,
because the format's own engine has them in its code: they are written in `settings` where one
value is right for all models of an architecture, and where none is, the import asks for the config
of the original model.
"""

from collections.abc import Callable

from molink.checkpoint.gguf.header import GgufHeader
from molink.errors import CheckpointError, UnsupportedModelError
from molink.importing.gguf.architectures import ARCHITECTURES, Architecture
from molink.importing.gguf.metadata import GgufModel
from molink.importing.gguf.rope import rope_parameters
from molink.importing.gguf.settings import architecture_settings
from molink.json_object import JsonObject
from molink.printable import printable_line

QUANTIZATION = {"quant_method": "gguf"}
"""Quantization that the new config.json declares; the rest is in the names of the tensors."""

VARIANTS: dict[str, tuple[str, Callable[[GgufModel], bool]]] = {
    "llama": ("with experts", lambda model: bool(model.find("expert_count"))),
    "deepseek2": ("without bias", lambda model: not model.has("exp_probs_b.bias")),
    "olmo2": ("with windows", lambda model: model.find("attention.sliding_window") is not None),
}
"""Architectures whose files hold models of two classes, and how the second is told."""

RMS_EPS = "attention.layer_norm_rms_epsilon"


def gguf_model(header: GgufHeader) -> tuple[GgufModel, Architecture]:
    """The model in a file. Raises UnsupportedModelError for an architecture that is not known;
    CheckpointError for metadata that lack what any model has."""
    name = header.metadata.get("general.architecture")
    if not isinstance(name, str):
        raise CheckpointError(f"{header.path} names no architecture: fetch it again")
    if name not in ARCHITECTURES:
        known = ", ".join(one for one in ARCHITECTURES if " " not in one)
        raise UnsupportedModelError(
            f"{header.path} is of the architecture {printable_line(name)[:40]}; MoLink imports "
            f"{known}: take a safetensors version of this model"
        )
    model = GgufModel(header, name)
    if name in VARIANTS:
        variant, holds = VARIANTS[name]
        name = f"{name} {variant}" if holds(model) else name
    return model, ARCHITECTURES[name]


def model_settings(model: GgufModel, architecture: Architecture) -> JsonObject:
    """The settings of config.json, without those of weights and tokens."""
    settings = _sizes(model, architecture)
    own = architecture_settings(model, settings)
    if "rope_parameters" not in own:
        own["rope_parameters"] = rope_parameters(model, settings["head_dim"])
    return settings | own


def _sizes(model: GgufModel, architecture: Architecture) -> JsonObject:
    hidden = model.number("embedding_length")
    embeddings = model.tensors.get("token_embd.weight")
    if embeddings is None or embeddings.shape[1:] != (hidden,):
        raise CheckpointError(f"{model.header.path} has no embeddings of {hidden}: fetch again")
    return {
        "model_type": architecture.model_type,
        "num_hidden_layers": model.layers,
        "hidden_size": hidden,
        "intermediate_size": model.found_inner("ffn_down", "ffn_down_exps")
        or model.number("feed_forward_length"),
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.count("attention.key_length", hidden // model.heads),
        "vocab_size": embeddings.shape[0],
        "max_position_embeddings": model.number("context_length"),
        "tie_word_embeddings": model.tied and embeddings.is_plain,
        "attention_bias": model.has_biases,
        "dtype": "bfloat16",
        **({"rms_norm_eps": model.amount(RMS_EPS)} if model.find(RMS_EPS) else {}),
    }
