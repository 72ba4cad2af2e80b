"""Calls of a stage's layers that keep something, checked in every step.

A layer that keeps state elsewhere would come out wrong without any error. So every step notes which
layers called attention or a mixer; a layer that calls neither is refused, and so is a step whose
calls are not those of the first. What the calls mean, the self-test proves by numbers.
"""

from dataclasses import dataclass
from typing import Any

from molink.checkpoint.description import ModelDescription
from molink.errors import UnsupportedModelError

LAYERS_WITHOUT_MIXER = frozenset({"mlp", "moe"})
"""Kinds of layers that mix no tokens and so keep nothing (Nemotron-H)."""


@dataclass(slots=True)
class LayerCalls:
    """Calls of attention and mixers by the layers of one stage."""

    description: ModelDescription
    config: Any
    """Config of the model, as the library reads it."""
    layers: range
    _first: list[int] | None = None
    """Layers that called, in order; None before the first complete step."""

    def check(self, called: list[int]) -> None:
        """Raise UnsupportedModelError where the layers that called in a step are not those that
        have to."""
        if self._first is None:
            self._refuse_silent(called)
            self._first = called
        elif called != self._first:
            raise UnsupportedModelError(
                f"{self._model} cannot be served: "
                "its layers do not keep KV or states in the same order in every step"
            )

    def _refuse_silent(self, called: list[int]) -> None:
        kinds = getattr(self.config, "layers_block_type", None)
        kinds = kinds or getattr(self.config, "layer_types", None)
        silent = [
            layer
            for layer in self.layers
            if layer not in called and not (kinds and kinds[layer] in LAYERS_WITHOUT_MIXER)
        ]
        if silent or not set(called) <= set(self.layers):
            raise UnsupportedModelError(
                f"{self._model} cannot be served: "
                f"layer {silent[0] if silent else min(called)} keeps neither KV nor a state that "
                "stages know (a recurrent state in the module itself, for example); "
                "choose a model of ordinary attention layers"
            )

    @property
    def _model(self) -> str:
        return f"{self.description.name} ({self.description.model_type})"
