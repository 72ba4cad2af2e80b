"""Swaps modules of a loaded CPU stage for faster ones that compute the same.

Nothing here knows an architecture. A trial run shows which linears read the same tensor; every
replacement is compared with the original on random numbers when it is made, and the self-test then
compares a whole model that was rewritten the same way. On CUDA nothing is rewritten: the kernels
there need no packing.

Originals are freed one by one, so that the peak stays near one copy of the weights. What remains is
copied out of the files: otherwise one small tensor would keep a whole shard mapped, and its pages
count as the process's memory.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from molink.executor.cpu.packed_linear import pack
from molink.executor.cpu.root_mean_square import replacement_for
from molink.executor.cpu.shared_input import SharedInput, SharedPart
from molink.executor.pruning import Skip

__all__ = ["rewrite"]


def rewrite(
    model: Any,
    trial: Callable[[], None],
    *,
    embeds: bool,
    progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Rewrite `model` in place; `trial` runs it once on some input, `embeds` says whether it takes
    token ids.
    """
    if not embeds:
        _untie_embedding(model)
    groups = _linear_groups(model, trial)
    for done, names in enumerate(groups):
        _pack_group(model, names)
        progress((done + 1) / len(groups))
    _replace_norms(model)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()


def _untie_embedding(model: Any) -> None:
    """A tail needs tied embeddings only as its output head: that alone keeps the weights."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, Skip):
        name = next(name for name, module in model.named_modules() if module is embedding)
        _replace(model, name, Skip())


# -- linears --------------------------------------------------------------------------------------


def _linear_groups(model: Any, trial: Callable[[], None]) -> list[list[str]]:
    """Names of all linears, those that read the same tensor and have the same parent together."""
    names = [
        name
        for name, module in model.named_modules()
        if type(module) is nn.Linear and not _is_embedding_too(model, module)
    ]
    with _recorded_inputs(model, names) as inputs:
        trial()
    groups: dict[object, list[str]] = {}
    for name in names:
        parent = name.rpartition(".")[0]
        seen = inputs.get(name, [])
        key = (parent, id(seen[0])) if len(seen) == 1 else name
        groups.setdefault(key, []).append(name)
    return list(groups.values())


def _is_embedding_too(model: Any, linear: nn.Linear) -> bool:
    """Whether the weight is also looked up as embedding: a packed copy would be a second one."""
    return linear.weight is getattr(model.get_input_embeddings(), "weight", None)


@contextmanager
def _recorded_inputs(model: nn.Module, names: list[str]) -> Iterator[dict[str, list[Any]]]:
    """The inputs that the named modules receive inside the block, kept alive so that ids stay
    unique.
    """
    inputs: dict[str, list[Any]] = {}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: inputs.setdefault(name, []).append(args[0])
        )
        for name in names
    ]
    try:
        yield inputs
    finally:
        for handle in handles:
            handle.remove()


def _pack_group(model: nn.Module, names: list[str]) -> None:
    linears: list[Any] = [model.get_submodule(name) for name in names]
    packed = pack(linears)
    if packed is None:
        return
    if len(names) == 1:
        _replace(model, names[0], packed)
        return
    shared = SharedInput(packed, [linear.out_features for linear in linears])
    for index, name in enumerate(names):
        _replace(model, name, SharedPart(shared, index))


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, leaf = name.rpartition(".")
    setattr(model.get_submodule(parent), leaf, module)


# -- norms ----------------------------------------------------------------------------------------


def _replace_norms(model: nn.Module) -> None:
    for name, module in list(model.named_modules()):
        if "norm" in type(module).__name__.lower() and not isinstance(module, Skip):
            replacement = replacement_for(module)
            if replacement is not None:
                _replace(model, name, replacement)
