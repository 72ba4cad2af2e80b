"""Puts quantized weights into a stage's model, past the library.

The library's own quantizers need packages that build kernels, unpack what they read, or break a
model that is cut. So the config loses its `quantization_config`, the pruned class gets shells
without weights where quantized ones belong, `from_pretrained` loads all that is left, and here the
shells are filled: each weight is read, packed and put in its place, one after the other, so that
the peak is the stage itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import Concatenate, MergeModulelist

from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.quantized.recognised import part_names, quantized_weights
from molink.checkpoint.quantized.stored_weight import StoredWeight, WeightFormat
from molink.checkpoint.safetensors_header import check_whole, read_header
from molink.checkpoint.shard_plan import TEXT_NAMES
from molink.engine.kernels.packed_weights import QuantizedWeight, joined
from molink.engine.layers.experts import ExpertStack, is_experts
from molink.engine.layers.quantized_linear import QuantizedLinear
from molink.engine.model.quantized.readers import read_weight
from molink.engine.model.quantized.tensor_files import TensorFiles
from molink.engine.model.tensor_names import TensorNames
from molink.errors import CheckpointError, UnsupportedModelError

Target = tuple[str, str]
"""Path of a module, and its attribute that is a weight."""

EXPERTS_STEP = "experts"
"""Step of a tensor's path that the number of its expert follows."""


@dataclass(frozen=True, slots=True)
class Place:
    """Place in a model where a stored weight belongs."""

    weight: StoredWeight
    module: str
    """Path of the module that has it."""
    attribute: str
    expert: int | None = None
    """Index in a stack whose matrices are stored one by one."""
    order: int = 0
    """Place among the matrices that stand one above the other."""


