"""Step times that others have measured: Helix's tables of one layer, Vidur's of single kernels.

*Helix* (ASPLOS 2025) has two files for a model and a GPU: `NAME_decode_bs2time.csv` with
"sequences, milliseconds of one layer", `NAME_prompt_bs2time.csv` with "tokens, milliseconds of one
layer". The context of the decode steps is not told (800 tokens explain them best), so a step's KV
is part of the table.

*Vidur* (MLSys 2024) has one row for each number of tokens and degree of tensor parallelism, with
the milliseconds of each kernel of a layer but attention. Attention, the output head and the host's
part of a step are added from the roofline of a GPU.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from molink.checkpoint.model_shape import ModelShape
from molink.errors import UserError
from molink.hardware.gpu import Gpu
from molink.hardware.roofline import RooflineCost, stage_cost
from molink_scheduler.batch import BatchClass
from molink_sim.hardware.interpolation import Curve

__all__ = ["HelixCost", "VidurCost", "read_helix", "read_vidur"]

HELIX_DECODE, HELIX_PROMPT = "_decode_bs2time.csv", "_prompt_bs2time.csv"

VIDUR_KERNELS = (
    *("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj"),
    *("post_attention_layernorm", "mlp_up_proj", "mlp_act", "mlp_down_proj", "add"),
)
"""The kernels of one layer, by the middle part of their columns' names."""

CSV_ROWS_MAX = 100_000
"""Of one profile; Vidur's largest has two thousand."""


@dataclass(frozen=True, slots=True)
class HelixCost:
    """A stage by Helix's two tables."""

    layers: int
    decode_ms: Curve
    prompt_ms: Curve

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step, see `StepCost`; the KV is what Helix's workload had."""
        curve = self.decode_ms if batch_class is BatchClass.DECODE else self.prompt_ms
        return self.layers * curve.at(rows) / 1e3


@dataclass(frozen=True, slots=True)
class VidurCost:
    """A stage by Vidur's kernels, and a roofline for the rest."""

    layers: int
    kernels_ms: Curve
    rest: RooflineCost

    def step_s(self, batch_class: BatchClass, rows: int, kv_tokens: int, sequences: int) -> float:
        """Seconds of one step, see `StepCost`."""
        rest = self.rest.parts(batch_class, rows, kv_tokens, sequences)
        attention_s = max(rest.kv_s, rest.attention_flops_s)
        kernels_s = self.layers * self.kernels_ms.at(rows) / 1e3
        return kernels_s + attention_s + rest.output_s + rest.overhead_s


def read_helix(path: Path, layers: int) -> HelixCost:
    """From either of the two files. Raises UserError when one is missing or cannot be read."""
    stem = str(path).removesuffix(HELIX_DECODE).removesuffix(HELIX_PROMPT)
    tables = [_helix_table(Path(stem + suffix)) for suffix in (HELIX_DECODE, HELIX_PROMPT)]
    return HelixCost(layers, *tables)


def read_vidur(path: Path, layers: int, gpu: Gpu, is_tail: bool) -> VidurCost:
    """From one file, without tensor parallelism. Raises UserError when it cannot be read."""
    rows = [row for row in _rows(path) if row.get("num_tensor_parallel_workers") == "1"]
    if not rows:
        raise UserError(f"{path} has no row of one tensor-parallel worker: give one of Vidur's.")
    times: dict[float, list[float]] = {}
    for row in rows:
        tokens = _number(path, row, "num_tokens")
        names = (f"time_stats.{kernel}.median" for kernel in VIDUR_KERNELS)
        times.setdefault(tokens, []).append(sum(_number(path, row, name) for name in names))
    kernels_ms = Curve.through((tokens, median(several)) for tokens, several in times.items())
    rest = stage_cost(
        _vidur_shape(path, rows[0], layers),
        replace(gpu, layer_overhead_s=0.0),
        layers,
        False,
        is_tail,
    )
    return VidurCost(layers, kernels_ms, rest)


def _helix_table(path: Path) -> Curve:
    rows = _rows(path, ("size", "ms"))
    points = {_number(path, row, "size"): _number(path, row, "ms") for row in rows}
    points.pop(0.0, None)  # an empty batch takes nothing; the smallest takes no less than others
    if not points:
        raise UserError(f"{path} has no measured batch: give Helix's table of one layer.")
    return Curve.through(points.items())


def _vidur_shape(path: Path, row: dict[str, str], layers: int) -> ModelShape:
    names = ("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size")
    heads, kv_heads, hidden, intermediate, vocabulary = (
        int(_number(path, row, name)) for name in names
    )
    size = hidden // heads
    return ModelShape(
        name=path.stem,
        layers=layers,
        hidden_size=hidden,
        intermediate_size=intermediate,
        heads=heads,
        kv_heads=kv_heads,
        head_size=size,
        vocabulary=vocabulary,
        tied_embeddings=False,
        attention_parameters=2 * hidden * size * (heads + kv_heads),
        attention_width=2 * heads * size,
        kv_values=2 * kv_heads * size,
    )


def _rows(path: Path, names: tuple[str, ...] | None = None) -> Iterable[dict[str, str]]:
    """Rows by column name; `names` for a file without a header."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file, names))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read the profile {path} ({error}): check the path.") from error
    if len(rows) > CSV_ROWS_MAX:
        raise UserError(f"{path} has more than {CSV_ROWS_MAX:,} rows: give a profile.")
    return rows


def _number(path: Path, row: dict[str, str], name: str) -> float:
    try:
        value = float(row[name])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} has no number in column {name}: give a profile.") from None
    if not 0 <= value < float("inf"):
        raise UserError(f"{path} has {value} in column {name}: it takes a number from 0 up.")
    return value
