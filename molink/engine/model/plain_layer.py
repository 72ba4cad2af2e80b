"""Decoder layer of a CPU stage that one call of our C kernel computes.

A layer of a small model is four products and some thirty small operations; torch takes longer to
dispatch those than to compute them. Where a layer is plain (norm, attention with rotated heads,
norm, gated MLP, two residual sums), `native/avx512/decoder_layer.c` computes it whole, decode rows
and pieces of prompts alike, on the products and with the attention that the stage has anyway.

Nothing here knows an architecture. What a layer calls, in which order and with what sizes, is seen
in a trial (`finding_plain_layers`), and a layer is only replaced when the call gives what the
layer's own code gives. The module stays where it is, with another `forward`.

Shapes: T rows, D hidden size, H query heads, K kv heads, A head size of keys, V of values, R
rotated channels of a head.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from molink.engine.kernels.cpu.coded_linear import CodedLinear
from molink.engine.kernels.cpu.native_attention import Shape, batch_of, kv_of, shape_of
from molink.engine.kernels.cpu.norms import RootMeanSquareNorm
from molink.engine.kernels.cpu.packed_linear import NativeLinear
from molink.engine.layers.attention_function import begin_layer, current_step
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.step_plan import StepPlan

ACTIVATIONS = ("silu", "gelu_tanh")
"""Activations by their numbers in the kernel."""

NativeProduct = NativeLinear | CodedLinear


class Linear(ctypes.Structure):
    """The kernel's `struct linear`."""

    _fields_ = (
        ("coded", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_long),
        ("outputs", ctypes.c_long),
    )


class Norm(ctypes.Structure):
    """The kernel's `struct norm`."""

    _fields_ = (("weight", ctypes.c_void_p), ("epsilon", ctypes.c_float))


class Layer(ctypes.Structure):
    """The kernel's `struct layer`."""

    _fields_ = (
        *((name, Linear) for name in ("qkv", "attended", "gate_up", "down")),
        *((name, Norm) for name in ("before_attention", "of_query", "of_key", "before_mlp")),
        ("shape", Shape),
        ("sinks", ctypes.c_void_p),
        ("rotated", ctypes.c_long),
        ("activation", ctypes.c_long),
    )


class Step(ctypes.Structure):
    """The kernel's `struct step`."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("x", "cosines", "sines", "slots")),
        ("rows", ctypes.c_long),
        ("scratch", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Parts that a plain layer is made of."""

    index: int
    before_attention: RootMeanSquareNorm
    qkv: NativeProduct
    query_norm: RootMeanSquareNorm | None
    """Norm of each head's query, before rotation."""
    key_norm: RootMeanSquareNorm | None
    attended: NativeProduct
    before_mlp: RootMeanSquareNorm
    gate_up: NativeProduct
    down: NativeProduct
    heads: int
    window: int | None
    variant: AttentionVariant
    rotated: int
    activation: str


@dataclass(slots=True)
class Scratch:
    """Memory between the operations of a layer, shared by all layers of a stage."""

    _numbers: torch.Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.bfloat16))

    def pointer(self, count: int) -> int:
        """Room for so many numbers, valid until the next call."""
        if len(self._numbers) < count:
            self._numbers = torch.empty(count, dtype=torch.bfloat16)
        return self._numbers.data_ptr()


class PlainLayer:
    """Layer described for the kernel."""

    def __init__(
        self, library: ctypes.CDLL, parts: LayerParts, layer: LayerKv, scratch: Scratch
    ) -> None:
        self.parts, self._scratch = parts, scratch
        self._own_forward: Callable[..., torch.Tensor] | None = None
        self._held: list[torch.Tensor] = []
        self._layer = self._described(layer)
        self._pointer = ctypes.addressof(self._layer)
        self._call = _function(library, "decoder_layer", [*[ctypes.c_void_p] * 5, ctypes.c_int])
        count = _function(library, "decoder_layer_scratch", [ctypes.c_void_p], ctypes.c_long)
        self._row_scratch: int = count(self._pointer)

    def take_over(self, module: nn.Module) -> None:
        """Compute in a module's place from now on."""
        self._own_forward, module.forward = module.forward, self.forward

    def forward(
        self,
        hidden_states: torch.Tensor,
        *args: Any,
        position_embeddings: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """Rows [1, T, D] of the step under way, computed in place of the module's own method. Where
        attention is in parts, or chooses what is kept, the module's own code computes them."""
        if not current_step().is_plain and self._own_forward is not None:
            given = {"position_embeddings": position_embeddings, **kwargs}
            return self._own_forward(hidden_states, *args, **given)
        step = begin_layer(self.parts.index, self.parts.window)
        plan, pool = step.kept_by(self.parts.index)
        layer = pool.layers[self.parts.index]
        return self.compute(hidden_states, position_embeddings, plan, layer)

    def compute(
        self, x_1TD: torch.Tensor, embeddings: Any, plan: StepPlan, layer: LayerKv
    ) -> torch.Tensor:
        """The layer's rows [1, T, D]; keys and values are written to `layer`. `embeddings`: cosines
        and sines [1, T, R]. Raises MemoryError where there was none."""
        # What a pointer leads to needs a name here, or it is freed before the kernel reads it.
        x_1TD = x_1TD.contiguous()
        out_1TD, rows = torch.empty_like(x_1TD), x_1TD.shape[1]
        cosines, sines = _rotation(embeddings) if self.parts.rotated else (None, None)
        step = Step(
            x_1TD.data_ptr(),
            None if cosines is None else cosines.data_ptr(),
            None if sines is None else sines.data_ptr(),
            plan.slots_T.data_ptr(),
            rows,
            self._scratch.pointer(rows * self._row_scratch),
        )
        failed = self._call(
            self._pointer,
            ctypes.byref(step),
            ctypes.byref(batch_of(plan.batch, self.parts.window)),
            ctypes.byref(kv_of(layer)),
            out_1TD.data_ptr(),
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError("no memory for a layer's rows")
        return out_1TD

    def _described(self, layer: LayerKv) -> Layer:
        parts, sinks = self.parts, self.parts.variant.sinks_H
        return Layer(
            *map(_linear, (parts.qkv, parts.attended, parts.gate_up, parts.down)),
            *map(
                self._norm,
                (parts.before_attention, parts.query_norm, parts.key_norm, parts.before_mlp),
            ),
            shape_of(parts.heads, layer, parts.variant),
            None if sinks is None else self._kept(sinks),
            parts.rotated,
            ACTIVATIONS.index(parts.activation),
        )

    def _norm(self, norm: RootMeanSquareNorm | None) -> Norm:
        return Norm() if norm is None else Norm(self._kept(norm.scale), norm.epsilon)

    def _kept(self, tensor: torch.Tensor) -> int:
        """Address of the tensor in fp32, valid for as long as this layer lives."""
        self._held.append(tensor.detach().float().contiguous().clone())
        return self._held[-1].data_ptr()


def _linear(product: NativeProduct) -> Linear:
    sizes = (product.bias_pointer, product.in_features, product.out_features)
    if isinstance(product, CodedLinear):
        return Linear(product.coded_pointer, None, *sizes)
    return Linear(None, product.weight_pointer, *sizes)


def _rotation(embeddings: Any) -> tuple[torch.Tensor, torch.Tensor]:
    cosines, sines = embeddings
    return cosines.contiguous(), sines.contiguous()


def _function(
    library: ctypes.CDLL, name: str, arguments: list[Any], result: Any = ctypes.c_int
) -> Any:
    function = library[name]  # Of its own: another user may have declared it otherwise.
    function.argtypes, function.restype = arguments, result
    return function