class Shell(nn.Module):
    """Module in place of a linear layer whose quantized weight comes later; its bias loads as
    usual."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.shape = tuple(linear.weight.shape)
        self.bias = linear.bias


class StackShell(nn.Module):
    """Module in place of the stacked weights of experts."""

    def __init__(self, stack: nn.Parameter, *, transposed: bool) -> None:
        super().__init__()
        experts, *shape = stack.shape
        self.experts = experts
        self.shape = tuple(reversed(shape)) if transposed else tuple(shape)
        self.transposed = transposed


# -- places ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StageWeights:
    """The quantized weights of one stage: where they belong, and in which files they are."""

    places: tuple[Place, ...]
    files: TensorFiles
    """Files that hold all parts of the weights."""

    @property
    def targets(self) -> list[Target]:
        """Places in a model where they belong, each place once."""
        return list(dict.fromkeys((one.module, one.attribute) for one in self.places))


def stage_weights(
    model: str,
    declared: DeclaredQuantization,
    skeleton: nn.Module,
    weight_map: Mapping[str, str],
    paths: Mapping[str, Path],
    beginnings: Mapping[str, str] = TEXT_NAMES,
) -> StageWeights:
    """Find the quantized weights among the tensors that a stage needs (`weight_map`, to the names
    of files, whose paths are given).

    Raises CheckpointError for files that are shorter than their tables say or whose tensors do not
    fit together, UnsupportedModelError for a scheme that is not read.
    """
    tensors = []
    for path in paths.values():
        table = read_header(path)
        check_whole(table, path)
        tensors += [one for one in table.tensors if one.name in weight_map]
    weights = quantized_weights(model, tensors, declared)
    parts = {name: paths[weight_map[name]] for name in part_names(weights)}
    names = TensorNames(skeleton, beginnings)
    owned = [weight for name, weight in weights.items() if names.renamed(name) in names]
    places = tuple(_place(weight, names, model) for weight in owned)
    return StageWeights(places, TensorFiles(parts))


def _place(weight: StoredWeight, names: TensorNames, model: str) -> Place:
    module, _, attribute = names.renamed(weight.name).rpartition(".")
    found = names.converter(weight.name)
    if found is None:
        return Place(weight, module, attribute)
    converter, order = found
    operations = converter.operations
    if len(converter.target_patterns) > 1 or not all(map(_stacks, operations)):
        raise UnsupportedModelError(
            f"{weight.name} of {model} is quantized, and its architecture rearranges it when it is "
            "loaded, which packed weights cannot follow: take the original model"
        )
    merges = any(isinstance(operation, MergeModulelist) for operation in operations)
    return Place(weight, module, attribute, _expert(weight.name) if merges else None, order)


def _stacks(operation: object) -> bool:
    """Whether a conversion does nothing but put matrices one above the other."""
    return isinstance(operation, MergeModulelist | Concatenate)


def _expert(name: str) -> int | None:
    steps = name.split(".")
    for before, step in pairwise(steps):
        if before == EXPERTS_STEP and step.isdecimal():
            return int(step)
    return None


# -- shells ---------------------------------------------------------------------------------------


def with_shells(pruned_class: Any, targets: Sequence[Target]) -> Any:
    """The class of a stage with shells where these weights belong. Name and module stay those of
    the library: its conversions are looked up by them."""
    if not targets:
        return pruned_class

    def __init__(self: Any, config: Any) -> None:
        pruned_class.__init__(self, config)
        for module, attribute in targets:
            _hollow(self, module, attribute)

    names = {"__init__": __init__, "__module__": pruned_class.__module__, "__doc__": None}
    return type(pruned_class.__name__, (pruned_class,), names)


def _hollow(model: nn.Module, path: str, attribute: str) -> None:
    module = model.get_submodule(path)
    if type(module) is nn.Linear:
        model.set_submodule(path, Shell(module))
    elif isinstance(module, nn.Embedding):
        del module._parameters[attribute]  # Rows of no numbers: nothing to load, or to fill.
        nothing = torch.empty(module.num_embeddings, 0)
        module.register_buffer(attribute, nothing, persistent=False)
    elif is_experts(module) and attribute in module._parameters:
        stack = module._parameters.pop(attribute)
        assert stack is not None
        setattr(module, attribute, StackShell(stack, transposed=bool(module.is_transposed)))
        module._is_hf_initialized = True  # type: ignore[assignment]
        # Else the class fills with noise what it takes for a parameter.
    else:
        raise UnsupportedModelError(
            f"{path}.{attribute} is quantized, and its architecture computes with it in a way of "
            "its own, which reads no packed weights: take the original model"
        )


# -- filling --------------------------------------------------------------------------------------


def fill(
    model: nn.Module,
    weights: StageWeights,
    dtype: torch.dtype,
    progress: Callable[[float], None] = lambda fraction: None,
) -> None:
    """Read all quantized weights of a stage and replace its shells.

    Raises CheckpointError for a weight that does not fit its place or is damaged.
    """
    by_target: dict[tuple[str, str], list[Place]] = {}
    for place in weights.places:
        by_target.setdefault((place.module, place.attribute), []).append(place)
    for done, ((path, attribute), group) in enumerate(by_target.items()):
        module = model.get_submodule(path)
        if isinstance(module, Shell):
            weight = _one_matrix([_read(place, weights.files, dtype) for place in _ordered(group)])
            _check_shape(group[0], weight, module.shape)
            model.set_submodule(path, QuantizedLinear(weight, module.bias, dtype))
        elif isinstance(module, nn.Embedding):
            weight = _one_matrix([_read(place, weights.files, torch.float32) for place in group])
            _check_shape(group[0], weight, (module.num_embeddings, module.embedding_dim))
            del module._buffers[attribute]  # Rows are looked up, so they are unpacked here.
            module.weight = nn.Parameter(weight.dequantized(dtype), requires_grad=False)
        else:
            shell = getattr(module, attribute)
            setattr(module, attribute, _stack(shell, group, weights.files, dtype))
        progress((done + 1) / len(by_target))


def _stack(
    shell: StackShell, group: list[Place], files: TensorFiles, dtype: torch.dtype
) -> ExpertStack:
    linears = []
    for expert in range(shell.experts):
        weight = _one_matrix(_matrices_of(expert, shell, group, files, dtype))
        _check_shape(group[0], weight, shell.shape)
        linears.append(QuantizedLinear(weight, None, dtype))
    return ExpertStack(linears)


def _matrices_of(
    expert: int, shell: StackShell, group: list[Place], files: TensorFiles, dtype: torch.dtype
) -> list[QuantizedWeight]:
    """Matrices that make up the one of an expert: stored one by one, or as an entry of a stack."""
    first = group[0].weight
    if group[0].expert is None:
        by_rows = not shell.transposed or first.format in (WeightFormat.MXFP4, WeightFormat.GGUF)
        if first.experts != shell.experts or not by_rows:
            raise CheckpointError(
                f"{first.name} holds {first.experts or 1} matrices in an order that is not read, "
                f"where the model has {shell.experts} experts: take another version of the model"
            )
        return [_read(place, files, dtype, expert) for place in _ordered(group)]
    own = [place for place in group if place.expert == expert]
    orders = {place.order for place in group}
    if {place.order for place in own} != orders:
        raise CheckpointError(f"{first.name} has no match for expert {expert}; fetch it again")
    return [_read(place, files, dtype) for place in _ordered(own)]


def _ordered(group: list[Place]) -> list[Place]:
    return sorted(group, key=lambda place: place.order)


def _read(
    place: Place, files: TensorFiles, dtype: torch.dtype, expert: int | None = None
) -> QuantizedWeight:
    return read_weight(place.weight, files, dtype, expert)


def _one_matrix(weights: list[QuantizedWeight]) -> QuantizedWeight:
    if len({weight.form for weight in weights}) > 1:
        raise CheckpointError(
            "matrices that the model stacks are quantized in different ways: "
            "take another version of the model"
        )
    return joined(weights)


def _check_shape(place: Place, weight: QuantizedWeight, wanted: tuple[int, ...]) -> None:
    if weight.shape != wanted:
        found, expected = (" x ".join(map(str, shape)) for shape in (weight.shape, wanted))
        raise CheckpointError(
            f"{place.weight.name} is a matrix of {found}, where the model has one of {expected}: "
            "its config.json is that of another model"
        )
