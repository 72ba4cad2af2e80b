"""Rounds a matrix to few bits: four with a scale and a zero point for each group, or eight by rows.

In four bits the range of a group matters more than anything else: values at its ends are few, and a
somewhat narrower range is nearer to all others. So some narrower ranges are tried for each group,
and that with the smallest squared error stays. Methods that look at activations or move the zero by
iterations were tried and were no better than this for their time.

Shapes: N outputs, K inputs, G groups of a row, g inputs of a group.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import pad

TOP = 15
"""The largest code of four bits."""

RANGES = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.76, 0.72)
"""Parts of a group's range that are tried."""

SMALLEST = 1e-9
"""Least scale: a group of zeros has none."""

WORD_CODES = 8
"""Codes of four bits in a word of 32."""


@dataclass(frozen=True, slots=True)
class Rounded4:
    """Matrix of four-bit codes: w = scale * (code - zero)."""

    codes: torch.Tensor
    """uint8 [N, K], 0 to 15."""
    scale: torch.Tensor
    """bf16 [N, G]."""
    zero: torch.Tensor
    """uint8 [N, G], 0 to 15."""


@dataclass(frozen=True, slots=True)
class Rounded8:
    """Matrix of signed bytes: w = scale * code."""

    codes: torch.Tensor
    """int8 [N, K]."""
    scale: torch.Tensor
    """bf16 [N, 1]."""


def round_to_4_bits(plain: torch.Tensor, group: int) -> Rounded4:
    """The codes of a matrix [N, K]; where groups do not divide K the last one is shorter."""
    inputs = plain.shape[1]
    missing = -inputs % group
    # A short group is filled with its last number, which widens no range.
    plain = pad(plain.float()[None], (0, missing), mode="replicate")[0]
    groups = plain.unflatten(1, (-1, group))  # type: ignore[no-untyped-call]
    low = groups.amin(-1, keepdim=True).clamp(max=0)
    high = groups.amax(-1, keepdim=True).clamp(min=0)
    best: tuple[torch.Tensor, ...] | None = None
    for part in RANGES:
        tried = _rounded_in_range(groups, low * part, high * part)
        best = tried if best is None else _better(best, tried)
    assert best is not None
    _, codes, scale, zero = best
    return Rounded4(
        codes.flatten(1)[:, :inputs].to(torch.uint8),
        scale[..., 0].to(torch.bfloat16),
        zero[..., 0].to(torch.uint8),
    )


def _rounded_in_range(
    groups: torch.Tensor, low: torch.Tensor, high: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Squared errors, codes, scales and zero points where codes cover a range."""
    scale = ((high - low) / TOP).clamp(min=SMALLEST).to(torch.bfloat16).float()
    zero = (-low / scale).round().clamp(0, TOP)
    codes = (groups / scale + zero).round().clamp(0, TOP)
    error = ((codes - zero) * scale - groups).square().sum(-1, keepdim=True)
    return error, codes, scale, zero


def _better(
    best: tuple[torch.Tensor, ...], tried: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    """The result with the smaller error, for each group."""
    better = tried[0] < best[0]
    return tuple(torch.where(better, new, old) for new, old in zip(tried, best, strict=True))


def round_to_8_bits(plain: torch.Tensor) -> Rounded8:
    """The codes of a matrix [N, K], with a scale for each row."""
    plain = plain.float()
    largest = plain.abs().amax(1, keepdim=True)
    scale = (largest / 127).clamp(min=SMALLEST).to(torch.bfloat16)
    codes = (plain / scale.float()).round().clamp(-127, 127).to(torch.int8)
    return Rounded8(codes, scale)


def packed_words(codes: torch.Tensor) -> torch.Tensor:
    """Rows of four-bit codes as rows of int32 words, the first code lowest; a short rest is filled
    with zeros."""
    codes = pad(codes, (0, -codes.shape[1] % WORD_CODES))
    pairs = (codes[:, 0::2] | codes[:, 1::2] << 4).flatten()
    return pairs.view(torch.int32).view(len(codes), -1)
