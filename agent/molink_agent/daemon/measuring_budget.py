"""Budget of the measuring that a coordinator may ask for.

A round sends for a second to each neighbour, and timing a layer takes a core for seconds; both are
worth it when a node has come, and every few hours. A coordinator that asks without end, by mistake
or to keep a PC busy, finds this budget instead: an order beyond it waits, and the latest counts.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BucketState:
    """Size and filling of a token bucket."""

    size: float
    per_hour: float


PATHS_BUDGET = BucketState(size=300.0, per_hour=300.0)
"""Seconds of sending: a cluster that grows by twenty nodes in a minute measures each at once, and
in the long run measuring takes a twelfth of the line at most."""

TIMING_BUDGET = BucketState(size=10.0, per_hour=10.0)
"""Layers that are timed: one for each device, again for each model; and once the formats."""


@dataclass(slots=True)
class MeasuringBudget:
    """Token bucket of one kind of measuring, for all nodes of a PC. Pure but for the clock."""

    budget: BucketState
    clock: Callable[[], float]
    """Seconds, monotonic."""
    _left: float = field(init=False)
    _filled_at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left, self._filled_at = self.budget.size, self.clock()

    def wait_s(self, amount: float) -> float:
        """How long until `amount` may be spent; beyond the bucket's size, until it is full."""
        self._fill()
        missing = min(amount, self.budget.size) - self._left
        return max(0.0, missing) * 3600 / self.budget.per_hour

    def spend(self, amount: float) -> None:
        """Take it out; what a round takes beyond the bucket is owed."""
        self._fill()
        self._left -= amount

    def _fill(self) -> None:
        now = self.clock()
        gained = (now - self._filled_at) * self.budget.per_hour / 3600
        self._left, self._filled_at = min(self.budget.size, self._left + gained), now


async def spend(budget: MeasuringBudget, amount: float) -> None:
    """Wait until the budget allows it."""
    wait_s = budget.wait_s(amount)
    if wait_s > 0:
        log.info("the coordinator asks for much measuring: the next waits %.0f s", wait_s)
        await asyncio.sleep(wait_s)
    budget.spend(amount)
