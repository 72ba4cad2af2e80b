"""Quantized formats written, as their own tools write them: the readers' expressions backwards.

Each writer rounds a plain matrix [N, K] and returns the tensors that a checkpoint stores for it, by
the suffix that stands in place of `.weight`, and the exact fp32 matrix that they mean.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

GROUP = 32
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Column of a word's eight that stands in nibble 0, 1, ...: AutoAWQ's order."""

GRID = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
Written = tuple[dict[str, torch.Tensor], torch.Tensor]


def words(codes: torch.Tensor, dim: int, bits: int = 4) -> torch.Tensor:
    """Codes along `dim` to int32 words, the first code lowest; short rests are filled with zero."""
    count = 32 // bits
    codes = codes.movedim(dim, -1).long()
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[-1] % count))
    whole = (codes.unflatten(-1, (-1, count)) << torch.arange(0, 32, bits)).sum(-1)
    whole = torch.where(whole >= 2**31, whole - 2**32, whole)
    return whole.to(torch.int32).movedim(-1, dim).contiguous()


@dataclass(frozen=True)
class Rounded:
    """Codes [N, K], and scale and zero point [N, G] of each group."""

    codes: torch.Tensor
    scale: torch.Tensor
    zero: torch.Tensor
    group: int

    def exact(self) -> torch.Tensor:
        columns = torch.arange(self.codes.shape[1]) // self.group
        return self.scale.float()[:, columns] * (self.codes.float() - self.zero[:, columns])


def rounded(
    plain: torch.Tensor,
    group: int = GROUP,
    bits: int = 4,
    scales: torch.dtype = torch.float16,
    *,
    symmetric: bool = False,
) -> Rounded:
    """The nearest codes; the last group of a row may be short."""
    top = 2**bits - 1
    parts = plain.float().split(group, 1)
    low = torch.stack([part.amin(1).clamp(max=0) for part in parts], 1)
    high = torch.stack([part.amax(1).clamp(min=0) for part in parts], 1)
    if symmetric:
        scale = (torch.maximum(high, -low) * 2 / top).to(scales)
        zero = torch.full_like(low, 2 ** (bits - 1))
    else:
        scale = ((high - low) / top).clamp(min=1e-4).to(scales)
        zero = (-low / scale.float()).round().clamp(1, top)
    columns = torch.arange(plain.shape[1]) // group
    codes = (plain.float() / scale.float()[:, columns] + zero[:, columns]).round().clamp(0, top)
    return Rounded(codes.to(torch.uint8), scale, zero, group)


def pack_quantized(
    plain: torch.Tensor, *, symmetric: bool = True, bits: int = 4, group: int = GROUP
) -> Written:
    one = rounded(plain, group, bits, torch.bfloat16, symmetric=symmetric)
    tensors = {
        ".weight_packed": words(one.codes, 1, bits),
        ".weight_scale": one.scale,
        ".weight_shape": torch.tensor(plain.shape),
    }
    if not symmetric:
        tensors[".weight_zero_point"] = words(one.zero, 0, bits)
    return tensors, one.exact()


def awq(plain: torch.Tensor, group: int = GROUP) -> Written:
    one = rounded(plain, group)

    def in_order(codes: torch.Tensor) -> torch.Tensor:
        return words(codes.T.unflatten(1, (-1, 8))[..., AWQ_ORDER].flatten(1), 1)

    tensors = {
        ".qweight": in_order(one.codes),
        ".qzeros": in_order(one.zero),
        ".scales": one.scale.T,
    }
    return tensors, one.exact()


