"""Batches that take turns on copies of a model and on the devices that attend (Lamina, 4.2, 4.3).

Layer by layer: a copy computes a slice, the end of one layer and the beginning of the next;
queries, keys and values go to the attention devices; these attend; what comes out goes back, and
the next slice begins on the next copy. n batches share n - 1 copies, batch j's slice k on copy
(j + k) mod (n - 1). With `queries_first`, queries leave as soon as they are there, and devices
attend to older keys while the slice makes the newest: joining both takes nothing.

Times of slices and of attention are rooflines; a message takes half of the paper's 33.0 us there
and back, and its bytes at 45.7 GB/s on each card's link, as many links as the smaller side has.
What cards of one copy tell each other is not counted.
"""

import heapq
from dataclasses import dataclass

from molink.checkpoint.model_config import model_shape
from molink.checkpoint.model_shape import ModelShape
from molink_scheduler.units import GB
from molink_sim.cell.attention_devices import (
    H20,
    H20_PER_HOUR,
    H100_PER_HOUR,
    TRACES,
    attend_s,
    batch_of,
    compute_s,
    room_bytes,
)

WAY_S, LINK_BYTES_PER_S = 33.0e-6 / 2, 45.7 * GB
"""One way of a small message, and bytes a second of a card's link, by the paper's section 6."""

TOKENS = 6
"""Tokens of each batch that are played; the first shows how the batches fall into turns."""

ATTENTION_MAX = 32
"""Attention devices that the search tries."""


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Seconds of one layer of one batch."""

    slice_s: float
    kv_s: float
    """End of the slice, which makes keys and values."""
    attend_s: float
    queries_s: float
    """Sending queries."""
    kv_sent_s: float
    """Sending keys and values."""
    back_s: float

    @property
    def network_s(self) -> float:
        """Messages of a layer, one behind another."""
        return self.queries_s + self.kv_sent_s + self.back_s + 2 * WAY_S

    @property
    def sum_s(self) -> float:
        """All of them, one behind another."""
        return self.slice_s + self.attend_s + self.network_s


@dataclass(frozen=True, slots=True)
class TurnsPlayed:
    """Times of batches in turns."""

    token_s: float
    """Seconds between two tokens of a batch."""
    copies_busy: float
    attention_busy: float
    """Shares of the time in which copies compute, and devices attend."""


@dataclass(frozen=True, slots=True)
class TurnsOffer:
    """Batches on copies and attention devices for one trace."""

    batches: int
    attention: int
    rows: float
    """Requests of all batches."""
    played: TurnsPlayed
    dollars_per_hour: float

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second of all batches together."""
        return self.rows / self.played.token_s


def layer_times(
    model: str, rows: float, context: float, compute: int, attention: int
) -> LayerTimes:
    """Times of a layer of one batch on a copy of `compute` H100s and on `attention` H20s."""
    shape = model_shape(model)
    slice_s = compute_s(shape, rows, compute) / shape.layers
    rate = LINK_BYTES_PER_S * min(compute, attention)
    kv_bytes, query_bytes = rows * shape.kv_token_bytes, rows * shape.row_bytes
    return LayerTimes(
        slice_s,
        slice_s * _kv_parameters(shape) / shape.layer_parameters,
        attend_s(shape, rows, context, H20, attention) / shape.layers,
        query_bytes / rate,
        kv_bytes / rate,
        query_bytes / rate,
    )


def _kv_parameters(shape: ModelShape) -> float:
    """Parameters that make keys and values of a layer."""
    return shape.hidden_size * shape.kv_token_bytes / shape.dtype_bytes


def play(
    times: LayerTimes, layers: int, batches: int = 2, *, queries_first: bool = True
) -> TurnsPlayed:
    """Play batches in turns; one alone has a copy for itself."""
    copies, done_at = max(1, batches - 1), list[list[float]]([] for _ in range(batches))
    free_at = [0.0] * (copies + 1)
    due: list[tuple[float, bool, int, int, float]] = [
        (0.0, False, 0, batch, 0.0) for batch in range(batches)
    ]
    while due:
        ready, attends, number, batch, kv_at = heapq.heappop(due)
        place = copies if attends else (batch + number) % copies
        start = max(ready, free_at[place])
        if not attends:
            free_at[place] = end = start + times.slice_s
            sent = _arrivals(times, end, queries_first)
            heapq.heappush(due, (sent[0], True, number, batch, sent[1]))
            continue
        free_at[place] = end = max(start + times.attend_s, kv_at)
        number += 1
        if number % layers == 0:
            done_at[batch].append(end)
        if number < TOKENS * layers:
            heapq.heappush(due, (end + WAY_S + times.back_s, False, number, batch, 0.0))
    return _played(times, layers, copies, done_at)


def _arrivals(times: LayerTimes, end: float, queries_first: bool) -> tuple[float, float]:
    """When queries of a slice that ends then are there, and keys and values."""
    if not queries_first:
        at = end + times.queries_s + times.kv_sent_s + WAY_S
        return at, at
    left = end - times.kv_s + times.queries_s
    return left + WAY_S, max(end, left) + times.kv_sent_s + WAY_S


def _played(times: LayerTimes, layers: int, copies: int, done_at: list[list[float]]) -> TurnsPlayed:
    """Means behind the first token of each batch."""
    token_s = sum((one[-1] - one[0]) / (TOKENS - 1) for one in done_at) / len(done_at)
    attended_s = len(done_at) * layers * times.attend_s
    computed_s = len(done_at) * layers * times.slice_s
    return TurnsPlayed(token_s, computed_s / copies / token_s, attended_s / token_s)


def best_offer(model: str, trace: str, compute: int, batches: int) -> TurnsOffer:
    """So many batches with as many attention devices as give the most tokens for a dollar."""
    offers = [offer(model, trace, compute, batches, one) for one in range(1, ATTENTION_MAX + 1)]
    return max(offers, key=lambda one: one.tokens_per_s / one.dollars_per_hour)


def offer(model: str, trace: str, compute: int, batches: int, attention: int) -> TurnsOffer:
    """So many batches with these attention devices, on copies of `compute` H100s each."""
    shape, context = model_shape(model), context_of(trace)
    rows = batch_of(shape, room_bytes(H20, attention), context)
    times = layer_times(model, rows / batches, context, compute, attention)
    cards = compute * max(1, batches - 1)
    cost = cards * H100_PER_HOUR + attention * H20_PER_HOUR
    return TurnsOffer(batches, attention, rows, play(times, shape.layers, batches), cost)


def context_of(trace: str) -> float:
    """Mean context of a trace's requests: the prompt and half of the answer."""
    prompt, answer = TRACES[trace]
    return prompt + answer / 2
