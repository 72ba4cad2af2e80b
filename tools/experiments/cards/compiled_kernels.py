"""What the attention kernel takes of cards that are not here: shared memory, registers, stack.

    python -m tools.experiments.cards.compiled_kernels --out DIR

Triton compiles for a card without the card and without a driver; its wheel brings the assembler,
which tells what a kernel takes. A program may have 99 KB of shared memory on every RTX card from
sm_86 on, registers that do not suffice spill to the stack, and without `mma` in the code the matrix
units are not used. The kernels are made with softcap, window, sinks and log-sum-exp, all at once.
"""

import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import Any

import torch

from molink.engine.kernels.cuda.attention_kind import AttentionKind, Tiling
from molink.errors import UserError
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = [
    "CARDS",
    "NAMES",
    "SHARED_BYTES_MAX",
    "STACK_BYTES_MAX",
    "Compiled",
    "compiled",
    "kind",
    "made_for",
    "main",
    "table",
]

CARDS = {80: "A100", 86: "RTX 30", 89: "RTX 40", 120: "RTX 50"}
"""Compute capabilities, and who has them."""

SHARED_BYTES_MAX = 99 * 1024
"""Of a program, on all cards but those of data centres."""

STACK_BYTES_MAX = 64
"""A few spilled registers outside of the loop cost nothing."""

HEADS = ((1, 64, 64), (4, 80, 80), (4, 96, 96), (4, 128, 128), (1, 192, 128), (4, 256, 256))
"""Query heads of a kv head, sizes of keys and of values."""

KV_HEADS = 2
"""More of them are more programs of the same code."""

WIDEST_GROUP = (64, 128, 128)
"""The largest group that the kernel takes."""

NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.int8: "i8"}
"""As Triton has them."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a kernel takes of a card."""

    shared_bytes: int
    registers: int
    """Of a thread; 255 at most."""
    stack_bytes: int
    matrix_instructions: int

    @property
    def fits(self) -> bool:
        """Whether it runs on every RTX card as it should."""
        return self.is_small and self.matrix_instructions > 0

    @property
    def is_small(self) -> bool:
        """Whether it takes no more than a program may."""
        return self.shared_bytes <= SHARED_BYTES_MAX and self.stack_bytes <= STACK_BYTES_MAX


@experiment
def main(out: Path) -> None:
    """Print the most that the kernels take of each card; the command fails where one does not
    fit."""
    with TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache
        results = {name: compiled(*of) for name, of in _all_kernels()}
    show(markdown_table(*table(results)))
    write_report(out, "compiled_kernels", {name: asdict(made) for name, made in results.items()})
    for name in (name for name, made in results.items() if not made.fits):
        raise UserError(f"{name} does not fit: {results[name]}")


def kind(
    heads: tuple[int, int, int], dtype: torch.dtype, kv_dtype: torch.dtype | None = None
) -> AttentionKind:
    """A kind of layer that has everything at once."""
    return AttentionKind(dtype, kv_dtype or dtype, KV_HEADS, *heads, True, True, True)


def compiled(of: AttentionKind, few: bool, capability: int) -> Compiled:
    """The tile kernel of a kind of layer, for spans of few or of many rows, on a card."""
    launch = of.launch(Tiling.of(of.dtype), few, log_sums=True)
    return made_for(_source(of, launch.constants), launch.options, capability)


def made_for(source: Any, options: dict[str, Any], capability: int) -> Compiled:
    """A kernel, compiled for a card."""
    import triton
    from triton.backends.compiler import GPUTarget

    made: Any = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    registers, stack_bytes = _usage(made.asm["cubin"])
    matrix = len(re.findall(r"mma\.sync|wgmma", made.asm["ptx"]))
    return Compiled(made.metadata.shared, registers, stack_bytes, matrix)


def _all_kernels() -> Iterator[tuple[str, tuple[AttentionKind, bool, int]]]:
    kv_dtypes = (None, torch.int8)
    for capability, dtype, kv_dtype in product(CARDS, (torch.float16, torch.bfloat16), kv_dtypes):
        for heads, few in product((*HEADS, WIDEST_GROUP), (True, False)):
            name = f"sm_{capability} {NAMES[dtype]} KV {NAMES[kv_dtype or dtype]} {heads}"
            made = kind(heads, dtype, kv_dtype), few, capability
            yield f"{name} {'few' if few else 'many'} rows", made


def _source(of: AttentionKind, constants: dict[str, Any]) -> Any:
    """The kernel with the types of its arguments, as a launch would find them."""
    from triton.compiler import ASTSource

    from molink.engine.kernels.cuda.ragged_kernels import attend_tiles

    types = {name: _argument_type(name, of) for name in attend_tiles.arg_names}
    signature = types | dict.fromkeys(constants, "constexpr")
    place = {name: (index,) for index, name in enumerate(attend_tiles.arg_names)}
    # Tensors and what separates their rows are multiples of 16; pieces of the geometry are not.
    even = [["tt.divisibility", 16]]
    aligned = [n for n, t in types.items() if t.startswith("*") and t != "*i32"]
    aligned += [n for n in types if re.match(r"[qkv]_stride", n)]
    return ASTSource(
        attend_tiles,
        signature,
        {place[name]: value for name, value in constants.items()},
        {place[name]: even for name in aligned},
    )


def _argument_type(name: str, of: AttentionKind) -> str:
    match name:
        case "q" | "out" | "sinks":
            return f"*{NAMES[of.dtype]}"
        case "keys" | "values":
            return f"*{NAMES[of.kv_dtype]}"
        case "key_scales" | "value_scales":
            return "*bf16" if of.kv_dtype is torch.int8 else f"*{NAMES[of.dtype]}"
        case "log_sums" | "part" | "part_peak" | "part_total":
            return "*fp32"
        case "scale" | "softcap":
            return "fp32"
        case "blocks":
            return "*i32"
    return "*i32" if name.startswith(("tile_", "span_")) else "i32"


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "-res-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"(REG|STACK):(\d+)", text))
    return int(found["REG"]), int(found["STACK"])


def table(results: dict[str, Compiled]) -> tuple[list[str], list[list[str]]]:
    """The most that kernels take of each card."""
    head = ["card", "kernels", "shared KB", "registers", "stack B", "fewest `mma`"]
    rows = []
    for capability, card in CARDS.items():
        made = [m for name, m in results.items() if name.startswith(f"sm_{capability} ")]
        most = (
            max(m.shared_bytes for m in made) // 1024,
            max(m.registers for m in made),
            max(m.stack_bytes for m in made),
            min(m.matrix_instructions for m in made),
        )
        rows.append([f"sm_{capability} ({card})", str(len(made)), *map(str, most)])
    return head, rows


if __name__ == "__main__":
    main()