def gptq(plain: torch.Tensor, *, group: int = GROUP, version: int = 1, bits: int = 4) -> Written:
    one = rounded(plain, plain.shape[1] if group == -1 else group, bits)
    stored_zero = one.zero - 1 if version == 1 else one.zero
    tensors = {
        ".qweight": words(one.codes.T, 0, bits),
        ".qzeros": words(stored_zero.T, 1, bits),
        ".scales": one.scale.T,
        ".g_idx": (torch.arange(plain.shape[1]) // one.group).int(),
    }
    return tensors, one.exact()


def fp8(
    plain: torch.Tensor, rows: int, inputs: int, scale_type: torch.dtype, suffix: str
) -> Written:
    """FP8 with a scale for each block of so many rows and inputs."""
    outputs, width = plain.shape
    row, column = torch.arange(outputs) // rows, torch.arange(width) // inputs
    largest = torch.zeros(-(-outputs // rows), -(-width // inputs))
    for block_row in range(len(largest)):
        for block in range(largest.shape[1]):
            part = plain[row == block_row][:, column == block]
            largest[block_row, block] = part.float().abs().amax()
    scale = (largest / 448).to(scale_type)
    full = scale.float()[row][:, column]
    codes = (plain.float() / full).clamp(-448, 448).to(torch.float8_e4m3fn)
    return {".weight": codes, suffix: scale}, codes.float() * full


def fp8_block(plain: torch.Tensor) -> Written:
    return fp8(plain, 128, 128, torch.float32, ".weight_scale_inv")


def fp8_channel(plain: torch.Tensor) -> Written:
    return fp8(plain, 1, plain.shape[1], torch.bfloat16, ".weight_scale")


def fp8_tensor(plain: torch.Tensor) -> Written:
    tensors, exact = fp8(plain, len(plain), plain.shape[1], torch.float32, ".weight_scale")
    return {**tensors, ".weight_scale": tensors[".weight_scale"].view(1)}, exact


def int8_channel(plain: torch.Tensor) -> Written:
    scale = (plain.float().abs().amax(1, keepdim=True) / 127).to(torch.bfloat16)
    codes = (plain.float() / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {".weight": codes, ".weight_scale": scale}, codes.float() * scale.float()


def mxfp4(plain: torch.Tensor) -> Written:
    """A stack [E, N, K] of experts."""
    groups = plain.float().unflatten(-1, (-1, 32))
    exponent = (groups.abs().amax(-1, keepdim=True).log2().floor() - 2).clamp(-127, 127)
    scaled = groups / 2**exponent
    codes = ((scaled.abs()[..., None] - GRID).abs().argmin(-1) + 8 * (scaled < 0)).to(torch.uint8)
    tensors = {
        "_blocks": codes[..., 0::2] | codes[..., 1::2] << 4,
        "_scales": (exponent[..., 0] + 127).to(torch.uint8),
    }
    exact = GRID[(codes & 7).long()] * torch.where(codes > 7, -1.0, 1.0) * 2**exponent
    return tensors, exact.flatten(-2)


# -- what their configs say -----------------------------------------------------------------------


def _compressed(form: str, **weights: Any) -> dict[str, Any]:
    scheme = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group"} | weights
    group = {"targets": ["Linear"], "weights": scheme, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }


AWQ_SCHEME = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm"}
GPTQ_SCHEME = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}


@dataclass(frozen=True)
class Format:
    """Way to write the linears of a model, and the config that says so."""

    scheme: dict[str, Any]
    write: Callable[[torch.Tensor], Written]


SOME_FORMATS = (
    *("pack-quantized asymmetric", "awq", "gptq", "gptq 8 bits"),
    *("fp8 block", "fp8 tensor", "int8 channel"),
)
"""One of each packing and of each kind of scales."""

FORMATS = {
    "pack-quantized": Format(_compressed("pack-quantized", group_size=GROUP), pack_quantized),
    "pack-quantized asymmetric": Format(
        _compressed("pack-quantized", group_size=GROUP, symmetric=False),
        lambda plain: pack_quantized(plain, symmetric=False),
    ),
    "pack-quantized 8 bits": Format(
        _compressed("pack-quantized", num_bits=8, group_size=GROUP, symmetric=False),
        lambda plain: pack_quantized(plain, symmetric=False, bits=8),
    ),
    "awq": Format(AWQ_SCHEME, awq),
    "gptq": Format(GPTQ_SCHEME, gptq),
    "gptq whole rows": Format(
        GPTQ_SCHEME | {"group_size": -1}, lambda plain: gptq(plain, group=-1)
    ),
    "gptq v2": Format(
        GPTQ_SCHEME | {"checkpoint_format": "gptq_v2"}, lambda plain: gptq(plain, version=2)
    ),
    "gptq 8 bits": Format(GPTQ_SCHEME | {"bits": 8}, lambda plain: gptq(plain, bits=8)),
    "gptq short groups": Format(
        GPTQ_SCHEME | {"group_size": 48}, lambda plain: gptq(plain, group=48)
    ),
    "fp8 block": Format({"quant_method": "fp8", "weight_block_size": [128, 128]}, fp8_block),
    "fp8 channel": Format(_compressed("float-quantized", num_bits=8), fp8_channel),
    "fp8 tensor": Format({"quant_method": "fp8"}, fp8_tensor),
    "int8 channel": Format(_compressed("int-quantized", num_bits=8), int8_channel),
}
