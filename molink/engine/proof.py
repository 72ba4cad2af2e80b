"""Proof that a faster computation gives what the library's own gives, row by row.

Both are run on the same rows, beside the truth: the library's layer in fp64. A candidate holds if
in each row its error is at most that of the library in the dtype that serves, times `ROUNDINGS`,
plus `UNITS` units in the last place. One tolerance relative to a whole tensor was rejected: real
models have channels a thousand times the others, and beside these a norm that forgets to add one to
its weights looks exact.

So a channel counts by its own size, too: results are divided by the size of their column before
rows are compared, once by their root mean square and once by their largest number. The rows
themselves are such as real models have (`probe_rows`), and the weights that a reading is told by
(`probe_weights`).

Shapes: T rows, N results of a row.
"""

import copy
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from molink.engine.device.fallbacks import printed
from molink.errors import UnsupportedModelError

ROUNDINGS = 1.5
"""Error allowed, in errors of the library's own layer in the same dtype."""

FP32_UNIT = 2.0**-24
"""Largest error of rounding to fp32, relative to the number."""

UNITS = 2
"""Units in the last place, of a row's size, that are allowed beside it."""

COLUMN_MIN = 1 / 8
"""Least size of a column, of the median: few rows may all be near zero there."""

APART = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}
"""Share of a row's size by which two ways differ that both round, in other places, where there is
no truth: a trial of a module whose wide copy would not fit beside it."""

PROBE_ROWS = 13
"""Rows that a product is tried with: one pass of our kernels, and two."""

FEW_ROWS = 5
"""Number of rows that is more than one, and less than a pass of a kernel for many."""

LARGE_CHANNELS, LARGE = 3, 1000.0
"""Channels of some rows that are so many times the others, as real models have them."""

ROW_SIZES = (1.0, 1e-3, 30.0)
"""Sizes of rows: small ones tell epsilons apart."""

WEIGHT_MIN, WEIGHT_MAX = 0.01, 300.0
"""Sizes of a norm's weights, as published models have them."""

