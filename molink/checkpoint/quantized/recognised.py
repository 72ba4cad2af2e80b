"""Recognition of the tensors of a checkpoint that are parts of quantized weights.

Their names, types and shapes tell. A suffix gives the role of a part and the name of the plain
weight that it belongs to; the shapes of the parts give everything else. What looks like a part of a
scheme that is not read is refused, and so is a weight whose parts do not fit together. No torch:
agents and plans ask too.
"""

from collections.abc import Iterable, Mapping

from molink.checkpoint.quantized.declared import (
    ACT_ORDER,
    WITHOUT_ACT_ORDER,
    DeclaredQuantization,
    refusal,
)
from molink.checkpoint.quantized.shapes import BLOCK_SUFFIXES, FLOATS, Parts, stored_weight
from molink.checkpoint.quantized.stored_weight import StoredWeight
from molink.checkpoint.safetensors_header import StoredTensor

SUFFIXES = {
    ".weight_packed": ".weight",
    ".weight_zero_point": ".weight",
    ".weight_shape": ".weight",
    ".weight_g_idx": ".weight",
    ".weight_scale": ".weight",
    ".qweight": ".weight",
    ".qzeros": ".weight",
    ".scales": ".weight",
    ".g_idx": ".weight",
    "_scale_inv": "",
    "_blocks": "",
    "_scales": "",
    **dict.fromkeys(BLOCK_SUFFIXES, ""),
}
"""Suffix of a part, and what the plain weight has in its place."""

FOREIGN = {
    ".weight_global_scale": "NVFP4 (weight_global_scale)",
    ".weight_scale_2": "NVFP4 (weight_scale_2)",
    ".absmax": "bitsandbytes (absmax)",
    ".SCB": "bitsandbytes (SCB)",
    ".W_q": "HQQ (W_q)",
    ".codebooks": "AQLM (codebooks)",
    ".q_weight": "EXL2 (q_weight)",
    ".trellis": "EXL3 (trellis)",
    ".Qidxs": "QuIP (Qidxs)",
    ".centroids": "VPTQ (centroids)",
}
"""Suffix of a tensor that only a scheme has which is not read."""

CODE_TYPES = ("F8_E4M3", "F8_E5M2", "I8", "U8", "I32")
"""Types of a plain-looking weight that can only be codes."""


def quantized_weights(
    name: str, tensors: Iterable[StoredTensor], declared: DeclaredQuantization
) -> dict[str, StoredWeight]:
    """The quantized weights among the tensors of the checkpoint `name`, by the names of the plain
    weights that they stand for.

    Raises UnsupportedModelError for a scheme that is not read, CheckpointError for parts that do
    not fit together.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    found = _parts(by_name)
    for tensor in by_name.values():
        _refuse_foreign(name, tensor, found)
    return {
        plain: stored_weight(name, plain, parts, declared)
        for plain, parts in found.items()
        if _is_quantized(name, parts)
    }


def part_names(weights: Mapping[str, StoredWeight]) -> frozenset[str]:
    """Names of all tensors that belong to these weights."""
    return frozenset(part.name for weight in weights.values() for part in weight.parts.values())


def _parts(by_name: Mapping[str, StoredTensor]) -> dict[str, Parts]:
    """Plain name to the tensors that may be its parts, each by its suffix."""
    found: dict[str, Parts] = {}
    for tensor in by_name.values():
        for suffix, replacement in SUFFIXES.items():
            if tensor.name.endswith(suffix):
                plain = tensor.name.removesuffix(suffix) + replacement
                found.setdefault(plain, {})[suffix] = tensor
    for plain, parts in found.items():
        if plain in by_name:
            parts[""] = by_name[plain]
    return found


def _is_quantized(name: str, parts: Parts) -> bool:
    """Whether the parts are those of a weight; a name may end like a part by chance."""
    if ".weight_g_idx" in parts:
        raise refusal(name, f"compressed-tensors in {ACT_ORDER}", WITHOUT_ACT_ORDER)
    if ".scales" in parts and ".qweight" not in parts:
        raise refusal(name, f"AWQ that scales activations ({parts['.scales'].name})")
    if ".weight_packed" in parts or ".qweight" in parts or "_blocks" in parts:
        return True
    if any(parts[suffix].dtype == "U8" for suffix in parts.keys() & BLOCK_SUFFIXES.keys()):
        return True
    return "" in parts and parts[""].dtype not in FLOATS


def _refuse_foreign(name: str, tensor: StoredTensor, found: Mapping[str, Parts]) -> None:
    for suffix, scheme in FOREIGN.items():
        if tensor.name.endswith(suffix):
            raise refusal(name, scheme)
    if tensor.dtype in CODE_TYPES and tensor.name.endswith(".weight") and tensor.name not in found:
        raise refusal(name, f"weights of the type {tensor.dtype} without scales ({tensor.name})")
