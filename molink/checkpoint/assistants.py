"""Assistants of Gemma 4: checkpoints that draft for one model, over keys and values of its layers.

An assistant has queries alone. Each of its layers reads the keys and values of the model's last
layer of the same kind that has its own: of one with full attention, and of one with a window. So it
drafts where these *sources* are, and where the model's last hidden states and tokens are, on the
tail. What a config leaves to its class is not told here; who loads the layers compares the shapes.

Names and meaning: `gemma4_assistant` and `SinglePositionMultiTokenCandidateGenerator` of
transformers. No torch.
"""

from collections.abc import Mapping
from typing import Any

from molink.checkpoint.draft_layer import ASSISTANT_TYPES, DraftLayer
from molink.checkpoint.layers_together import SHARING
from molink.checkpoint.model_config import text_settings

Config = Mapping[str, Any]

ASSISTED_TYPES = ("gemma4_text", "gemma4_unified_text")
"""Types of the text models that assistants draft for."""

KINDS = "layer_types"
"""Setting with the kind of each layer."""

FULL = "full_attention"
"""Kind of layers that attend to all tokens."""

HEAD_SIZES = {True: "global_head_dim", False: "head_dim"}
"""Setting of the size of a head, by whether the layer attends to all tokens."""


def is_assistant(config: Config) -> bool:
    """Whether a config.json is an assistant's."""
    return config.get("model_type") in ASSISTANT_TYPES


def sources_of(config: Config) -> dict[str, int]:
    """The model's layer whose keys and values layers of each kind read, by its config.json; empty:
    it does not tell the kinds of its layers."""
    facts = text_settings(config)
    kinds, sharing = facts.get(KINDS), facts.get(SHARING)
    if not isinstance(kinds, list):
        return {}
    own = kinds[: len(kinds) - sharing] if isinstance(sharing, int) else kinds
    return {str(kind): number for number, kind in enumerate(own)}


def misfit(assistant: Config, model: Config, layer: DraftLayer | None) -> str:
    """Why an assistant cannot draft for a model, as a clause; empty: by what both config.json tell
    it can. `layer`: what names of its tensors tell of it; None: they are not known here."""
    facts, of_model = text_settings(assistant), text_settings(model)
    kind = of_model.get("model_type")
    if kind not in ASSISTED_TYPES:
        return f"it is an assistant of Gemma 4, and the model is of type {kind}"
    width, needed = of_model.get("hidden_size"), assistant.get("backbone_hidden_size")
    if None not in (width, needed) and width != needed:
        return f"it was made for a model of width {needed}, and this one's is {width}"
    words, own = of_model.get("vocab_size"), facts.get("vocab_size")
    if None not in (words, own) and words != own:
        return f"it has {own} words where the model has {words}"
    wanted, sources = facts.get(KINDS), sources_of(model)
    if not sources or not isinstance(wanted, list):
        return "the kinds of its layers, or of the model's, are not told in config.json"
    if missing := sorted(set(map(str, wanted)) - sources.keys()):
        return f"it reads layers of the kind {missing[0]}, of which the model has none"
    lacks = layer.objection if layer is not None else ""
    return _other_sizes(facts, of_model, {str(one) for one in wanted}) or lacks


def first_source(assistant: Config, model: Config) -> int:
    """The first layer that a tail must have for an assistant that fits the model."""
    sources = sources_of(model)
    return min(sources[str(kind)] for kind in text_settings(assistant)[KINDS])


def elsewhere(first: int, layers: int) -> str:
    """Why an assistant cannot draft on a tail without the first of its sources, as a clause;
    `layers`: of the model."""
    return (
        f"it reads the keys and values of layers {first} to {layers - 1}, and the last stage does "
        f"not hold all of them: cut the model at layer {first} or before"
    )


def _other_sizes(assistant: Config, model: Config, kinds: set[str]) -> str:
    """Why heads do not fit, where both configs tell their sizes."""
    for kind in sorted(kinds):
        name = HEAD_SIZES[kind == FULL]
        one, other = assistant.get(name), model.get(name)
        if None not in (one, other) and one != other:
            return f"its heads have {one} numbers in layers of {kind}, and the model's {other}"
    return ""
