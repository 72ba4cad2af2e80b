"""Measure how long this machine's stages take, for the simulator: `molink bench --profile`.

Three stages of a few layers each, one after another: a middle one over a grid of rows and contexts,
a head and a tail over the rows only, since what they do beside their layers depends on nothing
else. Then what a ring on one PC has beside: several stages at once (`stages_together`), steps after
idle times, software (`software_times`). `molink_sim.stage_profile` tells the file's
format and reads it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from molink.bench.software_times import hop_times
from molink.bench.stages_together import slowdown_together
from molink.checkpoint.description import ModelDescription, describe
from molink.engine.loading import load_stage
from molink.engine.step.step_timing import StepTimer, TimedStep
from molink.errors import UserError
from molink.stage_protocol.messages import StageWork

FORMAT, VERSION = "molink-profile", 1

LAYERS_MAX = 4
"""Layers of a measured stage: enough to outweigh fixed costs, few enough to load quickly."""

DECODE_ROWS = (1, 2, 4, 8, 16, 32, 64)
DECODE_CONTEXTS = (1024, 512, 128, 32)
DECODE_KV_TOKENS_MAX = 16_384
"""Tokens of KV in one decode step: 64 rows are measured with short contexts only."""

PREFILL_ROWS = (16, 32, 64, 128, 256, 512)
PREFILL_BEFORE = (0, 512, 1536)

CONTEXT_OF_ENDS = 32
"""Context at which head and tail are measured."""

KV_TOKENS = 32_768
"""Room for all requests that the decode grid keeps: 16 of 1,024 tokens, as many of 512, 32 of 128;
the spans, measured afterwards, take less."""

IDLE_S = (0.01, 0.03, 0.1, 0.3)
"""Seconds between decode steps: from a crowd of micro-batches to a single one on far links."""

IDLE_REPEATS = 20

Shape = tuple[int, int]


def decode_grid(model_len_max: int) -> list[Shape]:
    """Rows and contexts of the middle stage's decode steps, long contexts first."""
    grid = [(rows, context) for context in DECODE_CONTEXTS for rows in DECODE_ROWS]
    return [
        (rows, context)
        for rows, context in grid
        if rows * context <= DECODE_KV_TOKENS_MAX and context <= model_len_max
    ]


def prefill_grid(model_len_max: int) -> list[Shape]:
    """Rows of the middle stage's spans, and tokens before them."""
    grid = [(rows, before) for before in PREFILL_BEFORE for rows in PREFILL_ROWS]
    return [(rows, before) for rows, before in grid if rows + before <= model_len_max]


STEPS_IN_ALL = (
    len(decode_grid(DECODE_KV_TOKENS_MAX))
    + len(prefill_grid(DECODE_KV_TOKENS_MAX))
    + 2 * (len(DECODE_ROWS) + len(PREFILL_ROWS))
)
"""Measured of a model that is not too short for the grid; for a progress bar."""


def write_profile(model: str, path: Path, advance: Callable[[], None]) -> None:
    """Measure and write; `advance` is called after each measured step. Raises UserError when the
    model cannot be loaded or has fewer than three layers."""
    path.write_text(json.dumps(measure_profile(model, advance), indent=1) + "\n")


def measure_profile(model: str, advance: Callable[[], None]) -> dict[str, Any]:
    """The profile as the JSON object that is written."""
    description = describe(model)
    if description.layers < 3:
        raise UserError(f"{model} has {description.layers} layers: a profile takes three or more.")
    middle, *ends = _roles(description)
    timer = _load(model, middle)
    profile = _heading(description, timer) | {"middle": _measure(timer, middle, advance)}
    after_idle = _slower_after_idle(timer)
    del timer  # Its memory is wanted for the next ones.
    profile |= {role.name: _measure(_load(model, role), role, advance) for role in ends}
    pc = {
        "slowdown_together": slowdown_together(model, middle.layers, description.model_len_max),
        "after_idle": after_idle,
        **asdict(hop_times()),
    }
    return profile | {"pc": pc}


@dataclass(frozen=True, slots=True)
class _Role:
    """Stage of the ring that is measured, and the steps that are timed on it."""

    name: str
    layers: range
    decode: list[Shape]
    prefill: list[Shape]


def _roles(description: ModelDescription) -> tuple[_Role, _Role, _Role]:
    """Middle, head and tail, as long as each other."""
    longest, count = description.model_len_max, description.layers
    layers = min(LAYERS_MAX, count // 3)
    ends = (
        [(rows, CONTEXT_OF_ENDS) for rows in DECODE_ROWS],
        [(rows, 0) for rows in PREFILL_ROWS if rows <= longest],
    )
    return (
        _Role("middle", range(layers, 2 * layers), decode_grid(longest), prefill_grid(longest)),
        _Role("head", range(layers), *ends),
        _Role("tail", range(count - layers, count), *ends),
    )


def _load(model: str, role: _Role) -> StepTimer:
    """The architecture is tested once, with the layers that are the most usual."""
    work = StageWork((role.layers.start, role.layers.stop), "auto", "auto", KV_TOKENS)
    return StepTimer(load_stage(model, work, self_test=role.name == "middle"))


def _heading(description: ModelDescription, timer: StepTimer) -> dict[str, Any]:
    """Model, device and settings that were measured."""
    stage = timer.stage
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": Path(description.name).name,
        "hidden_size": description.hidden_size,
        "layers": len(stage.layers),
        "model_layers": description.layers,
        "device": str(stage.device),
        "dtype": str(stage.dtype).removeprefix("torch."),
    }


def _slower_after_idle(timer: StepTimer) -> list[tuple[float, float]]:
    """Pairs of how long the device was idle, and by how much the next step took longer."""
    context = min(CONTEXT_OF_ENDS, timer.stage.description.model_len_max)
    at_once_s = timer.decode_after_idle_s(context, 0.0, IDLE_REPEATS)
    return [
        (idle_s, max(0.0, timer.decode_after_idle_s(context, idle_s, IDLE_REPEATS) - at_once_s))
        for idle_s in IDLE_S
    ]


def _measure(timer: StepTimer, role: _Role, advance: Callable[[], None]) -> dict[str, Any]:
    """The role's steps; each one's rows, context and seconds."""

    def timed(measure: Callable[[int, int], TimedStep], shapes: list[Shape]) -> list[Any]:
        points = []
        for rows, context in shapes:
            points.append(asdict(measure(rows, context)))
            advance()
        return points

    points = {"decode": timed(timer.decode, role.decode)}
    timer.forget()
    return points | {"prefill": timed(timer.prefill, role.prefill)}
