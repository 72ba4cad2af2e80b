"""Sizes of a model's layers, and what each takes of a node: the costs of a placement.

Where the weights are on this PC, the headers of its safetensors files tell every tensor's size, and
so what a stage holds of it: layers that differ (some with experts, some without), quantized ones
and tables come out as they are. Nothing is downloaded for it. Where they are not, `config.json`
gives the shapes (`molink.checkpoint.model_config`) and all layers count alike.

No torch here: the coordinator plans, and does not load it.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from molink.checkpoint.catalogue.entries import catalogue, catalogue_entry
from molink.checkpoint.checkpoint import INDEX, SINGLE, Checkpoint, open_checkpoint
from molink.checkpoint.description import read_declared
from molink.checkpoint.draft_layer import DraftLayer, draft_layer, measured
from molink.checkpoint.held_weights import GGUF_GROUP, HeldWeight, held_weights
from molink.checkpoint.kv_format import KvDtype, kv_bytes
from molink.checkpoint.model_config import KNOWN_CONFIGS, model_shape
from molink.checkpoint.model_shape import (
    ELEMENT_BYTES,
    PLAIN,
    ModelShape,
    PlannedModel,
    WeightBits,
)
from molink.checkpoint.quantized.declared import DeclaredQuantization
from molink.checkpoint.safetensors_header import read_header
from molink.checkpoint.shard_plan import Home, Place, homes_of_tensors
from molink.errors import CheckpointError, UserError
from molink.printable import near_names
from molink_scheduler.model_cost import DraftCost, ModelCost

ROUTED_EXPERTS = re.compile(r"\.experts(?:\.|_)")
"""Tensors of experts of which a row passes some; of a shared expert it passes all."""

PLAIN_BITS_MAX, FOUR_BITS_MAX = 2.0, 6.0
"""Mean bits of codes in layers of plain numbers, and in those of four bits with some of eight."""

NEXTN_MARK = ".eh_proj."
"""Name in a layer behind the model's own that drafts."""

SAME_WORK = 0.01
"""Layers whose work differs by less are alike."""


def planned_model(model: str, kv_dtype: KvDtype = "auto") -> PlannedModel:
    """The costs of a known model's name, a config.json, a directory or a hub id; of a hub id whose
    small files cannot be had, by the catalogue.

    Raises UserError when it is none of these, when its files do not tell the sizes, and for a
    scheme of quantization or an architecture that is not served.
    """
    path = Path(model).expanduser()
    if model.lower() in KNOWN_CONFIGS or path.is_file():
        shape = model_shape(model if model.lower() in KNOWN_CONFIGS else path)
        return PlannedModel.of_shape(replace(shape, kv_dtype=kv_dtype))
    entry = None if path.exists() else catalogue_entry(model)
    if entry is not None and model.lower() == entry.name:
        return entry.planned(entry.formats[0], kv_dtype)
    try:
        checkpoint = open_checkpoint(model)
    except CheckpointError as error:
        if entry is None:
            raise _unknown(model, error) from None
        return entry.planned(entry.formats[0], kv_dtype)
    shape = replace(model_shape(checkpoint.directory), kv_dtype=kv_dtype)
    weights, declared = stored_weights(checkpoint), read_declared(checkpoint)
    if weights is None:
        planned = PlannedModel.of_shape(shape)
        return replace(planned, name=model, declared=declared)
    planned = planned_of_weights(model, shape, weights, declared)
    return with_draft_layer(planned, draft_layer_of(checkpoint))


def _unknown(model: str, error: CheckpointError) -> CheckpointError:
    names = [*KNOWN_CONFIGS, *(one.name for one in catalogue())]
    near = " or ".join(near_names(model.rpartition("/")[2], names))
    also = f", nearest is {near}" if near else ""
    return CheckpointError(f"{str(error).rstrip('.')}; `molink models` lists known names{also}")


def with_draft_layer(planned: PlannedModel, layer: DraftLayer | None) -> PlannedModel:
    """The model with the costs of its measured layer that drafts, or with why it cannot."""
    if layer is None or layer.missing:
        return replace(planned, undrafted="" if layer is None else layer.objection)
    drafts = {size: _draft_cost(layer, planned.shape, size) for size in ELEMENT_BYTES}
    return replace(planned, drafts=drafts)


def draft_layer_of(checkpoint: Checkpoint) -> DraftLayer | None:
    """The layer of a checkpoint that drafts, with its sizes where its files are on this PC; None:
    it has none, or its tensors are not known before they are fetched. Raises CheckpointError and
    UnsupportedModelError for files that are not read."""
    if checkpoint.hub_id is not None and not _is_listed(checkpoint.directory):
        return None
    weight_map = checkpoint.weight_map()
    layer = draft_layer(checkpoint.config(), weight_map)
    files = {weight_map[name] for name in layer.tensors} if layer is not None else set()
    paths = [checkpoint.directory / name for name in sorted(files)]
    if layer is None or not all(path.is_file() for path in paths):
        return layer
    tensors = (tensor for path in paths for tensor in read_header(path).tensors)
    return measured(checkpoint.name, layer, tensors, read_declared(checkpoint))


def _is_listed(directory: Path) -> bool:
    """Whether names of tensors are known here without fetching a weight file."""
    return any((directory / name).is_file() for name in (INDEX, SINGLE))


def _draft_cost(layer: DraftLayer, shape: ModelShape, element_bytes: int) -> DraftCost:
    token_bytes = kv_bytes(shape.kv_dtype, element_bytes, shape.kv_values, shape.kv_vectors)
    return DraftCost(
        layer.held_bytes(element_bytes), layer.file_bytes, token_bytes * layer.keeps_kv
    )


