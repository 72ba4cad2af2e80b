"""Are the fused kernels right: norms, gates, rotations, stored keys and values, experts?

    python -m tools.experiments.cards.fused_check --out DIR

Each is computed over random rows in fp32, fp16 and bf16 and compared with the same written out in
torch, which the interpreter's tests hold to be what the library computes. On a CPU the kernels run
in Triton's interpreter, at small sizes; on a card sizes are a model's. `--format` takes one of the
formats, so that several processes compile side by side.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import torch

from molink.checkpoint.kv_format import KvDtype
from molink.engine.kernels.cuda.fused_math import (
    ExpertCall,
    FusedOperators,
    Gate,
    PlainFused,
    Rotation,
    Turn,
)
from molink.engine.memory.kv_pool import KvPool
from molink.errors import UserError
from molink_scheduler.kv.blocks import BLOCK_TOKENS
from tools.experiments.cards.figures import Figure, card_options, keep
from tools.experiments.harness.experiment import experiment

__all__ = ["CHECKS", "LIMITS", "SMALL", "Cases", "FusedSizes", "check", "main"]

LIMITS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}
"""Largest difference, relative to the largest result: a number that lies between two of its format
may be rounded to either."""

INT8_STEP = 1 / 100
"""A code is rounded to the other side where its number lies between two: the largest is 127."""

IN_INT8 = "keys and values in int8"

GATES = (Gate("silu"), Gate("gelu_tanh"), Gate("silu", alternating=True, slope=1.702, limit=0.7))


@dataclass(frozen=True, slots=True)
class FusedSizes:
    """Sizes of what is computed."""

    rows: int
    hidden: int
    gated: int
    heads: int
    kv_heads: int
    key: int
    value: int
    experts: int
    inputs: int
    outputs: int

    @property
    def rotations(self) -> tuple[tuple[Rotation, int] | None, ...]:
        """With the width of the tables; the last is none."""
        key, part = self.key, self.key // 3 // 2 * 2
        return (
            (Rotation(key, neighbours=False, step=1), key),
            (Rotation(key, neighbours=False, step=1), key // 2),
            (Rotation(2 * part, neighbours=True, step=1), 2 * part),
            (Rotation(part, neighbours=True, step=2), part),
            None,
        )


SMALL = FusedSizes(7, 70, 1030, 4, 2, 24, 20, 5, 70, 90)

LARGE = FusedSizes(64, 2880, 2880, 32, 8, 128, 128, 32, 2048, 1440)


@dataclass(frozen=True, slots=True)
class Cases:
    """Random cases of the operators in one format."""

    sizes: FusedSizes
    dtype: torch.dtype
    device: torch.device

    def norms(self, operators: FusedOperators) -> list[torch.Tensor]:
        """Rows in one piece, and heads that are views of a wider product."""
        size = self.sizes.hidden
        weight_N = self._random(size, seed=7, wide=True) + 1
        x = self._random(1, self.sizes.rows, size)
        q, k, _ = self._heads()
        by_head = [operators.normed(one[None], weight_N[: self.sizes.key], 1e-5) for one in (q, k)]
        whole = [operators.normed(x, weight_N, 1e-3), operators.normed(x * 1e-3, None, 1e-5)]
        return whole + by_head

    def gates(self, operators: FusedOperators) -> list[torch.Tensor]:
        """Each kind of gate."""
        x = self._random(1, self.sizes.rows, 2 * self.sizes.gated)
        return [operators.gated(x, gate) for gate in GATES]

    def rotations(self, operators: FusedOperators) -> list[torch.Tensor]:
        """Queries and keys, turned in each way."""
        q, k, _ = self._heads()
        turns = [turn for turn in map(self._turn, self.sizes.rotations) if turn is not None]
        return [one for turn in turns for one in operators.rotated(q, k, turn)]

    def writes(self, operators: FusedOperators, kv_dtype: KvDtype = "auto") -> list[torch.Tensor]:
        """What queries are attended with, and the whole pool, whose other slots stay as they
        were."""
        results = list[torch.Tensor]()
        blocks = -(-self.sizes.rows // BLOCK_TOKENS) + 2
        slots_T = torch.randperm(blocks * BLOCK_TOKENS, generator=_generator(8))[: self.sizes.rows]
        for rotation in self.sizes.rotations:
            q, k, v = self._heads()
            layer = KvPool(blocks * BLOCK_TOKENS, kv_dtype).layer_of(0, k, v)
            turn = self._turn(rotation)
            results.append(operators.write(q, k, v, turn, slots_T.to(self.device), layer))
            results += [rows.numbers(self.dtype) for rows in (layer.keys, layer.values)]
        return results

    def experts(self, operators: FusedOperators) -> list[torch.Tensor]:
        """Products either way round; one expert is chosen by nobody, one by many."""
        results, sizes = list[torch.Tensor](), self.sizes
        scores = torch.rand(sizes.rows, sizes.experts, generator=_generator(3))
        share_Tk, index_Tk = (one.to(self.device) for one in scores.topk(2))
        pairs_P = index_Tk.where(index_Tk != sizes.experts - 1, 0).reshape(-1)
        for transposed in (True, False):
            shape = (sizes.inputs, sizes.outputs) if transposed else (sizes.outputs, sizes.inputs)
            weight = self._random(sizes.experts, *shape, seed=4) / sizes.inputs**0.5
            weight_EIO = weight if transposed else weight.transpose(1, 2)
            bias = self._random(sizes.experts, sizes.outputs, seed=5) if transposed else None
            share_P = None if transposed else share_Tk.reshape(-1)
            for pairs in (1, 2):
                x = self._random(len(pairs_P) // pairs, sizes.inputs, seed=6)
                call = ExpertCall(x, weight_EIO, bias, pairs_P, pairs, share_P)
                results.append(operators.expert_product(call))
        return results

    def _heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values as views of one product, as joined linears leave them."""
        s = self.sizes
        parts = [s.heads * s.key, s.kv_heads * s.key, s.kv_heads * s.value]
        q, k, v = torch.split(self._random(s.rows, sum(parts), seed=1), parts, -1)
        heads = ((q, s.heads, s.key), (k, s.kv_heads, s.key), (v, s.kv_heads, s.value))
        q, k, v = (one.view(s.rows, count, size) for one, count, size in heads)
        return q, k, v

    def _turn(self, rotation: tuple[Rotation, int] | None) -> Turn | None:
        if rotation is None:
            return None
        angles_TW = self._random(self.sizes.rows, rotation[1], seed=2, wide=True) * 3
        return Turn(rotation[0], angles_TW.cos().to(self.dtype), angles_TW.sin().to(self.dtype))

    def _random(self, *shape: int, seed: int = 0, wide: bool = False) -> torch.Tensor:
        numbers = torch.randn(shape, generator=_generator(seed))
        return numbers.to(self.device, torch.float32 if wide else self.dtype)


