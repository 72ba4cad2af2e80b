"""A weight matrix of few bits, as a stage holds it in memory.

Checkpoints store quantized weights in a dozen formats; readers turn each into one of four values,
and every kernel knows these four only. Codes lie row by row, an output after the other, and each
row is cut into groups of inputs that share a scale. A group always divides the row: where a format
has a short last group, or one scale for many inputs, its scales are repeated at a smaller group,
which costs a few bytes and saves every kernel a special case.

Tensors of torch's own quantized types were rejected: their packed order belongs to one instruction
set, and they cannot be cut by rows.

Shapes: N rows (outputs), K columns (inputs), g inputs of a group, G = K / g groups of a row.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the sixteen codes of MXFP4: a sign, two bits of exponent and one of mantissa."""

MXFP4_GROUP = 32
"""Inputs that share an exponent, by the format's definition."""

EXPONENT_BIAS = 127
"""An exponent e of MXFP4 stands for 2^(e - 127), as in a number of fp32."""

BLOCK_ROWS = 256
"""Rows that are unpacked at a time: for a row of 28,672 inputs 29 MB of fp32, not a gigabyte."""


@dataclass(frozen=True, slots=True, eq=False)
class QuantizedWeight(ABC):
    """Matrix [N, K] of few bits; its subclasses say how the bits become numbers."""

    codes: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs (N, K)."""
        return len(self.codes), self.codes.shape[1]

    @property
    def group(self) -> int:
        """Inputs that share a scale; it divides K."""
        return self.shape[1] // self._group_count()

    @property
    def form(self) -> Hashable:
        """Equal for matrices that can stand one above the other: kind, group and types."""
        tensors = self.tensors()
        types = tuple((name, part.dtype, part.shape[1]) for name, part in tensors.items())
        return type(self), types

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales together."""
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that it is made of, by the names of its fields; the first dimension of each is N."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: tensor for name, tensor in values.items() if tensor is not None}

    def rows(self, start: int, stop: int) -> Self:
        """The matrix of some of the rows, without a copy."""
        return type(self)(**{name: part[start:stop] for name, part in self.tensors().items()})

    def picked(self, outputs: torch.Tensor) -> Self:
        """The matrix of rows by their numbers."""
        return type(self)(**{name: part[outputs] for name, part in self.tensors().items()})

    def to(self, device: torch.device) -> Self:
        """Copy of the matrix on another device."""
        return type(self)(**{name: part.to(device) for name, part in self.tensors().items()})

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The matrix [N, K] itself: computed in fp32, exact for every format, and rounded once."""
        outputs, inputs = self.shape
        whole = torch.empty(outputs, inputs, dtype=dtype, device=self.codes.device)
        for start in range(0, outputs, BLOCK_ROWS):
            block = self.rows(start, min(outputs, start + BLOCK_ROWS))
            whole[start : start + BLOCK_ROWS] = block._unpacked()
        return whole

    @abstractmethod
    def _group_count(self) -> int:
        """Groups of a row."""

    @abstractmethod
    def _unpacked(self) -> torch.Tensor:
        """The matrix in fp32."""

    def _check(self, groups: torch.Tensor, codes_type: torch.dtype) -> None:
        outputs, inputs = self.shape
        fits = self.codes.dim() == groups.dim() == 2 and len(groups) == outputs
        if not fits or not groups.shape[1] or inputs % groups.shape[1]:
            raise ValueError(f"scales {tuple(groups.shape)} do not fit a matrix {self.shape}")
        if self.codes.dtype != codes_type:
            raise ValueError(f"codes are {codes_type}, not {self.codes.dtype}")


@dataclass(frozen=True, slots=True, eq=False)
class Int4Weight(QuantizedWeight):
    """Matrix of four-bit integers: w = scale * (q - 8) + zero.

    `codes` is uint8 [N, K/2]; byte j of a row holds input 2j in its low nibble and 2j + 1 in the
    high one. `scale` and `zero` [N, K/g] are of one floating type. `zero` is an offset and not a
    code: formats with a zero point z have zero = scale * (8 - z), symmetric ones zeros.
    """

    scale: torch.Tensor
    zero: torch.Tensor

    def __post_init__(self) -> None:
        self._check(self.scale, torch.uint8)
        if self.zero.shape != self.scale.shape or self.zero.dtype != self.scale.dtype:
            raise ValueError("every group has a scale and a zero of one type")

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs (N, K)."""
        return len(self.codes), 2 * self.codes.shape[1]

    def _group_count(self) -> int:
        return self.scale.shape[1]

    def _unpacked(self) -> torch.Tensor:
        return _affine(_nibbles(self.codes).float() - 8, self.scale, self.zero)


