"""Loads the drafting layer of a checkpoint (MTP, "nextn") as a stage of one more layer.

Around an ordinary decoder layer of the model's own class stand two norms and a projection in front
of it, and a norm behind it. So it is what a stage of the library's model with one layer more would
own, and names are all that the packagings differ in: what loads a stage's weights (conversions,
experts in one tensor, quantized formats) loads these, and what rewrites its layers rewrites this
one. Embeddings and output matrix are the tail's own.

Whether a tensor is quantized its stored format says: most quantized checkpoints keep this layer in
16 bits, whatever their config declares.
"""

import copy
import logging
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from molink.checkpoint.checkpoint import Checkpoint
from molink.checkpoint.draft_layer import DraftLayer, Packaging, draft_layer
from molink.engine.drafting.tail_layer import TailLayer
from molink.engine.model.pruning import stage_class
from molink.engine.model.text_model import causal_class
from molink.engine.model.weights import StagePart, load_tensors

log = logging.getLogger(__name__)

MODULES = {
    "projection": "eh_proj.",
    "embedding_norm": "enorm.",
    "hidden_norm": "hnorm.",
    "norm": "post_norm.",
}
"""Modules beside the layer, by the parts that packagings name. The model's own names are none of
them: the library reads whole files, and takes what has such a name as it is."""

KINDS = {"layer_types": "full_attention", "mlp_layer_types": "sparse"}
"""Settings that name the kind of each layer, and that of one that drafts, if the model has any."""

FED_BEHIND_NORM: Mapping[str, bool] = {
    "qwen3_next": True,
    "qwen3_5_text": True,
    "qwen3_5_moe_text": True,
    "deepseek_v3": True,
    "glm4_moe": True,
    "glm4_moe_lite": True,
}
"""Whether the hidden state that a family's layer is fed is that behind the model's last norm, or
what goes into it. Only acceptance shows it, and engines contradict each other.

Qwen: behind it, by measured acceptance (llama.cpp #24025, 0.69 to 0.73; vllm-mlx #660 has changed
to before it, without a figure). DeepSeek: behind it, as in the modeling code that its checkpoints
ship (ROCm/ATOM #1764, which also measured that the layer's own output is to be fed behind its own
norm: 61 to 65 %), in the library and in llama.cpp #25980; its author's word in #24025 was before
it. GLM: behind it, as in the library; vLLM #47448 measured the same of the layer's own output. The
layer's own output, which its second pass is fed, is taken behind its norm in all of them."""


def load_tail_layer(
    checkpoint: Checkpoint, config: Any, target: Any, dtype: torch.dtype
) -> TailLayer | None:
    """The layer of a checkpoint that drafts behind `target`, the tail's model, on the CPU; None,
    with a warning why, where it has none that can. `config`: the library's, of the whole.

    Raises CheckpointError for a file that is missing or broken."""
    layer = draft_layer(checkpoint.config(), checkpoint.weight_map())
    if reason := _objection(layer):
        log.warning("%s is served without drafts of its tail: %s", checkpoint.name, reason)
        return None
    assert layer is not None, "what is objected to is not loaded"
    own, files = _config_of_more(config), checkpoint.weight_map()
    part = StagePart(range(config.num_hidden_layers, own.num_hidden_layers), own.num_hidden_layers)
    given = part, {name: files[name] for name in layer.tensors}, dtype
    names = _names(layer, part.layers.start)
    model = load_tensors(checkpoint, _class_of(own, part), own, *given, beginnings=names)
    return TailLayer(model, target, FED_BEHIND_NORM[layer.model_type])


def _objection(layer: DraftLayer | None) -> str:
    """Why a stage cannot draft with this layer, as one clause; empty: it can."""
    if layer is None:
        return "it has no layer that drafts (MTP)"
    if layer.packaging not in (Packaging.MTP, Packaging.NEXTN):
        return "queries over another model's KV do not draft yet"
    if layer.model_type not in FED_BEHIND_NORM:
        return f"what the drafting layer of {layer.model_type} is fed is not known here"
    return layer.objection


def _config_of_more(config: Any) -> Any:
    """Config of the model with one layer more, which has full attention, and experts where the
    model has any."""
    own = copy.deepcopy(config)
    for name, kind in KINDS.items():
        if getattr(own, name, None) is not None:
            setattr(own, name, [*getattr(own, name), kind])
    if getattr(own, "decoder_sparse_step", None) is not None:
        own.decoder_sparse_step = 1
    own.num_hidden_layers += 1
    return own


def _class_of(config: Any, part: StagePart) -> Any:
    """Class of a stage that owns the last layer alone, with what stands around a drafting one. Name
    and module stay those of the library, as `stage_class` says."""
    base = stage_class(causal_class(config), part.layers, is_head=False, is_tail=False)

    def __init__(self: Any, config: Any) -> None:
        base.__init__(self, config)
        width, layer = config.hidden_size, self.get_decoder().layers[-1]
        for name in ("enorm", "hnorm", "post_norm"):
            setattr(self, name, type(layer.input_layernorm)(width, eps=config.rms_norm_eps))
        self.eh_proj = nn.Linear(2 * width, width, bias=False)

    names = {"__init__": __init__, "__module__": base.__module__, "__doc__": None}
    return type(base.__name__, (base,), names)


def _names(layer: DraftLayer, number: int) -> dict[str, str]:
    """Beginnings of stored names, as patterns, and of the names of layer `number` for them."""
    stored = {MODULES[part]: name.removesuffix("weight") for part, name in layer.parts.items()}
    names = {f"^{re.escape(name)}": module for module, name in stored.items()}
    return names | {f"^{re.escape(layer.block_prefix)}": f"model.layers.{number}."}
