"""Reader of the settings and small tensors in the table of a GGUF file."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from molink.checkpoint.gguf.header import GgufHeader, GgufTensor
from molink.checkpoint.gguf.walk import GgufArray
from molink.errors import CheckpointError
from molink.importing.gguf.recoding import whole
from molink.printable import printable_line

WITH_CONFIG = "name the folder of the original model with --config"

NUMBER_MAX = 2**31 - 1
"""Largest number of layers, heads, widths, tokens or the like."""


@dataclass(frozen=True)
class GgufModel:
    """One model's file: its settings by the keys under its architecture, and its tensors."""

    header: GgufHeader
    name: str
    """Name of the architecture, as the file says it."""

    @cached_property
    def tensors(self) -> dict[str, GgufTensor]:
        """All tensors by their names."""
        return {tensor.name: tensor for tensor in self.header.tensors}

    @cached_property
    def layers(self) -> int:
        """Layers that compute the next token; those that guess later ones come behind them."""
        return max(1, self.number("block_count") - self.count("nextn_predict_layers", 0))

    @cached_property
    def heads(self) -> int:
        """Number of query heads of a layer."""
        return self.number("attention.head_count")

    @cached_property
    def kv_heads(self) -> int:
        """Heads of keys, in the layers that have attention."""
        counts = self.each("attention.head_count_kv")
        if counts is not None:
            return max([1, *map(int, counts)])
        return self.count("attention.head_count_kv", self.heads)

    @property
    def tied(self) -> bool:
        """Whether the head multiplies by the embeddings."""
        return "output.weight" not in self.tensors

    @property
    def has_biases(self) -> bool:
        """Whether queries have biases, in a matrix of their own or joined with keys and values."""
        return self.has("attn_q.bias") or self.has("attn_qkv.bias")

    def find(self, key: str) -> Any:
        """The value of a key under the architecture, or None."""
        return self.header.metadata.get(f"{self.name}.{key}")

    def each(self, key: str) -> list[Any] | None:
        """The values of a key that is given for each layer, or None."""
        value = self.find(key)
        if not isinstance(value, GgufArray):
            return None
        found = self.header.array(f"{self.name}.{key}") or []
        if len(found) < self.layers:
            raise CheckpointError(
                f"{self.header.path} gives {len(found)} values of {self.name}.{key} for "
                f"{self.layers} layers: {WITH_CONFIG}"
            )
        return list(found[: self.layers])

    def scalar(self, key: str) -> int | float | None:
        """A number or a truth value; None where there is none. Raises CheckpointError for anything
        else."""
        value: Any = self.find(key)
        if isinstance(value, str | GgufArray) or (value is not None and not math.isfinite(value)):
            raise self._unusable(key)
        return value  # type: ignore[no-any-return]

    def number(self, key: str) -> int:
        """A positive whole number. Raises CheckpointError for anything else, and for what no model
        has as many of as `NUMBER_MAX`."""
        value = self.find(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= NUMBER_MAX:
            raise self._unusable(key)
        return value

    def count(self, key: str, default: int) -> int:
        """A positive whole number, or what its absence, and zero, stand for."""
        return self.number(key) if self.find(key) else default

    def amount(self, key: str, default: float | None = None) -> float:
        """A number, or its default. Raises CheckpointError when there is neither."""
        value = self.scalar(key)
        value = default if value is None else value
        if value is None or isinstance(value, bool):
            raise self._unusable(key)
        return float(value)

    def misfit(self, tensor: GgufTensor, what: str) -> CheckpointError:
        """The error for a tensor that cannot be right, because its file was damaged."""
        return CheckpointError(f"{tensor.name} of {self.header.path} has {what}: fetch it again")

    def _unusable(self, key: str) -> CheckpointError:
        value = self.find(key)
        what = "a list" if isinstance(value, GgufArray) else printable_line(repr(value))[:40]
        return CheckpointError(
            f"{self.header.path} gives no usable {self.name}.{key} ({what}): {WITH_CONFIG}"
        )

    def has(self, part: str, layer: int | None = None) -> bool:
        """Whether a layer, or any, has a part, such as "attn_q.bias"."""
        numbers = range(self.layers) if layer is None else (layer,)
        return any(f"blk.{number}.{part}" in self.tensors for number in numbers)

    def found_inner(self, *parts: str) -> int | None:
        """Inputs of the first matrix of the first of these parts that the file has, or None."""
        names = (f"blk.{layer}.{part}.weight" for part in parts for layer in range(self.layers))
        return next((self.tensors[name].shape[-1] for name in names if name in self.tensors), None)

    def inner(self, *parts: str) -> int:
        """The same. Raises CheckpointError where there is none."""
        if (found := self.found_inner(*parts)) is None:
            raise CheckpointError(
                f"{self.header.path} has no {parts[0]} in any layer: fetch it again"
            )
        return found

    def kinds(self, part: str, kind: str, other: str) -> list[str]:
        """Kinds of all layers: `kind` where a layer has the part, else `other`."""
        return [kind if self.has(part, one) else other for one in range(self.layers)]

    def floats(self, name: str) -> np.ndarray | None:
        """The numbers of a small tensor in F32; None where there is none."""
        tensor = self.tensors.get(name)
        if tensor is None or tensor.type.name != "F32":
            return None
        return whole(tensor).view(np.float32).astype(np.float64)
