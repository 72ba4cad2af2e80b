"""The class that predicts text for a config.

The library has one for nearly every text model. Text parts of some vision models (Qwen3-VL,
GLM-4V) it can only build inside the whole; for those a class is made of the text model and a linear
head, which is what the whole computes when it is given no picture.
"""

from collections.abc import Hashable
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers import GenerationMixin
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)
from transformers.core_model_loading import WeightConverter
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
    MODEL_MAPPING,
)

TIED = "tie_word_embeddings"

SCALES_LOGITS = ("logits_scaling", "logit_scale", "lm_head_multiplier", "final_logit_softcapping")
"""Settings of what a whole does behind its head: no plain head computes that."""

PREDICT_TEXT = (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MULTIMODAL_LM_MAPPING,
)


def text_part(config: Any) -> Any | None:
    """The config of a checkpoint's decoder-only text model; None where it has none."""
    if config.is_encoder_decoder or not any(type(config) in known for known in PREDICT_TEXT):
        return None
    text = config.get_text_config()
    if text is config:
        return config if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else None
    if causal_class(text) is None:
        return None
    if text.dtype is None:
        text.dtype = config.dtype
    text.tie_word_embeddings = any(getattr(one, TIED, False) for one in (config, text))
    _share_conversions(config.model_type, text)
    return text


def _share_conversions(whole_type: str, text: Any) -> None:
    """Let the library convert weights for the text model alone, if it converts those of the whole
    only (experts that it stores in one tensor)."""
    names = (text.model_type, causal_class(text).__name__)
    if any(get_checkpoint_conversion_mapping(name) for name in names):
        return
    transforms = get_checkpoint_conversion_mapping(whole_type) or ()
    converters = [one for one in transforms if isinstance(one, WeightConverter)]
    if converters:
        register_checkpoint_conversion_mapping(text.model_type, converters)


def causal_class(config: Any) -> Any:
    """The class of a whole model that predicts text; None where the library has no text model for
    the config."""
    if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING:
        return MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    config_class: Any = type(config)
    if any(getattr(config, name, None) is not None for name in SCALES_LOGITS):
        return None
    try:
        return _made_class(config_class) if config_class in MODEL_MAPPING else None
    except ValueError:  # The library names a class that it does not have.
        return None


@cache
def _made_class(config_class: Hashable) -> Any:
    text_model = MODEL_MAPPING[config_class]
    family: Any = text_model.__mro__[1]

    def __init__(self: Any, config: Any) -> None:
        family.__init__(self, config)
        self.model = text_model(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    # Name and module are the library's own: it looks conversions of weights up by them.
    return type(
        text_model.__name__.replace("TextModel", "ForCausalLM"),
        (family, GenerationMixin),
        {
            "config_class": config_class,
            "base_model_prefix": "model",
            "_tied_weights_keys": {"lm_head.weight": "model.embed_tokens.weight"},
            "__module__": text_model.__module__,
            "__init__": __init__,
            "forward": _forward,
        },
    )


def _forward(
    self: Any, input_ids: Any = None, logits_to_keep: int | torch.Tensor = 0, **inputs: Any
) -> CausalLMOutputWithPast:
    output = self.model(input_ids=input_ids, **inputs)
    keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
    logits = self.lm_head(output.last_hidden_state[:, keep])
    return CausalLMOutputWithPast(logits=logits, past_key_values=output.past_key_values)
