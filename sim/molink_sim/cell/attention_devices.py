"""Attention on devices of its own, at equal cost: Lamina's tables (Chen et al., arXiv 2405.01814).

`a` compute devices (H100) hold the weights, `b` attention devices (H20) all KV. A batch is as large
as the KV's room allows, contexts counted by their mean: the prompt and half of the answer. Two
batches take turns, one computes while the other one attends, so a step takes the longer of both
parts twice. By rooflines; the paper measured.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from math import hypot

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import ModelShape
from molink.hardware.gpu import Gpu
from molink.hardware.roofline import stage_cost
from molink_scheduler.batch import DECODE
from molink_scheduler.units import GB

H100, H20 = Gpu("h100", 80, 3350, 989), Gpu("h20", 96, 4000, 148)
H100_PER_HOUR, H20_PER_HOUR = 11.06, 4.63
"""Dollars, by the paper's table 1."""

ROOM_SHARE = 0.9
"""Share of a device's memory for weights and KV."""

TRACES: Mapping[str, tuple[float, float]] = {
    "Azure-Conv": (1154.7, 211.1),
    "Azure-Code": (2047.8, 27.9),
    "Kimi-Conv": (12035.1, 342.6),
    "Kimi-TA": (8560.0, 182.1),
}
"""Mean tokens of prompts and of answers, by the paper's table 4."""

MODELS: Mapping[str, tuple[int, int, int]] = {
    "llama-30b": (2, 1, 2),
    "llama-65b": (4, 2, 4),
    "llama-3-70b": (4, 2, 4),
}
"""Models, the H100s that each is compared with, and the paper's split (a, b) by its table 5;
llama-30b is what the paper calls 33B."""

DEVICES_MAX = 8
"""Devices of one kind that the search tries."""

LATENCY_SHARE = 0.2
"""Share of a step that its network may take: the paper's alpha."""


@dataclass(frozen=True, slots=True)
class Split:
    """Compute and attention devices for a model on a trace, beside H100s alone."""

    compute: int
    attention: int
    batch: float
    batch_ratio: float
    """Batch over that of the H100s alone."""
    rate_ratio: float
    """Tokens a second over those of the H100s alone."""


def equal_cost() -> Iterator[tuple[str, str, Split, Split]]:
    """Model, trace, the paper's split and the best one that costs no more than H100s alone."""
    for model, (cards, *published) in MODELS.items():
        shape = model_shape(model)
        for trace, (prompt, answer) in TRACES.items():
            context = prompt + answer / 2
            splits = [_split(shape, context, cards, *one) for one in _affordable(shape, cards)]
            best = max(splits, key=lambda split: split.rate_ratio)
            yield model, trace, _split(shape, context, cards, *published), best


def _split(shape: ModelShape, context: float, cards: int, a: int, b: int) -> Split:
    alone = batch_of(shape, room_bytes(H100, cards) - 2 * shape.parameters, context)
    alone_s = compute_s(shape, alone, cards) + attend_s(shape, alone, context, H100, cards)
    batch = batch_of(shape, room_bytes(H20, b), context)
    turn_s = max(compute_s(shape, batch / 2, a), attend_s(shape, batch / 2, context, H20, b))
    return Split(a, b, batch, batch / alone, batch / (2 * turn_s) / (alone / alone_s))


def least_bandwidth_gb_per_s(model: str, batch: float, context: float) -> float:
    """GB a second between one H100 and one H20 by which the network takes a fifth of a step:
    (2 + 2/G) e d B L / (alpha (MTIME(B) + ATIME(B, l))), the paper's section 3.1."""
    shape = model_shape(model)
    moved = (2 + 2 / _group(shape)) * shape.row_bytes * batch * shape.layers
    step_s = compute_s(shape, batch, 1) + attend_s(shape, batch, context, H20, 1)
    return moved / (LATENCY_SHARE * step_s) / GB


def _affordable(shape: ModelShape, cards: int) -> list[tuple[int, int]]:
    """Splits that hold the weights for no more than the H100s alone cost."""
    cost_max, counts = cards * H100_PER_HOUR, range(1, DEVICES_MAX + 1)
    return [
        (a, b)
        for a, b in product(counts, counts)
        if a * H100_PER_HOUR + b * H20_PER_HOUR <= cost_max
        and room_bytes(H100, a) >= 2 * shape.parameters
    ]


def room_bytes(device: Gpu, count: int) -> float:
    """Bytes of so many devices for weights and KV."""
    return ROOM_SHARE * count * device.memory_gib * GB  # Sold in GB, counted so by the paper.


def batch_of(shape: ModelShape, kv_bytes: float, context: float) -> float:
    """Requests whose KV takes so many bytes."""
    return kv_bytes / (shape.layers * shape.kv_token_bytes * context)


def compute_s(shape: ModelShape, rows: float, count: int) -> float:
    """Seconds of a step's matrices on so many H100s."""
    parts = stage_cost(shape, H100, shape.layers, True, True).parts(DECODE, round(rows), 0, 1)
    return (hypot(parts.weights_s, parts.flops_s) + parts.output_s) / count + parts.overhead_s


def attend_s(shape: ModelShape, rows: float, context: float, device: Gpu, count: int) -> float:
    """Seconds of reading a batch's KV."""
    kv_bytes = rows * context * shape.layers * shape.kv_token_bytes
    return kv_bytes / (count * device.kv_bytes_per_s)


def _group(shape: ModelShape) -> float:
    """Query heads that share a kv head."""
    return 2 * shape.hidden_size * shape.dtype_bytes / shape.kv_token_bytes
