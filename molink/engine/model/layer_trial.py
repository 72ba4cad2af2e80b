"""A trial of a decoder's layers: what each is called with, and what runs in it, in which order.

The decoder is run with hooks on its layers, over a decode row and a piece of a prompt.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from molink.engine.kernels.cpu.norms import RootMeanSquareNorm
from molink.engine.kernels.cpu.packed_linear import PackedLinear
from molink.engine.layers.attention_function import (
    AttentionStep,
    active_step,
    current_step,
    observed_attention,
)
from molink.engine.memory.attention_math import AttentionVariant
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.ragged_batch import RaggedSpan
from molink.engine.memory.step_plan import StepPlan
from molink.engine.model.pruning import Skip
from molink.engine.proof import hooks
from molink_scheduler.kv.blocks import BLOCK_TOKENS

SPANS = (RaggedSpan(0, 1, 36, 37, (2, 0, 4)), RaggedSpan(1, 5, 15, 20, (3, 1)))
"""A decode row and a piece of a prompt."""

ROWS, BLOCKS = 6, 5


@dataclass(slots=True)
class Seen:
    """Work of a layer in the trial."""

    layer: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    ran: list[nn.Module | None] = field(default_factory=list)
    """Norms and products in order; None: attention."""
    is_outermost: bool = False
    """Whether it ran, and not inside another one."""
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    """Calls of attention: layer index, H, (A, K, V), window, variant."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Run of all layers at some positions, and what it was run with."""

    step: AttentionStep
    seen: list[Seen]


@dataclass(slots=True)
class DecoderCall:
    """Arguments of the decoder's call for one row, and the step that it belongs to."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    step: AttentionStep | None = None


@contextmanager
def decoder_called(decoder: nn.Module) -> Iterator[DecoderCall]:
    """Note the decoder's call inside the block."""
    call = DecoderCall()

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call.args, call.kwargs, call.step = args, kwargs, current_step()

    with hooks([decoder.register_forward_pre_hook(note, with_kwargs=True)]):
        yield call


def run_layers(decoder: nn.Module, call: DecoderCall, first_position: int) -> Trial:
    """Run the decoder over the spans, at those positions, and watch its layers."""
    plan = StepPlan.of(SPANS, torch.device("cpu"))
    plan = replace(plan, positions_T=plan.positions_T + first_position)
    pool = KvPool(BLOCKS * BLOCK_TOKENS)
    rows = {name: _repeated(one) for name, one in call.kwargs.items()}
    rows["position_ids"] = plan.positions_T[None]
    assert call.step is not None, "the decoder was called"
    step = replace(call.step, plan=plan, pool=pool, before_attention=None, layers_called=[])
    with active_step(step), watched(decoder) as seen:
        decoder(*map(_repeated, call.args), **rows)
    generator = torch.Generator().manual_seed(0)
    for layer in pool.layers.values():
        for part in (layer.keys, layer.values):
            part.rows_SKA.normal_(generator=generator)
    return Trial(step, seen.ran())


def _repeated(given: Any) -> Any:
    if isinstance(given, torch.Tensor) and given.dim() > 1 and given.shape[1] == 1:
        return given.repeat_interleave(ROWS, 1)
    return given


@dataclass(slots=True)
class Watch:
    """Record of the work of each layer of a decoder, as hooks see it."""

    layers: dict[nn.Module, Seen]
    under_way: list[Seen] = field(default_factory=list)
    """The layer that runs, and what runs inside it and may look like one."""

    def begin(self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A layer is called."""
        seen = self.layers[layer]
        seen.args, seen.kwargs, seen.is_outermost = args, kwargs, not self.under_way
        self.under_way.append(seen)

    def end(self, *_: Any) -> None:
        """Note that the module has returned."""
        self.under_way.pop()

    def runs(self, module: nn.Module, *_: Any) -> None:
        """A norm or product has run."""
        if self.under_way:
            self.under_way[0].ran.append(module)

    def attends(self, module: Any, *args: Any, **kwargs: Any) -> None:
        """Note that the layer calls attention."""
        if self.under_way:
            self.under_way[0].ran.append(None)
            self.under_way[0].calls.append(call_of(module, *args, **kwargs))

    def ran(self) -> list[Seen]:
        """The layers that ran, without what ran inside another one."""
        return [one for one in self.layers.values() if one.is_outermost]


@contextmanager
def watched(decoder: nn.Module) -> Iterator[Watch]:
    """Watch the layers inside the block."""
    stacks = [stack for stack in decoder.modules() if isinstance(stack, nn.ModuleList)]
    layers = [one for stack in stacks for one in stack if not isinstance(one, Skip)]
    watch = Watch({layer: Seen(layer) for layer in layers})
    kinds = RootMeanSquareNorm | PackedLinear
    made = [one.register_forward_pre_hook(watch.begin, with_kwargs=True) for one in watch.layers]
    made += [one.register_forward_hook(watch.end) for one in watch.layers]
    parts = (module for module in decoder.modules() if isinstance(module, kinds))
    made += [module.register_forward_hook(watch.runs) for module in parts]
    with hooks(made), observed_attention(watch.attends):
        yield watch


def call_of(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: Any,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **others: Any,
) -> tuple[Any, ...]:
    """A call of attention: layer index, H, (A, K, V), window, variant."""
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    sizes = (query.shape[-1], key.shape[1], value.shape[-1])
    variant = AttentionVariant(scale, softcap, s_aux)
    return module.layer_idx, query.shape[1], sizes, sliding_window or None, variant