CHECKS: dict[str, Callable[[Cases, FusedOperators], list[torch.Tensor]]] = {
    "norms": Cases.norms,
    "gates": Cases.gates,
    "rotations": Cases.rotations,
    "keys and values": Cases.writes,
    IN_INT8: partial(Cases.writes, kv_dtype="int8"),
    "experts": Cases.experts,
}


@experiment
@card_options
@click.option("--format", "formats", multiple=True, help="float32, float16 or bfloat16; all.")
def main(out: Path, device: str, formats: Sequence[str]) -> None:
    """Print the largest differences; the command fails where one is over its limit."""
    on = torch.device(device)
    if on.type == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"  # Read when Triton is imported.
    wanted = [dtype for dtype in LIMITS if not formats or _name(dtype) in formats]
    found = list(_figures(wanted, on))
    keep(out, "fused_check", on, found)
    for figure in found:
        if not float(figure.value) <= float(figure.high or 0):
            raise UserError(f"{figure.what} differ by {figure.value}, over {figure.high}")


def _figures(dtypes: Sequence[torch.dtype], device: torch.device) -> Iterator[Figure]:
    sizes = SMALL if device.type == "cpu" else LARGE
    with torch.inference_mode():
        for dtype in dtypes:
            for what, apart in check(Cases(sizes, dtype, device)).items():
                limit = max(LIMITS[dtype], INT8_STEP if what == IN_INT8 else 0.0)
                yield Figure(f"{what}, {_name(dtype)}", apart, "", 0, limit)


def difference(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest difference, relative to the largest result; infinite for another format or shape."""
    if got.shape != wanted.shape or got.dtype != wanted.dtype:
        return float("inf")
    apart = (got.float() - wanted.float()).abs().max()
    return float(apart / wanted.float().abs().max().clamp(min=1e-30))


def check(cases: Cases) -> dict[str, float]:
    """Largest difference between kernels and torch, relative to the largest result, by operator."""
    from molink.engine.kernels.cuda.fused import TritonFused  # Imports Triton.

    in_interpreter = cases.device.type == "cpu"
    kernels = TritonFused(widen=in_interpreter and cases.dtype is torch.bfloat16)
    found = dict[str, float]()
    for what, compute in CHECKS.items():
        pairs = zip(compute(cases, kernels), compute(cases, PlainFused()), strict=True)
        found[what] = max(difference(got, wanted) for got, wanted in pairs)
    return found


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


if __name__ == "__main__":
    main()
