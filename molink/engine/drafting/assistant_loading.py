"""Loads an assistant of Gemma 4 as a tail's drafter, and says why one cannot draft there.

It is the library's own model, whose layers read the stage's KV in place of their own. Transformers
5.23 cannot build one as it stands: `kv_sharing_modes` refuses a model whose every layer reads what
others keep, which each assistant is. So that is said of its config here, of none but it.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from molink.checkpoint.checkpoint import Checkpoint, open_checkpoint
from molink.checkpoint.draft_layer import draft_layer, elsewhere, first_source, misfit, sources_of
from molink.engine.drafting.assistant import Assistant
from molink.engine.layers.kept_attention import KEPT_ATTENTION, SOURCE
from molink.engine.model.text_model import causal_class
from molink.engine.model.weights import StagePart, load_tensors, no_model
from molink.errors import UserError

log = logging.getLogger(__name__)


def load_assistant(
    path: str, checkpoint: Checkpoint, part: StagePart, target: Any, dtype: torch.dtype
) -> Assistant | None:
    """The assistant in a folder for `target`, the model of a tail of the checkpoint, on the CPU;
    None, with a warning why, where it cannot draft there."""
    try:
        return Assistant(_loaded(open_checkpoint(path), checkpoint, part, target, dtype), target)
    except (UserError, OSError, ValueError) as error:
        why = str(error).removesuffix(".")
        said = "%s is served without drafts of its tail: %s: %s"
        log.warning(said, checkpoint.name, Path(path).name, why)
        return None


def _loaded(
    own: Checkpoint, checkpoint: Checkpoint, part: StagePart, target: Any, dtype: torch.dtype
) -> Any:
    """The library's model. Raises UserError where it cannot draft for the target."""
    model_config, weight_map = checkpoint.config(), own.weight_map()
    why = misfit(own.config(), model_config, draft_layer(own.config(), weight_map))
    if not why and (first := first_source(own.config(), model_config)) < part.layers.start:
        why = elsewhere(first, part.layers_total)
    config, sources = _config_of(own), sources_of(model_config)
    why = why or _other_shapes(config, target.config, sources)
    if why:
        raise UserError(why)
    text = config.get_text_config()
    whole = StagePart(range(text.num_hidden_layers), text.num_hidden_layers)
    base = causal_class(config)
    kind = type(base.__name__, (base,), {"__module__": base.__module__, "__doc__": None})
    model: Any = load_tensors(own, kind, config, whole, weight_map, dtype, beginnings={})
    for number, one in enumerate(model.model.layers):
        setattr(one.self_attn, SOURCE, sources[text.layer_types[number]])
    return model


def _config_of(own: Checkpoint) -> Any:
    """The library's config, of layers that read what others keep. Raises CheckpointError for
    settings that make no model."""
    try:
        config = AutoConfig.from_pretrained(own.directory, trust_remote_code=False)
    except Exception as error:  # Each class checks its settings in its own way.
        raise no_model(own, error) from error
    text = config.get_text_config()
    kind: Any = type(text)
    modes = property(lambda self: ["reuse"] * self.num_hidden_layers)
    text.__class__ = type(kind.__name__, (kind,), {"kv_sharing_modes": modes})
    config._attn_implementation = KEPT_ATTENTION
    text._attn_implementation = KEPT_ATTENTION
    return config


def _other_shapes(config: Any, target: Any, sources: dict[str, int]) -> str:
    """Why its queries do not fit the keys that they are to read, as a clause."""
    text = config.get_text_config()
    for number, kind in enumerate(text.layer_types):
        own, kept = text.per_layer_config[number], target.per_layer_config[sources[kind]]
        names = "head_dim", "num_key_value_heads"
        shapes = [tuple(getattr(one, name) for name in names) for one in (own, kept)]
        if shapes[0] != shapes[1]:
            return (
                f"its layers of {kind} read {shapes[0][1]} heads of {shapes[0][0]} numbers, and "
                f"the model keeps {shapes[1][1]} of {shapes[1][0]}"
            )
    return ""
