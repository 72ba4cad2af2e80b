"""How long does one mixer of a hybrid model take for the rows of a step?

    python -m tools.experiments.hybrid.mixer_speed --out DIR

One layer's mixer in bf16 with random weights and the sizes of a published checkpoint, all decode
rows of different requests: batched with everything in it, as the library computes it; with its
projections hoisted; then also row by row; then also with packed linears, which is what a CPU stage
does. The conditions take turns, and what counts is the processor time of one thread, the best of
some rounds.
"""

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn
from transformers import AutoConfig
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import (
    GraniteMoeHybridMambaLayer,
)
from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5GatedDeltaNet

from molink.engine.kernels.cpu.packed_linear import pack
from molink.engine.layers.finding_mixers import stage_mixers
from molink.engine.layers.library_mixers import settle_mixers
from molink.engine.layers.mixer_projections import hoist
from molink.engine.layers.staged_mixer import (
    RecurrentStep,
    active_recurrence,
)
from molink.engine.memory.recurrent_rows import RecurrentSpan, decode_index
from molink.engine.memory.state_pool import StatePool
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report

__all__ = ["main"]

SLOTS = 24
STEPS = {
    "1 row": [(0, 1)],
    "4 rows": [(slot, 1) for slot in range(4)],
    "16 rows": [(slot, 1) for slot in range(16)],
    "8 rows, prompts of 64 and 64": [*((slot, 1) for slot in range(8)), (20, 64), (21, 64)],
}
"""Steps of (slot, rows)."""

MIXERS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "Qwen3.5-27B": (
        Qwen3_5GatedDeltaNet,
        "cache_params",
        dict(
            model_type="qwen3_5_text",
            hidden_size=5120,
            linear_num_key_heads=16,
            linear_num_value_heads=48,
        ),
    ),
    "granite-4.0-h-tiny": (
        GraniteMoeHybridMambaLayer,
        "cache_params",
        dict(
            model_type="granitemoehybrid",
            hidden_size=1536,
            mamba_n_heads=48,
            mamba_d_head=64,
            mamba_d_state=128,
        ),
    ),
    "LFM2-1.2B": (Lfm2ShortConv, "past_key_values", dict(model_type="lfm2", hidden_size=2048)),
}


class OneMixer(nn.Module):
    """A mixer in a model, called with a cache or without one."""

    def __init__(self, mixer: nn.Module, cache_name: str, width: int) -> None:
        super().__init__()
        self.mixer, self._cache_name, self._width = mixer, cache_name, width

    def forward(self, rows: int, cache: Any = None) -> Any:
        """The mixer's output for random rows."""
        hidden = torch.randn(1, rows, self._width).to(torch.bfloat16)
        return self.mixer(hidden_states=hidden, **{self._cache_name: cache})


@experiment
@click.option("--rounds", default=9, show_default=True, help="Of which the best counts.")
def main(out: Path, rounds: int) -> None:
    """Print the milliseconds of a mixer by model, way and step."""
    torch.set_num_threads(1)
    times: dict[str, dict[str, dict[str, float]]] = {}
    with torch.inference_mode():
        for name, (kind, cache_name, settings) in MIXERS.items():
            config = AutoConfig.for_model(**settings)
            mixer = kind(config, 0).to(torch.bfloat16).eval()
            model = OneMixer(mixer, cache_name, config.hidden_size)
            times[name] = _measure(model, rounds)
    write_report(out, "mixer_speed", {"ms": times})
    lines = [
        [name, way, *(f"{by_step[step]:.1f}" for step in STEPS)]
        for name, by_way in times.items()
        for way, by_step in by_way.items()
    ]
    show(markdown_table(["model", "way", *STEPS], lines))


def _measure(model: OneMixer, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds by way and step."""
    ways = {
        "all in the batch": _way(model, 64, hoisted=False, packed=False),
        "projections hoisted": _way(model, 64, hoisted=True, packed=False),
        "and row by row": _way(model, 1, hoisted=True, packed=False),
        "and packed": _way(model, 1, hoisted=True, packed=True),
    }
    times: dict[str, dict[str, float]] = {way: {} for way in ways}
    for step in STEPS:
        for _ in range(rounds):
            for way, run in ways.items():
                took = run(step)
                times[way][step] = min(took, times[way].get(step, took))
    return times


def _way(model: OneMixer, rows_max: int, *, hoisted: bool, packed: bool) -> Callable[[str], float]:
    """Runs a step; returns its milliseconds."""
    model = copy.deepcopy(model)
    settle_mixers(model)
    staged = stage_mixers(model, lambda cache: model(3, cache))
    if packed:
        _pack(model.mixer.mixer)
    pool = StatePool(SLOTS)
    with active_recurrence(_step([(slot, 1) for slot in range(SLOTS)], pool, rows_max, False)):
        model(SLOTS)  # Everybody has a state now.
    if hoisted:
        with active_recurrence(_step([(0, 1)], pool, 1, True)):
            hoist(staged, lambda: model(1))

    def run(name: str) -> float:
        step = _step(STEPS[name], pool, rows_max, True)
        with active_recurrence(step):
            start = time.process_time()
            model(step.rows)
            return (time.process_time() - start) * 1e3

    return run


def _step(
    spans: list[tuple[int, int]], pool: StatePool, rows_max: int, has_state: bool
) -> RecurrentStep:
    places, row = [], 0
    for slot, rows in spans:
        places.append(RecurrentSpan(row, rows, slot, has_state))
        row += rows
    return RecurrentStep(places, pool, torch.tensor(decode_index(places)), rows_max)


def _pack(mixer: Any) -> None:
    for name, part in list(mixer.named_children()):
        packed = pack([part]) if type(part) is nn.Linear else None
        if packed is not None:
            setattr(mixer, name, packed)


if __name__ == "__main__":
    main()
