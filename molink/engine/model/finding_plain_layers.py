"""Finds the layers of a loaded CPU stage that are plain, and lets our C kernel compute them.

A trial shows which norms and products run in a layer, in which order around its attention, and what
attention is called with. Where that is the order of a plain layer, the kernel is tried with it on
random rows: decode and a piece of a prompt, over keys that lie scattered, small and large rows, at
the first positions and at far ones (some layers change what they do with the distance). What the
layer adds to its rows must agree, and so must the keys and values that it leaves in the pool. A
layer that does anything else differs, and keeps its own code.

What is recognised as one layer: a member of a module list that calls attention once.
"""

import ctypes
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import nn

from molink.engine.kernels.cpu.coded_linear import CodedLinear
from molink.engine.kernels.cpu.native_attention import kernels_for
from molink.engine.kernels.cpu.native_kernel import native_library
from molink.engine.kernels.cpu.norms import RootMeanSquareNorm
from molink.engine.kernels.cpu.packed_linear import NativeLinear, PackedLinear, SharedPart
from molink.engine.layers.attention_function import (
    active_step,
)
from molink.engine.memory.kv_pool import LayerKv
from molink.engine.memory.step_plan import StepPlan
from molink.engine.model.layer_trial import ROWS, Seen, Trial, decoder_called, run_layers, watched
from molink.engine.model.plain_layer import ACTIVATIONS, LayerParts, PlainLayer, Scratch
from molink.engine.proof import Reference, Swaps, only_reading, probe_rows, rounded_again

FAR = 3001
"""How much farther than the first positions the others are, as far as the model goes."""

SMALL = 0.02
"""Size of small rows."""

LAYER_ROUNDINGS = 2e-2
"""Share of a row's size by which two ways of a layer may differ, beside `ROUNDINGS` times what it
does to the rows to round each norm and product once more: two such draws differ by 1 % of a row,
and in single numbers by 4 % where attention is sharp. 150 layers: 0.4 % at most."""

KEPT_ROUNDINGS = 1.5e-2
"""Such a share for keys and values, which are rounded four times on their way. 200 layers: 1 %."""

DRAWS = 4
"""Number of times that roundings are drawn, where the allowance alone does not do."""

SUM_ROUNDING = 2.0**-6
"""Rounding of the two sums that a layer adds to its rows, relative to these: where a number lies
between two of bfloat16 either way may take the other, 2**-7 apart."""

VECTOR = 16
"""Numbers that the kernel takes at a time; sizes must be multiples."""


def use_plain_layers(model: Any, trial: Callable[[], object], swaps: Swaps) -> int:
    """Replace what plain layers of `model` compute with; how many they are. `trial` runs the model
    once on some input. Decoders with other kinds of layers beside attention stay as they are."""
    library = native_library()
    products = (one for one in model.modules() if isinstance(one, PackedLinear))
    if library is None or not any(one.weight.dtype is torch.bfloat16 for one in products):
        return 0
    decoder = model.get_decoder()
    with watched(decoder) as seen, decoder_called(decoder) as call:
        trial()
    if not all(one.calls for one in seen.ran()) or not any(map(_parts, seen.ran())):
        return 0
    far = min(FAR, getattr(model.config, "max_position_embeddings", FAR) - ROWS - 40)
    with torch.inference_mode():
        trials = [run_layers(decoder, call, first) for first in (0, max(0, far))]
        return _replace_plain(
            library, trials, {m: name for name, m in model.named_modules()}, swaps
        )


def _replace_plain(
    library: ctypes.CDLL, trials: list[Trial], names: dict[nn.Module, str], swaps: Swaps
) -> int:
    scratch, found = Scratch(), 0
    known: tuple[int, str] | None = None
    pairs = {names[seen[0].layer]: seen for seen in zip(*(o.seen for o in trials), strict=True)}
    for name in swaps.tried_first(pairs):
        seen = pairs[name]
        runs = list(zip(seen, trials, strict=True))
        layers = {
            (parts.rotated, parts.activation): PlainLayer(
                library, parts, trials[0].step.pool.layers[parts.index], scratch
            )
            for parts in _parts(seen[0])
        }
        known = _reading_of(layers, runs, known)
        if known is None:
            continue
        if not swaps.holds("all", name, partial(_trouble, layers[known], *runs[0])):
            return found  # What is off in one layer is not taken for the others.
        layers[known].take_over(seen[0].layer)
        found += 1
    return found


def _reading_of(
    layers: dict[tuple[int, str], PlainLayer],
    runs: list[tuple[Seen, Trial]],
    known: tuple[int, str] | None,
) -> tuple[int, str] | None:
    """The channels rotated and the activation that a layer is computed with; those of the layer
    before, which all others were held against, are tried first."""

    def trouble(layer: PlainLayer) -> str | None:
        return next(filter(None, (_trouble(layer, *run) for run in runs)), None)

    if known in layers and trouble(layers[known]) is None:
        return known
    named = {f"a rotation of {size} channels with {by}": (size, by) for size, by in layers}
    reading = only_reading({name: trouble(layers[key]) for name, key in named.items()})
    return None if reading is None else named[reading]


# -- what it may be -------------------------------------------------------------------------------


