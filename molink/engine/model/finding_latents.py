"""Finds the attention modules whose keys and values can be kept as the latent rows behind them.

The library makes keys and values of latent rows in one method of the module, `expand_kv`, which
stands between its cache and its attention. What the method does is read off by calling it, and the
module then computes random rows in both ways: where the results differ, or the method does more
than multiply, the module keeps whole keys and values as any other does.

Names of weights were rejected: the method works whatever they are called and however they are
quantized. The matrices that it multiplied with are given up for their unpacked copies.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from molink.engine.layers.attention_function import AttentionStep, active_step
from molink.engine.layers.latent_expansion import LatentExpansion, expansion_of, latent_rows
from molink.engine.memory.kv_pool import KvPool
from molink.engine.memory.step_plan import plan_step
from molink.engine.model.pruning import Skip
from molink.engine.proof import alike, hooks, recorded_inputs, with_random_rows
from molink_scheduler.batch import Batch, BatchClass, Span
from molink_scheduler.kv.blocks import BLOCK_TOKENS, KvBlocks

EXPAND = "expand_kv"
"""The library's method: latent and rotated parts [1, 1, T, R] to keys and values [1, H, T, A]."""

WAYS_APART = 2.5
"""Allowance of a whole module in units of `proof.APART`: it rounds a dozen times."""

Latents = Mapping[int, LatentExpansion]


@dataclass(slots=True)
class Trial:
    """Findings of a trial of one module."""

    args: Any = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    parts: tuple[torch.Tensor, torch.Tensor] | None = None
    """Latent and rotated parts that it expanded."""


def keep_latents(model: nn.Module, trial: Callable[[], object]) -> dict[int, LatentExpansion]:
    """Let layers of `model` hand on latent rows where that computes the same; returns what makes
    keys and values of them, by layer.

    `trial` runs the model once over some rows of one request.
    """
    modules = [module for module in model.modules() if hasattr(type(module), EXPAND)]
    if not modules:
        return {}
    with _watched(modules) as trials:
        trial()
    found = {module.layer_idx: _kept(module, one) for module, one in trials.items()}
    return {layer: expansion for layer, expansion in found.items() if expansion is not None}


@contextmanager
def _watched(modules: list[nn.Module]) -> Iterator[dict[Any, Trial]]:
    """How the modules are called inside the block, and what they expand."""
    trials: dict[Any, Trial] = {module: Trial() for module in modules}

    def called(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        trials[module].args, trials[module].kwargs = args, kwargs

    def noting(module: Any) -> Callable[..., Any]:
        def expand(*parts: torch.Tensor) -> Any:
            trials[module].parts = parts  # type: ignore[assignment]
            return getattr(type(module), EXPAND)(module, *parts)

        return expand

    for module in modules:
        setattr(module, EXPAND, noting(module))
    try:
        with hooks(one.register_forward_pre_hook(called, with_kwargs=True) for one in modules):
            yield trials
    finally:
        for module in modules:
            delattr(module, EXPAND)


def _kept(module: Any, trial: Trial) -> LatentExpansion | None:
    """The module's expansion, put in place; None where it stays as it was."""
    if trial.parts is None:
        return None
    expansion = expansion_of(getattr(module, EXPAND), *trial.parts)
    if expansion is None:
        return None
    parts = [name for name, part in module.named_modules() if name and not [*part.children()]]
    with recorded_inputs(module, parts) as used_before:
        wanted = _outputs(module, trial, {})
    setattr(module, EXPAND, latent_rows)
    with recorded_inputs(module, parts) as used:
        got = _outputs(module, trial, {module.layer_idx: expansion})
    if alike(got, wanted, WAYS_APART) is not None:
        delattr(module, EXPAND)
        return None
    for name in used_before.keys() - used.keys():
        module.set_submodule(name, Skip())
    module.latent_expansion = expansion
    return expansion


@torch.inference_mode()
def _outputs(module: Any, trial: Trial, latents: Latents) -> torch.Tensor:
    """The module's outputs for random rows: of a first span, and of a second that also sees it."""
    args, kwargs = with_random_rows(trial.args), with_random_rows(trial.kwargs)
    assert trial.parts is not None
    _, _, tokens, _ = trial.parts[0].shape
    device = trial.parts[0].device
    kv, pool, outputs = KvBlocks(1), KvPool(BLOCK_TOKENS), []
    kv.grow(0, 2 * tokens)
    for start in (0, tokens):
        span = Span(0, start, start + tokens, samples=False)
        plan = plan_step(Batch(0, BatchClass.PREFILL, 0, (span,)), kv, device)
        with active_step(AttentionStep(plan, pool, latents=latents)):
            output = module(*args, **kwargs)
        outputs.append(output[0] if isinstance(output, tuple) else output)
    return torch.cat(outputs)