def planned_of_weights(
    model: str, shape: ModelShape, weights: Sequence[HeldWeight], declared: DeclaredQuantization
) -> PlannedModel:
    """The costs of a model whose weights are all known. Raises UserError for weights that are not
    those of the shape."""
    if declared.method == "gguf":
        bits = _block_bits(shape, weights)
        shape = replace(shape, weights=bits, attention_weights=bits)
    try:
        costs = {
            size: _cost_of_weights(model, replace(shape, dtype_bytes=size), weights)
            for size in ELEMENT_BYTES
        }
    except ValueError as error:
        raise UserError(f"the weights of {model} make no plan ({error}): fetch it again.") from None
    return PlannedModel(model, shape, costs, True, declared)


def stored_weights(checkpoint: Checkpoint) -> list[HeldWeight] | None:
    """All weights of a checkpoint; None when not all weight files are on this PC.

    Raises CheckpointError for a file that is no safetensors file, UnsupportedModelError for a
    scheme of quantization that is not read.
    """
    if (checkpoint.directory / INDEX).is_file():
        files = sorted(set(checkpoint.weight_map().values()))
    else:
        files = [SINGLE]
    paths = [checkpoint.directory / name for name in files]
    if not all(path.is_file() for path in paths):
        return None
    tensors = [tensor for path in paths for tensor in read_header(path).tensors]
    return held_weights(checkpoint.name, tensors, read_declared(checkpoint))


def _block_bits(shape: ModelShape, weights: Sequence[HeldWeight]) -> WeightBits:
    """Bits of a weight in the layers of an imported GGUF file: a file mixes types of blocks, and
    products are timed as of the type that its layers are nearest to."""
    codes = _summed({one.name: one.code_bytes for one in weights}, shape.layers).layers.values()
    bits = 8 * sum(codes) / (shape.layers * shape.layer_parameters)
    if bits < PLAIN_BITS_MAX:
        return PLAIN
    return shape.weights if bits < FOUR_BITS_MAX else WeightBits(8, 1 / GGUF_GROUP, "int8_g32")


@dataclass(slots=True)
class _Sums:
    """Bytes of a model's tensors, summed by where they belong."""

    layers: dict[int, int] = field(default_factory=dict)
    experts: dict[int, int] = field(default_factory=dict)
    """Bytes of routed experts in each layer, part of the layer's."""
    head: int = 0
    tail: int = 0
    each: int = 0
    """Bytes of tables with a part for each layer, which every stage fetches whole."""
    has_output: bool = False


def _cost_of_weights(model: str, shape: ModelShape, weights: Sequence[HeldWeight]) -> ModelCost:
    held = {one.name: one.held_bytes(shape.dtype_bytes) for one in weights}
    sums = _summed(held, shape.layers)
    files = _summed({one.name: one.file_bytes for one in weights}, shape.layers)
    if sorted(sums.layers) != list(range(shape.layers)) or min(sums.layers.values()) < 1:
        raise UserError(
            f"the weight files of {model} hold {len(sums.layers)} layers, its config.json names "
            f"{shape.layers}: fetch the model again."
        )
    tied = not sums.has_output
    part = sums.each // shape.layers
    return ModelCost(
        layer_bytes=tuple(sums.layers[n] + part for n in range(shape.layers)),
        kv_bytes=shape.cost.kv_bytes,
        layer_kv_bytes=shape.cost.layer_kv_bytes,
        layer_state_bytes=shape.cost.layer_state_bytes,
        row_bytes=shape.row_bytes,
        head_bytes=sums.head,
        tail_bytes=sums.tail + (sums.head if tied else 0),
        tied=tied,
        layer_work=_works(shape, sums),
        layer_file_bytes=tuple(files.layers[n] for n in range(shape.layers)),
        head_file_bytes=files.head,
        tail_file_bytes=files.tail + (files.head if tied else 0),
        together=shape.together,
        embeds_everywhere=sums.each > 0,
        each_file_bytes=files.each,
    )


def _homes(names: Collection[str], layers: int) -> Mapping[str, Home]:
    """Homes of tensors by the list of layers itself; where one that drafts ends it, by the model's
    `layers`."""
    homes = homes_of_tensors(names, layers_total=None)
    if any(home == layers and NEXTN_MARK in name for name, home in homes.items()):
        return homes_of_tensors(names, layers)
    return homes


def _summed(sizes: Mapping[str, int], layers: int) -> _Sums:
    sums = _Sums()
    for name, home in _homes(sizes, layers).items():
        size = sizes[name]
        if isinstance(home, int):
            sums.layers[home] = sums.layers.get(home, 0) + size
            if ROUTED_EXPERTS.search(name):
                sums.experts[home] = sums.experts.get(home, 0) + size
        elif home in (Place.EMBEDDING, Place.FIRST):
            sums.head += size
        elif home is Place.TOKEN_INPUTS:
            sums.each += size
        elif home not in (Place.BESIDE, Place.DRAFTS):
            sums.tail += size
            sums.has_output |= home is Place.OUTPUT
    return sums


def _works(shape: ModelShape, sums: _Sums) -> tuple[float, ...]:
    """Bytes that a row reads in each layer, relative to the median layer; empty where they are
    alike. It reads everything but the experts that it does not choose.
    """
    skipped = 1 - shape.experts_per_token / shape.experts
    read = [sums.layers[n] - skipped * sums.experts.get(n, 0) for n in range(shape.layers)]
    middle = median(read)
    if all(abs(work - middle) <= SAME_WORK * middle for work in read):
        return ()
    return tuple(work / middle for work in read)
