"""Count of micro-batches that circle: a search with a cost model, then the measured round
decides.

With c sequences in K micro-batches a stage computes t(c/K) = t0 + t1 c/K, a micro-batch needs L
+ sum t + sum bytes/rate for its trip, and no device and no link can be asked for more than K
times its own part in one cycle:

    cycle(K) = max(L + sum_s t_s(c/K) + sum_l w_l(c/K),  K max_s t_s(c/K),  K max_l w_l(c/K))

Every micro-batch reads the weights again (K t0), so more of them pay where batches are large or
links slow, and cost where decode is bound by weights. The paper searches N..2N for N stages; we
search 1..2N, because at a few users one micro-batch is best on every link that we measured.

Pure: everything is an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

GAIN_MIN = 0.05
"""A change of the count must promise this much of the cycle: measurements are noisy, and a change
costs the pipeline a round to settle."""

BESIDE_GAIN_MIN = 0.1
"""Gain that a change must promise beside prompts, where nothing is measured afterwards: to merge
two micro-batches costs half of the users a round, and a count that flapped between 1 and 2 was the
whole p99 of their gaps."""

PREFILL_SHARE_FULL = 0.1
"""Share of the devices' time from which on prompts are as impatient for them as decode is."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Cost of one stage: t0 and t1."""

    fixed_s: float
    row_s: float


@dataclass(frozen=True, slots=True)
class HopCost:
    """Cost of one link of the round."""

    fixed_s: float
    """Delay and everything else that does not depend on the batch."""
    row_s: float
    """Time that one row occupies the wire: bytes of a row over the link's rate."""


@dataclass(frozen=True, slots=True)
class RoundModel:
    """Predicts a decode round."""

    stages: tuple[StageCost, ...]
    hops: tuple[HopCost, ...]
    rows_each: float = 1.0
    """Rows of each running sequence: its token, and drafts."""
    pass_s: float = 0.0
    """Time of one pass of a layer that drafts on the tail: a draft more for all of a micro-batch.
    The costs of its stage are those without."""
    passes: float = 0.0
    """Passes of a micro-batch."""
    _trip_fixed_s: float = field(init=False, repr=False, compare=False)
    _trip_row_s: float = field(init=False, repr=False, compare=False)
    _wire_row_s: float = field(init=False, repr=False, compare=False)
    """Time of a row on the slowest link, summed up once: a choice asks for twenty counts."""

    def __post_init__(self) -> None:
        parts: list[StageCost | HopCost] = [*self.stages, *self.hops]
        fixed_s = sum([part.fixed_s for part in parts]) + self.passes * self.pass_s
        object.__setattr__(self, "_trip_fixed_s", fixed_s)
        object.__setattr__(self, "_trip_row_s", sum([part.row_s for part in parts]))
        wire_row_s = max([hop.row_s for hop in self.hops], default=0.0)
        object.__setattr__(self, "_wire_row_s", wire_row_s)

    def trip_s(self, rows: float) -> float:
        """Time of one micro-batch alone on the ring."""
        return self._trip_fixed_s + rows * self._trip_row_s

    def cycle_s(self, running_count: int, micro_batch_count: int) -> float:
        """Time until every running sequence has been around once."""
        return self.cycle_and_device_s(running_count, micro_batch_count)[0]

    def device_s(self, running_count: int, micro_batch_count: int) -> float:
        """Time that one cycle takes of the slowest device."""
        rows = -(-running_count // micro_batch_count) * self.rows_each
        steps = [stage.fixed_s + rows * stage.row_s for stage in self.stages] or [0.0]
        steps[-1] += self.passes * self.pass_s
        return micro_batch_count * max(steps)

    def cycle_and_device_s(self, running_count: int, micro_batch_count: int) -> tuple[float, float]:
        """Both; the first needs the second."""
        rows = -(-running_count // micro_batch_count) * self.rows_each
        device = self.device_s(running_count, micro_batch_count)
        wire = micro_batch_count * rows * self._wire_row_s
        return max(self.trip_s(rows), device, wire), device


def best_micro_batch_count(
    model: RoundModel, running_count: int, candidates: Sequence[int], present: int
) -> int:
    """The candidate with the shortest cycle; `present` unless another gains GAIN_MIN over it.

    Counts above the number of running sequences are left out: a micro-batch holds at least one. A
    present count above it is as good as that number, and no reason to change.
    """
    useful = _useful(candidates, running_count)
    if not useful or running_count < 1:
        return present
    best = min(useful, key=lambda count: (model.cycle_s(running_count, count), count))
    now = model.cycle_s(running_count, min(present, running_count))
    if present in candidates and model.cycle_s(running_count, best) > now * (1 - GAIN_MIN):
        return present
    return best


def best_beside_prefill(
    model: RoundModel,
    running_count: int,
    candidates: Sequence[int],
    prefill_share: float,
    present: int,
) -> int:
    """The candidate that suits decode and prompts together; `present` unless another gains
    BESIDE_GAIN_MIN over it.

    Every micro-batch reads the weights again, and what that takes of the devices is missing to the
    prompts that share them. So with prompts about, a cycle costs what it takes of the slowest
    device as well as its own length: six micro-batches of one row made gaps 2 to 4 % shorter than
    two of three, and prompts beside them waited half as long again (docs/decisions, 7).
    """
    weight = min(1.0, prefill_share / PREFILL_SHARE_FULL)

    def cost_s(count: int) -> float:
        cycle_s, device_s = model.cycle_and_device_s(running_count, count)
        return cycle_s + weight * device_s

    useful = _useful(candidates, running_count)
    best = min(useful, key=lambda count: (cost_s(count), count), default=present)
    if present in useful and cost_s(best) > cost_s(present) * (1 - BESIDE_GAIN_MIN):
        return present
    return best


def _useful(candidates: Sequence[int], running_count: int) -> list[int]:
    return [count for count in candidates if count <= max(1, running_count)]
