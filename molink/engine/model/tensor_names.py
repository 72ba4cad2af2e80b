"""Mapping from the tensors of a checkpoint to those of a model.

Checkpoints of one architecture come with older and newer names, and some layers hold several stored
tensors as one (experts, for example). The library knows how; this asks it.
"""

from collections.abc import Mapping
from typing import Any

from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from molink.checkpoint.shard_plan import TEXT_NAMES


class TensorNames:
    """Names of stored tensors and what the library makes of them for one model."""

    def __init__(self, skeleton: Any, beginnings: Mapping[str, str] = TEXT_NAMES) -> None:
        """`beginnings` of stored names, as patterns, and what the model has in their place."""
        transforms = get_model_conversion_mapping(skeleton, dict(beginnings), None)
        self._renamings = [one for one in transforms if isinstance(one, WeightRenaming)]
        self._converters = [one for one in transforms if isinstance(one, WeightConverter)]
        self._prefix = skeleton.base_model_prefix
        self._state = skeleton.state_dict()

    def __contains__(self, name: str) -> bool:
        """Whether the model has a parameter or buffer of this name."""
        return name in self._state

    def renamed(self, name: str) -> str:
        """The model's name for a stored tensor, or for what it becomes a part of."""
        return self._renamed(name)[0]

    def converter(self, name: str) -> tuple[WeightConverter, int] | None:
        """Converter that makes the model's tensor of several stored ones, and the place of this one
        among them; None where it is taken as it is."""
        pattern = self._renamed(name)[1]
        for converter in self._converters:
            if pattern is not None and pattern in converter.source_patterns:
                return converter, converter.source_patterns.index(pattern)
        return None

    def _renamed(self, name: str) -> tuple[str, str | None]:
        renamed, pattern = rename_source_key(
            name, self._renamings, self._converters, self._prefix, self._state
        )
        return renamed, pattern
