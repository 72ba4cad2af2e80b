"""Blocks of every GGUF type: rounded where the format's own package rounds, else drawn."""

import gguf
import numpy as np
import torch

KINDS = gguf.GGMLQuantizationType
TYPES = {
    name: KINDS[name.upper()]
    for name in ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4")
}
HALVES = {"q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,)}
"""Where the types that the package does not round have numbers of fp16."""


def blocks_of(plain: torch.Tensor, name: str) -> torch.Tensor:
    """Rows of blocks, uint8 [.., N, bytes of a row], about as large as `plain` [.., N, K]."""
    kind = TYPES[name]
    if name in HALVES:
        return _drawn(plain, name)
    numbers = plain.float().numpy()
    return torch.from_numpy(gguf.quants.quantize(numbers, kind).copy())


def _drawn(plain: torch.Tensor, name: str) -> torch.Tensor:
    """Any bytes are codes; what must be moderate are the scales."""
    values, size = gguf.GGML_QUANT_SIZES[TYPES[name]]
    shape = (*plain.shape[:-1], plain.shape[-1] // values, size)
    random = np.random.default_rng(int(plain.float().abs().sum() * 1000) % 2**31)
    raw = random.integers(0, 256, shape, dtype=np.uint8)
    top = float(plain.float().std()) / (300 if name == "q6_k" else 200)
    for at in HALVES[name]:
        numbers = random.uniform(top / 2, top, shape[:-1]).astype(np.float16)
        if at == 2:
            numbers *= np.float16(15 if name == "q5_k" else 8)
        raw[..., at : at + 2] = numbers[..., None].view(np.uint8)
    return torch.from_numpy(raw).flatten(-2)


def exact(raw: torch.Tensor, name: str) -> torch.Tensor:
    """The numbers that blocks mean, in fp32, by the format's own package."""
    return torch.from_numpy(gguf.quants.dequantize(raw.numpy(), TYPES[name]).copy())