@dataclass(frozen=True, slots=True, eq=False)
class Mxfp4Weight(QuantizedWeight):
    """Matrix of four-bit floating point numbers: w = E2M1[q] * 2^(exponent - 127).

    `codes` is uint8 [N, K/2] in the order of Int4Weight; `exponents` is uint8 [N, K/32].
    """

    exponents: torch.Tensor

    def __post_init__(self) -> None:
        self._check(self.exponents, torch.uint8)
        if self.exponents.dtype != torch.uint8 or self.group != MXFP4_GROUP:
            raise ValueError("MXFP4 has an exponent of eight bits for each 32 inputs")

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs (N, K)."""
        return len(self.codes), 2 * self.codes.shape[1]

    def _group_count(self) -> int:
        return self.exponents.shape[1]

    def _unpacked(self) -> torch.Tensor:
        table = torch.tensor(E2M1, device=self.codes.device)
        values = table[_nibbles(self.codes).int()]
        scale = torch.exp2(self.exponents.float() - EXPONENT_BIAS)
        return _affine(values, scale, None)


@dataclass(frozen=True, slots=True, eq=False)
class Int8Weight(QuantizedWeight):
    """Matrix of signed bytes: w = scale * q, or scale * q + zero where there is a `zero`.

    `codes` is int8 [N, K]; `scale` is [N, K/g] of a floating type, with g = K one for each row;
    `zero`, where formats of five and eight bits need it, is like `scale`.
    """

    scale: torch.Tensor
    zero: torch.Tensor | None = None

    def __post_init__(self) -> None:
        self._check(self.scale, torch.int8)
        if self.zero is not None and self.zero.shape != self.scale.shape:
            raise ValueError("every group has a scale and a zero, or none has a zero")

    def _group_count(self) -> int:
        return self.scale.shape[1]

    def _unpacked(self) -> torch.Tensor:
        return _affine(self.codes.float(), self.scale, self.zero)


@dataclass(frozen=True, slots=True, eq=False)
class Fp8Weight(QuantizedWeight):
    """Matrix of eight-bit floating point numbers: w = scale * q.

    `codes` is float8_e4m3fn [N, K]; `scale` is fp32 [N, K/g]. A scale for a tensor, a channel or a
    block of rows is repeated row by row: at blocks of 128 inputs that is a quarter of a bit more.
    """

    scale: torch.Tensor

    def __post_init__(self) -> None:
        self._check(self.scale, torch.float8_e4m3fn)

    def _group_count(self) -> int:
        return self.scale.shape[1]

    def _unpacked(self) -> torch.Tensor:
        return _affine(self.codes.float(), self.scale, None)


def joined(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Matrix of several ones of one form that read the same inputs, one above the other."""
    first = weights[0]
    if len(weights) == 1:
        return first
    if any(weight.form != first.form for weight in weights):
        raise ValueError("only matrices of one form are joined")
    parts = [weight.tensors() for weight in weights]
    return type(first)(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def _nibbles(codes: torch.Tensor) -> torch.Tensor:
    """The two codes of each byte, the low one first: [N, B] to [N, 2B]."""
    return torch.stack([codes & 15, codes >> 4], -1).flatten(-2)


def _affine(values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor | None) -> torch.Tensor:
    """values [N, K] times the scale of their group, plus its zero, in fp32."""
    outputs, groups = scale.shape
    grouped = values.view(outputs, groups, -1) * scale.float()[..., None]
    if zero is not None:
        grouped = grouped + zero.float()[..., None]
    return grouped.view(outputs, -1)
