"""Which rings are surveyed, with whom, and which numbers of micro-batches are tried on them."""

import math
from dataclasses import dataclass

from molink.errors import UserError
from molink_scheduler.head.micro_batches import MICRO_BATCH_COUNT_MAX

__all__ = ["SurveySetting"]

VALUES_MAX = 8
"""Of one parameter: more panels cannot be read side by side."""

USERS_MAX = 512
"""Beyond it the KV memory of home GPUs is full anyhow."""

SLOWDOWN_MAX = 1000.0
"""An RTX 4090 a thousand times as slow is slower than any PC that anybody would bring."""

LATENCY_MS_MAX = 1000.0
"""Half of the way to a geostationary satellite and back, four times."""


@dataclass(frozen=True, slots=True)
class SurveySetting:
    """All that a survey depends on. Raises UserError for what makes no sense."""

    model: str = "qwen-7b"
    gpu: str = "rtx4090"
    stages: int = 3
    bandwidth_mbps: float = 100.0
    latencies_ms: tuple[float, ...] = (5.0, 15.0, 30.0, 50.0)
    """One way, of every link."""
    slowdowns: tuple[float, ...] = (1.0, 4.0, 16.0)
    """How many times as long as the GPU's are the steps of every stage."""
    users: tuple[int, ...] = (2, 8, 32, 128)
    """Who get answers at the same time."""
    micro_batches_max: int | None = None
    """None: one more than twice the stages, so that the last step shows that no more is needed."""

    def __post_init__(self) -> None:
        _check_values("latencies", self.latencies_ms, 0.0, LATENCY_MS_MAX)
        _check_values("slowdowns", self.slowdowns, 1 / SLOWDOWN_MAX, SLOWDOWN_MAX)
        _check_values("users", self.users, 1, USERS_MAX)
        if self.stages < 1:
            raise UserError(f"A ring has 1 or more stages, got --stages {self.stages}.")
        if not 1 <= self.counts_max <= MICRO_BATCH_COUNT_MAX:
            raise UserError(
                f"A survey tries up to 1 to {MICRO_BATCH_COUNT_MAX} micro-batches, "
                f"got {self.counts_max}: choose fewer with --micro-batches-max."
            )

    @property
    def counts_max(self) -> int:
        """The largest number of micro-batches that is tried."""
        return 2 * self.stages + 1 if self.micro_batches_max is None else self.micro_batches_max

    def counts(self, users: int) -> range:
        """Numbers of micro-batches for so many users: with more than users some stay empty."""
        return range(1, min(users, self.counts_max) + 1)


def _check_values(name: str, values: tuple[float, ...], low: float, high: float) -> None:
    fits = all(math.isfinite(value) and low <= value <= high for value in values)
    if not (1 <= len(values) <= VALUES_MAX and len(set(values)) == len(values) and fits):
        raise UserError(
            f"A survey takes 1 to {VALUES_MAX} different {name} of {low:g} to {high:g}: "
            f"got {', '.join(f'{value:g}' for value in values) or 'none'}."
        )