SMALL = 1e-3
"""Size of a row that is tried beside those of real tokens, as epsilons show only there."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reference:
    """Right result of a computation for some rows, and how far the library's own is from it."""

    truth: torch.Tensor
    """Right results [..., N], in fp64, or in fp32 on a card."""
    library: torch.Tensor
    """Results of the library in the dtype that serves."""
    allowance: float = 0.0
    """Share of a row's size allowed beside the rest, for a reason that the caller names."""
    slack: torch.Tensor | None = None
    """Error of each result that is allowed beside the rest, as sums in another order have it."""

    @torch.no_grad()
    def trouble(self, got: torch.Tensor, first: int = 0) -> str | None:
        """Why `got`, which begins at row `first`, does not hold; None: it does."""
        got, truth = got.flatten(0, -2), self.truth.flatten(0, -2)
        library = self.library.flatten(0, -2)[first:][: len(got)]
        if got.shape != library.shape or got.dtype != library.dtype:
            return f"gives {tuple(got.shape)} {got.dtype}, not {library.dtype}"
        column_N = _sizes(truth / _sizes(truth, -1), 0)
        column_N = column_N.clamp(min=float(column_N.median()) * COLUMN_MIN)
        truth = truth[first:][: len(got)]
        slack = torch.zeros_like(truth)
        if self.slack is not None:
            slack = self.slack.flatten(0, -2)[first:][: len(got)]
        parts = truth, got.to(truth.dtype) - truth, library.to(truth.dtype) - truth, slack
        unit = torch.finfo(got.dtype).eps / 2
        for norm in (_root_mean_square, _largest):
            size_T, got_T, library_T, slack_T = (norm(part / column_N) for part in parts)
            allowed_T = ROUNDINGS * library_T + (UNITS * unit + self.allowance) * size_T + slack_T
            fails_T = ~(got_T <= allowed_T) & library_T.isfinite()
            if fails_T.any():
                row = int(fails_T.nonzero()[0])
                apart, usual = (float(one[row] / size_T[row]) for one in (got_T, library_T))
                of = f"row {first + row}, the library's by {usual:.1e}"
                return f"is off by {apart:.1e} of {of}"
        return None

    def trouble_of(
        self, candidate: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor
    ) -> str | None:
        """Why a candidate does not hold on rows [T, K]: all at once, one alone, and a few, since
        kernels compute each in a way of its own."""
        with torch.inference_mode():
            for first, count in ((0, len(x)), (len(x) // 2, 1), (0, FEW_ROWS)):
                trouble = self.trouble(candidate(x[first : first + count]), first)
                if trouble is not None:
                    return trouble
        return None


def reference_of(module: Any, x: torch.Tensor) -> Reference:
    """Results of the library's own module for rows, and of the same module in a wider dtype."""
    wide = wide_dtype(x)
    with torch.inference_mode():
        return Reference(copy.deepcopy(module).to(wide)(x.to(wide)).to(wide), module(x))


def wide_dtype(x: torch.Tensor) -> torch.dtype:
    """Dtype for the true result where `x` is: cards are slow in fp64."""
    return torch.float64 if x.device.type == "cpu" else torch.float32


def alike(
    got: torch.Tensor, wanted: torch.Tensor, times: float = 1.0, more: float = 0.0
) -> str | None:
    """Why rows do not agree with those of another way to compute them; None: they do, but for so
    many `times` what roundings make, and `more` of a row's size for a reason of the caller's."""
    return Reference(wanted.double(), wanted, times * APART[wanted.dtype] + more).trouble(got)


def _sizes(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Root mean squares along a dimension, one where all is zero."""
    size = x.square().mean(dim, keepdim=True).sqrt()
    return torch.where(size > 0, size, torch.ones_like(size))


def _root_mean_square(x: torch.Tensor) -> torch.Tensor:
    return x.square().mean(-1).sqrt()


def _largest(x: torch.Tensor) -> torch.Tensor:
    return x.abs().amax(-1)


def summed(terms: int) -> float:
    """Error, of the size of one of so many terms times their root, of adding them up in fp32."""
    return float(terms**0.5 * FP32_UNIT)


def only_reading(troubles: Mapping[str, str | None]) -> str | None:
    """The one reading that holds; None where none does. Raises UnsupportedModelError where several
    do: the inputs could not tell them apart, and any of them may be wrong with others."""
    held = [name for name, trouble in troubles.items() if trouble is None]
    if len(held) > 1:
        raise UnsupportedModelError(
            f"the proof of a faster module tells no difference between {' and '.join(held)}: "
            "please report this model"
        )
    return held[0] if held else None


# -- inputs as real models have them ---------------------------------------------------------------


def probe_rows(count: int, width: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Rows [count, width]: plain, with heavy tails, with a few large channels, small ones and large
    ones, and one of zeros."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, width, generator=generator)
    large = torch.randint(width, (LARGE_CHANNELS,), generator=generator)
    for row in range(count):
        if row % 4 == 1:
            x[row] *= torch.randn(width, generator=generator).exp()
        elif row % 4 == 2:
            x[row, large] *= LARGE
        x[row] *= ROW_SIZES[row % len(ROW_SIZES)]
    if count > 1:
        x[-1] = 0
    return x.clamp(-FP16_SAFE, FP16_SAFE).to(dtype)


FP16_SAFE = 30_000.0
"""Largest number of a row: below the end of fp16."""


def probe_weights(width: int, dtype: torch.dtype) -> torch.Tensor:
    """Weights of a norm from 0.01 to 300, some of them negative and one zero."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.rand(width, generator=generator) * 2 - 1
    weights = spread.sign() * WEIGHT_MIN * (WEIGHT_MAX / WEIGHT_MIN) ** spread.abs()
    weights[width // 2] = 0
    return weights.to(dtype)


# -- once more at load -----------------------------------------------------------------------------


@dataclass(slots=True)
class Swaps:
    """Modules that a stage swaps for faster ones: the rows that its own weights are tried with, and
    what did not hold."""

    inputs: dict[str, torch.Tensor] = field(default_factory=dict)
    """Rows [T, K] that modules by these names are given; others are not tried."""
    layers: frozenset[str | None] = frozenset()
    """Names of the layers whose modules are tried; None: those of no layer."""
    troubles: list[str] = field(default_factory=list)

    @classmethod
    def seen(cls, model: Any, run: Callable[[], object]) -> "Swaps":
        """The rows that modules of the first, the middle and the last layer, and of none, are given
        by `run`: what the library's own layers make of tokens."""
        with recorded_inputs(model, [name for name, _ in model.named_modules()]) as seen:
            run()
        within = (name for name in seen if _layer_of(name) != name)
        layers = list(dict.fromkeys(filter(None, map(_layer_of, within))))
        tried = frozenset({None, *(layers[at] for at in (0, len(layers) // 2, -1) if layers)})
        rows = {name: _rows(given[0]) for name, given in seen.items() if _layer_of(name) in tried}
        return cls({name: one for name, one in rows.items() if one is not None}, tried)

    def tries(self, name: str) -> bool:
        """Whether modules like the one by this name are tried."""
        return _layer_of(name) in self.layers

    def tried_first(self, names: Iterable[str]) -> list[str]:
        """The names, first those that are tried: what is off there is not taken for the others."""
        return sorted(names, key=lambda name: name not in self.inputs)

    def holds(self, what: str, name: str, trouble_of: Callable[[torch.Tensor], str | None]) -> bool:
        """Whether a swap holds on the rows that the module by this name is given."""
        rows = self.inputs.get(name)
        return self.note(what, name, None if rows is None else trouble_of(rows))

    def note(self, what: str, name: str, trouble: str | None) -> bool:
        """Whether there is no trouble with what was swapped in a module; if so, it is told."""
        if trouble is not None:
            self.troubles.append(f"{what} of {name} is computed the library's way: {trouble}")
            log.warning("%s", self.troubles[-1])
        return trouble is None

    @property
    def fallback(self) -> str | None:
        """Reason that `/cluster` tells; None: everything holds."""
        return printed("; ".join(self.troubles))


def _rows(given: Any) -> torch.Tensor | None:
    """Rows [T, K] that a module was given, and a small one; None where it was given others."""
    if not isinstance(given, torch.Tensor) or not given.is_floating_point() or given.dim() < 2:
        return None
    rows = given.detach().flatten(0, -2)
    small = rows[:1].float() / _sizes(rows[:1].float(), -1) * SMALL
    return torch.cat([rows, small.to(rows.dtype)])


@contextmanager
def hooks(handles: Iterable[Any]) -> Iterator[None]:
    """Hooks of modules, for as long as the block lasts."""
    handles = list(handles)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def recorded_inputs(model: nn.Module, names: Iterable[str]) -> Iterator[dict[str, list[Any]]]:
    """Inputs of the named modules in each call inside the block, the first argument of each, kept
    alive so that ids stay unique."""
    inputs: dict[str, list[Any]] = {}

    def note(name: str, _: nn.Module, args: tuple[Any, ...]) -> None:
        inputs.setdefault(name, []).append(args[0] if args else None)

    modules = ((name, model.get_submodule(name)) for name in names)
    with hooks(one.register_forward_pre_hook(partial(note, name)) for name, one in modules):
        yield inputs


def rounded_again(
    modules: Iterable[nn.Module], run: Callable[[], torch.Tensor], generator: torch.Generator
) -> torch.Tensor:
    """Result of `run` where what these modules give is rounded once more, at random."""

    def rounded(_: nn.Module, args: Any, y: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(y.shape, generator=generator) * torch.finfo(y.dtype).eps / 4
        return (y.float() * (1 + noise)).to(y.dtype)

    with hooks(one.register_forward_hook(rounded) for one in modules):
        return run()


def with_random_rows(value: Any) -> Any:
    """`value` with random numbers in its [1, T, D] tensors: a trial's rows may be zeros."""
    if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dim() > 2:
        generator = torch.Generator().manual_seed(0)
        return torch.randn(value.shape, generator=generator).to(value.device, value.dtype)
    if isinstance(value, dict):
        return {key: with_random_rows(one) for key, one in value.items()}
    return tuple(map(with_random_rows, value)) if isinstance(value, tuple) else value


def _layer_of(name: str) -> str | None:
    """The name of the layer that a module belongs to; None: to none."""
    found = re.match(r".*?\.\d+(?=\.|$)", name)
    return found and found[0]
