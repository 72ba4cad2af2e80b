"""What else Lamina's design comes to by arithmetic (Chen et al., arXiv 2405.01814): use of a card
by batch, attention shared out by heads or by requests, prompts' KV fetched in idle time.

Cards and rooflines are those of `attention_devices`, batches in turns those of `turns`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import hypot
from random import Random

from molink.checkpoint.model_config import model_shape
from molink.hardware.roofline import stage_cost
from molink_scheduler.batch import DECODE
from molink_scheduler.units import GB
from molink_sim.cell.attention_devices import H20, H100, TRACES, batch_of, room_bytes
from molink_sim.cell.turns import LINK_BYTES_PER_S, context_of, layer_times, offer, play

LENGTHS_DEVIATION = 0.83
"""Standard deviation of the logarithm of contexts: that of Azure's conversation trace, cut to 2,048
tokens (`molink.workload.trace`)."""

SEEDS = 200


def flops_share(model: str, rows: int) -> float:
    """Share of an H100's peak arithmetic that the matrices of a decode step reach (MFU)."""
    shape = model_shape(model)
    parts = stage_cost(shape, H100, shape.layers).parts(DECODE, rows, 0, rows)
    step_s = hypot(parts.weights_s, parts.flops_s) + parts.overhead_s
    return 2 * rows * shape.layers * shape.layer_parameters / (step_s * H100.tflops * 1e12)


def rows_for_flops_share(model: str, share: float) -> int:
    """The least rows of a decode step that reach a share."""
    return next(rows for rows in range(1, 10_000) if flops_share(model, rows) >= share)


def slowest_device(devices: int, requests: int, seed: int) -> float:
    """Load of the fullest attention device over the mean, where each request lies on one: each goes
    to the device with the least KV as it comes, and all contexts have one mean."""
    random, loads = Random(seed), [0.0] * devices
    for _ in range(requests):
        place = min(range(devices), key=loads.__getitem__)
        loads[place] += math.exp(random.gauss(0, LENGTHS_DEVIATION))
    return max(loads) * devices / sum(loads)


def mean_slowest_device(devices: int, requests: int) -> float:
    """The same in the mean of many draws."""
    return sum(slowest_device(devices, requests, seed) for seed in range(SEEDS)) / SEEDS


@dataclass(frozen=True, slots=True)
class Fetching:
    """KV of new prompts that attention devices fetch, and their links' idle time."""

    wanted_gb_per_s: float
    """KV of prompts that begin each second, as requests end."""
    busy_share: float
    """Share of the links' time that queries, keys and values of decode take."""
    idle_gb_per_s: float
    """What the links carry in the rest."""


def fetching(model: str, trace: str, compute: int, attention: int) -> Fetching:
    """Prompts' KV of two batches in turns, each request replaced as it ends."""
    shape, (prompt, answer) = model_shape(model), TRACES[trace]
    rows = batch_of(shape, room_bytes(H20, attention), context_of(trace))
    times = layer_times(model, rows / 2, context_of(trace), compute, attention)
    token_s = play(times, shape.layers).token_s
    began_per_s = rows / (answer * token_s)
    wanted = began_per_s * prompt * shape.layers * shape.kv_token_bytes
    in_bytes = rows * shape.layers * (shape.row_bytes + shape.kv_token_bytes) / token_s
    carried = attention * LINK_BYTES_PER_S
    return Fetching(wanted / GB, in_bytes / carried, (carried - in_bytes) / GB)


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Milliseconds of a token of one batch alone, by what they are spent on."""

    rows: int
    model_ms: float
    attention_ms: float
    network_ms: float
    token_ms: float
    """Token of one batch with queries that leave first: less than the sum."""
    turns_ms: float
    """Token of two batches of so many rows that take turns."""

    @property
    def sum_ms(self) -> float:
        """Its parts, one behind another."""
        return self.model_ms + self.attention_ms + self.network_ms


def breakdown(
    model: str, context: float, compute: int, attention: int, rows: Sequence[int]
) -> Iterator[Breakdown]:
    """A token's time by rows of a batch."""
    layers = model_shape(model).layers
    for count in rows:
        times = layer_times(model, count, context, compute, attention)
        alone, turns = (play(times, layers, batches).token_s for batches in (1, 2))
        yield Breakdown(
            count,
            1e3 * layers * times.slice_s,
            1e3 * layers * times.attend_s,
            1e3 * layers * times.network_s,
            1e3 * alone,
            1e3 * turns,
        )


def scaling(
    model: str, trace: str, computes: Sequence[int], attentions: Sequence[int]
) -> Iterator[tuple[int, list[float]]]:
    """Tokens a second of two batches in turns, by attention devices, for each count of H100s."""
    for compute in computes:
        yield compute, [offer(model, trace, compute, 2, one).tokens_per_s for one in attentions]


def saved_by_queries_first(model: str, rows: int, context: float, batches: int) -> float:
    """Share of a token's time that is saved where queries leave first, on two H100s a copy and four
    H20s."""
    times, layers = layer_times(model, rows, context, 2, 4), model_shape(model).layers
    late, early = (
        play(times, layers, batches, queries_first=first).token_s for first in (False, True)
    )
    return 1 - early / late
