"""What the fused kernels take of cards that are not here: shared memory, registers, stack.

    python -m tools.experiments.cards.compiled_fused --out DIR

As `compiled_kernels` does it for attention, and under the same limits. Only the product with
experts multiplies matrices; the others move and combine numbers, so none of them has `mma`.
"""

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from molink.engine.kernels.cuda.attention_kind import FUSED, padded
from molink.errors import UserError
from tools.experiments.cards.compiled_kernels import CARDS, NAMES, Compiled, made_for, table
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["Case", "cases", "compiled_case", "main"]

SIXTEEN_BITS = (torch.float16, torch.bfloat16)
WIDTHS = (2880, 4096, 16384)
HEADS = ((64, 64), (80, 80), (128, 128), (192, 128), (256, 256))
"""Sizes of keys and of values."""


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel and what it is compiled with."""

    kernel: str
    dtype: torch.dtype
    constants: dict[str, Any]
    options: dict[str, Any]

    @property
    def fits_with(self) -> str:
        """What is told of it."""
        shown = (f"{name} {value}" for name, value in self.constants.items() if value)
        return f"{self.kernel} {NAMES[self.dtype]} {' '.join(shown)}"


@experiment
def main(out: Path) -> None:
    """Print the most that the kernels take of each card; the command fails where one does not
    fit."""
    results: dict[str, Compiled] = {}
    with TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        for capability, case in product(CARDS, cases()):
            made = results[f"sm_{capability} {case.fits_with}"] = compiled_case(case, capability)
            if not made.is_small or _multiplies(case) != (made.matrix_instructions > 0):
                raise UserError(f"{case.fits_with} does not fit sm_{capability}: {made}")
    show(markdown_table(*table(results)))
    write_report(out, "compiled_fused", {name: asdict(made) for name, made in results.items()})


def cases() -> Iterator[Case]:
    """Every kernel with what it is used for: formats, widths, heads, int8 KV, gates."""
    from molink.engine.kernels.cuda.fused import GATE_COLUMNS, expert_tiles, head_warps, norm_tiles

    for dtype in SIXTEEN_BITS:
        for width in WIDTHS:
            yield _case("norm_rows", dtype, norm_tiles(width), HAS_WEIGHT=True)
        for activation, alternating in (("silu", True), ("gelu_tanh", False)):
            how = dict(ACTIVATION=activation, ALTERNATING=alternating, HAS_LIMIT=alternating)
            yield _case("gate_rows", dtype, dict(COLUMNS=GATE_COLUMNS), **how)
        for (key, value), in_int8, neighbours in product(HEADS, (False, True), (False, True)):
            sizes = dict(A=key, V=value, A_PAD=padded(key), V_PAD=padded(value))
            turned = dict(TURNED=key, NEIGHBOURS=neighbours, STEP=1)
            tiles = dict(HEADS=32, KV_HEADS=8, num_warps=head_warps(max(key, value)))
            how = dict(HAS_SLOTS=True, HAS_SCALES=in_int8)
            yield _case("turn_and_store", dtype, tiles, **sizes, **turned, **how)
        both = dict(HAS_BIAS=True, HAS_SHARE=True, WIDEN=False)
        for inner in ("w_stride_i", "w_stride_o"):  # Triton makes a stride of one a constant.
            yield _case("multiply_experts", dtype, expert_tiles(dtype), **both, **{inner: 1})


def compiled_case(case: Case, capability: int) -> Compiled:
    """A kernel of ours, compiled for a card."""
    from triton.compiler import ASTSource

    from molink.engine.kernels.cuda import fused_kernels

    kernel = getattr(fused_kernels, case.kernel)
    types = {name: _argument_type(name, case) for name in kernel.arg_names}
    place = {name: (index,) for index, name in enumerate(kernel.arg_names)}
    unaligned = {*kernel.do_not_specialize, *kernel.do_not_specialize_on_alignment}
    even = [n for n, type in types.items() if n not in unaligned and n not in case.constants]
    source = ASTSource(
        kernel,
        types | dict.fromkeys(case.constants, "constexpr"),
        {place[name]: value for name, value in case.constants.items()},
        {place[name]: [["tt.divisibility", 16]] for name in even if types[name] != "fp32"},
    )
    return made_for(source, case.options, capability)


def _case(kernel: str, dtype: torch.dtype, tiles: dict[str, int], **constants: Any) -> Case:
    names = {"num_warps", "num_stages"}
    options = {name: tiles[name] for name in names & tiles.keys()}
    rest = {name: value for name, value in tiles.items() if name not in names}
    return Case(kernel, dtype, rest | constants, options | FUSED)


def _multiplies(case: Case) -> bool:
    return case.kernel == "multiply_experts"


def _argument_type(name: str, case: Case) -> str:
    number = f"*{NAMES[case.dtype]}"
    match name:
        case "slots" | "expert_of_pair":
            return "*i64"
        case "keys" | "values":
            return "*i8" if case.constants["HAS_SCALES"] else number
        case "key_scales" | "value_scales":
            return "*bf16"
        case "slope" | "limit" | "epsilon":
            return "fp32"
    if name == "weight" and case.kernel == "norm_rows":
        return "*fp32"
    is_tensor = name in (
        "x",
        "out",
        "q",
        "k",
        "v",
        "cos",
        "sin",
        "q_out",
        "weight",
        "bias",
        "share",
    )
    return number if is_tensor else "i32"


if __name__ == "__main__":
    main()