def _parts(seen: Seen) -> list[LayerParts]:
    """Parts that the layer may be made of, if it is plain."""
    match seen.ran:
        case [before, qkv, None, attended, after, gate_up, down]:
            norms: tuple[Any, Any] = (None, None)
        case [before, qkv, query, key, None, attended, after, gate_up, down]:
            norms = (query, key)
        case _:
            return []
    made_of: tuple[Any, ...] = (before, qkv, *norms, attended, after, gate_up, down)
    index, heads, sizes, window, variant = seen.calls[0]
    if not _suits(made_of, heads, *sizes):
        return []
    choices: Iterator[tuple[Any, ...]] = product(
        _rotations(seen.kwargs.get("position_embeddings"), sizes[0]), ACTIVATIONS
    )
    rest: tuple[Any, ...] = (heads, window, variant)
    return [LayerParts(index, *made_of, *rest, *choice) for choice in choices]


def _suits(made_of: tuple[Any, ...], heads: int, size: int, kv_heads: int, value_size: int) -> bool:
    """Whether these are the modules, and the sizes, of a plain layer that the kernel takes."""
    before, qkv, query, key, attended, after, gate_up, down = made_of
    products = (qkv, attended, gate_up, down)
    return (
        all(isinstance(one, NativeLinear | CodedLinear) for one in products)
        and all(isinstance(one, RootMeanSquareNorm) for one in (before, after))
        and all(one is None or _is_norm_of(one, size) for one in (query, key))
        and qkv.out_features == (heads + kv_heads) * size + kv_heads * value_size
        and attended.in_features == heads * value_size
        and gate_up.out_features == 2 * down.in_features
        and qkv.in_features % VECTOR == down.in_features % VECTOR == 0
    )


def _is_norm_of(norm: Any, size: int) -> bool:
    return isinstance(norm, RootMeanSquareNorm) and len(norm.scale) == size


def _rotations(embeddings: Any, size: int) -> Iterator[int]:
    """How many channels of a head positions may rotate."""
    if isinstance(embeddings, tuple) and len(embeddings) == 2:
        rotated = embeddings[0].shape[-1]
        is_of_rows = embeddings[0].shape == embeddings[1].shape == (1, ROWS, rotated)
        if is_of_rows and rotated <= size and rotated % (2 * VECTOR) == 0:
            yield rotated
    yield 0


# -- whether it is --------------------------------------------------------------------------------


def _trouble(
    layer: PlainLayer, seen: Seen, trial: Trial, rows: torch.Tensor | None = None
) -> str | None:
    """Why the kernel does not add to rows, and keep of them, what the layer's own code does."""
    step, parts = trial.step, layer.parts
    kept = step.pool.layers[parts.index]
    query_THA = torch.empty(1, parts.heads, kept.keys.size, dtype=torch.bfloat16)
    if kernels_for(query_THA, kept) is None:
        return "the attention kernels do not suit it"
    x = (_inputs(parts.qkv.in_features) if rows is None else rows[-ROWS:])[None]

    def by_library() -> torch.Tensor:
        with active_step(step):
            return seen.layer(x, *seen.args[1:], **seen.kwargs)  # type: ignore[no-any-return]

    wanted = by_library()
    kept_rows = _written(kept, step.plan)
    got = layer.compute(x, seen.kwargs.get("position_embeddings"), step.plan, kept)
    if not isinstance(wanted, torch.Tensor) or wanted.shape != got.shape:
        return "the layer returns something else"
    for one, other in zip(_written(kept, step.plan), kept_rows, strict=True):
        of_library = other.flatten(1).double()
        reference = Reference(of_library, of_library, KEPT_ROUNDINGS)
        if trouble := reference.trouble(one.flatten(1).double()):
            return trouble
    kinds = RootMeanSquareNorm | PackedLinear | SharedPart
    parts_run = [module for module in seen.layer.modules() if isinstance(module, kinds)]
    return _trouble_of_sums(x, got, wanted, partial(rounded_again, parts_run, by_library))


def _trouble_of_sums(
    x: torch.Tensor,
    got: torch.Tensor,
    wanted: torch.Tensor,
    again: Callable[[torch.Generator], torch.Tensor],
) -> str | None:
    """Why the kernel does not add to rows `x` what the layer does."""
    added = wanted.double() - x
    # Each sum is rounded in the size of the number that it is added to, which is no error.
    rounding = SUM_ROUNDING * torch.maximum(x.abs(), wanted.abs()).double()

    def error(of: torch.Tensor) -> torch.Tensor:
        apart = of.double() - wanted.double()
        return apart - apart.clamp(-rounding, rounding)

    trouble = Reference(added, added, LAYER_ROUNDINGS).trouble(added + error(got))
    if trouble is None:
        return None
    generator = torch.Generator().manual_seed(0)
    draws = [error(again(generator)).abs() for _ in range(DRAWS)]
    spread = torch.stack(draws).amax(0)
    return Reference(added, added + spread, LAYER_ROUNDINGS).trouble(added + error(got))


def _inputs(width: int) -> torch.Tensor:
    """Small rows, as what a layer adds does not grow with them, and such as real models have."""
    rows = probe_rows(ROWS, width, torch.bfloat16)
    small = torch.randn(ROWS // 2, width, generator=torch.Generator().manual_seed(0)) * SMALL
    return torch.cat([small.bfloat16(), rows[: ROWS - ROWS // 2]])


def _written(layer: LayerKv, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
    return layer.keys.rows_SKA[plan.slots_T], layer.values.rows_SKA[plan.slots_T]
