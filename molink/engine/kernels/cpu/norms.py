"""RMS norms of a CPU stage, in fewer operations than the library's.

A module is replaced only once it is proven to give what the library's does (`engine.proof`).
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from molink.engine.device.fallbacks import first_line
from molink.engine.proof import FP32_UNIT, only_reading, probe_rows, probe_weights, reference_of

MIRROR_ROWS_MAX = 48
"""Most rows for which the doubled input costs less than the operations saved (measured at widths 64
and 768)."""

_rows_alone: ContextVar[bool] = ContextVar("molink_rows_alone", default=False)
"""Whether a row must not depend on how many there are beside it."""

SIMPLE = (bool, int, float, str)

DTYPES = (torch.float32, torch.bfloat16, torch.float16)

MEAN_UNITS = 4.0
"""Units of fp32, of the largest number of a row, that the mean of [x, -x] may be from zero, which
is taken from every channel. 200 seeds at each width from 16 to 4,096: 2.3 at most."""

READINGS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a norm by its weights": lambda weight: weight,
    "a norm by one more than its weights": lambda weight: 1 + weight,
}


class RootMeanSquareNorm(nn.Module):
    """RMS normalisation, x / sqrt(mean(x^2) + epsilon) * weight, in two operations, not eight.

    torch has no fused RMSNorm kernel for the CPU, but it has one for LayerNorm, which also
    subtracts the mean. Beside its own negative a vector has mean zero, and its mean square is
    unchanged: LayerNorm of [x, -x] is RMSNorm of x. For few rows that takes a third of the time;
    for many the doubled work costs more than it saves, and torch's composite `rms_norm` is used. In
    steps whose rows stand alone (`rows_alone`) they are taken by so many as still are few.
    """

    def __init__(
        self, weight: torch.Tensor, epsilon: float, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self.scale = nn.Parameter(weight.clone(), requires_grad=False)
        self.weight = torch.empty(0, dtype=dtype or weight.dtype)
        """Empty: architectures ask the weight of a norm for its format, and round rows to it."""
        self.epsilon = epsilon
        self._shape = (len(weight),)
        self._mirror_shape = (2 * len(weight),)
        self._mirror_weight = torch.cat([weight, weight])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised input, in its own format."""
        size = self._shape[0]
        if x.numel() <= MIRROR_ROWS_MAX * size:
            return self._mirrored(x)
        if _rows_alone.get():
            pieces = torch.split(x.reshape(-1, size), MIRROR_ROWS_MAX)
            return torch.cat(list(map(self._mirrored, pieces))).view(x.shape)
        wide = x.to(self.scale.dtype)
        return torch.rms_norm(wide, self._shape, self.scale, self.epsilon).to(x.dtype)

    def _mirrored(self, x: torch.Tensor) -> torch.Tensor:
        mirrored = torch.cat((x, x.neg()), -1)
        normed = torch.layer_norm(
            mirrored, self._mirror_shape, self._mirror_weight, None, self.epsilon
        )
        return normed[..., : self._shape[0]]


@contextmanager
def rows_alone(are_alone: bool) -> Iterator[None]:
    """Let each row of a norm be what it is alone inside the block, if `are_alone`: the two formulas
    round differently, and a batch with drafts has more rows than one without."""
    token = _rows_alone.set(are_alone)
    try:
        yield
    finally:
        _rows_alone.reset(token)


def replacement_for(
    module: nn.Module,
    make: Callable[[torch.Tensor, float], nn.Module] = RootMeanSquareNorm,
    weight_dtype: torch.dtype | None = None,
) -> nn.Module | None:
    """Return a fast norm that computes what `module` computes, or None for something else; `make`
    takes a weight, in its own format or another one, and epsilon.

    Architectures differ in the weight (gemma adds one) and in roundings, so it is tried on weights
    that tell these apart, which the module's own need not do.
    """
    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    epsilon = _epsilon(module)
    if len(parameters) != 1 or weight is None or weight.dim() != 1 or epsilon is None:
        return None
    if any(True for _ in module.children()) or weight.dtype not in DTYPES:
        return None
    if len(inspect.signature(module.forward).parameters) != 1:
        return None  # A second input, such as a gate, would be lost.
    dtype = weight_dtype or weight.dtype
    simple = ((name, value) for name, value in vars(module).items() if isinstance(value, SIMPLE))
    kind = (type(module), make.__qualname__, weight.shape, weight.dtype, weight.device, *simple)

    def made(weight: torch.Tensor, reading: str) -> nn.Module:
        return make(READINGS[reading](weight.to(dtype)), epsilon)

    if kind not in _readings:
        _readings[kind] = _reading(module, made)
    reading = _readings[kind]
    return None if reading is None else made(weight.detach(), reading)


_readings: dict[tuple[object, ...], str | None] = {}
"""Reading of its weights found for each kind of norm; None: no single one fits."""


def _reading(module: nn.Module, made: Callable[[torch.Tensor, str], nn.Module]) -> str | None:
    probe: Any = copy.deepcopy(module)
    weight = probe_weights(len(probe.weight), probe.weight.dtype).to(probe.weight.device)
    probe.weight.data = weight
    return only_reading(
        {reading: norm_trouble(probe, made(weight, reading)) for reading in READINGS}
    )


def _epsilon(module: nn.Module) -> float | None:
    for name in ("variance_epsilon", "eps", "epsilon"):
        value: Any = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


def norm_trouble(
    module: nn.Module, candidate: nn.Module, rows: torch.Tensor | None = None
) -> str | None:
    """Why a fast norm is not the library's `module` on rows [T, N], or on those of a probe."""
    weight = next(module.parameters())
    if rows is None:
        rows = probe_rows(MIRROR_ROWS_MAX + 1, len(weight), weight.dtype).to(weight.device)
    try:
        reference = reference_of(module, rows)
    except (RuntimeError, TypeError) as error:
        return first_line(error)
    normed = F.normalize(rows.to(reference.truth.dtype), dim=-1) * len(weight) ** 0.5
    scale_N = (reference.truth / normed).nan_to_num(0, 0, 0).abs().amax(0)
    slack = MEAN_UNITS * FP32_UNIT * normed.abs().amax(-1, keepdim=True) * scale_N
    return replace(reference, slack=slack).trouble_of(candidate, rows)
