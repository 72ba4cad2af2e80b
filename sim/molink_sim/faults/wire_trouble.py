"""Late and duplicated messages on one wire.

Bytes come late as TCP's do: what left after them waits behind them. What comes twice is dropped at
the far end of a link that numbers its chunks, but acknowledged twice; the head is told of returned
batches twice, because the core promises to stand that (`HeadScheduler`).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from molink_scheduler.events import BatchReturned
from molink_sim.clock import Clock
from molink_sim.network.link import Deliver
from molink_sim.scenario import DuplicatedMessages, LateMessages

__all__ = ["Repeated", "WireTrouble"]


@dataclass(frozen=True, slots=True)
class WireTrouble:
    """A `Trouble` of `molink_sim.network.line`."""

    late: Sequence[LateMessages]
    duplicated: Sequence[DuplicatedMessages]
    random: random.Random

    def late_s(self, now: float) -> float:
        """As `Trouble` says."""
        return sum(self._drawn_s(fault) or 0.0 for fault in self.late if _is_on(fault, now))

    def again_s(self, now: float) -> float | None:
        """As `Trouble` says."""
        found = (self._drawn_s(fault) for fault in self.duplicated if _is_on(fault, now))
        return next((again_s for again_s in found if again_s is not None), None)

    def _drawn_s(self, fault: LateMessages | DuplicatedMessages) -> float | None:
        if self.random.random() >= fault.share:
            return None
        return self.random.uniform(0.0, fault.delay_s)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The head's door: some of the batches that come back are heard of twice."""

    deliver: Deliver
    clock: Clock
    trouble: WireTrouble

    def __call__(self, message: Any) -> None:
        """Deliver a message."""
        self.deliver(message)
        again_s = self.trouble.again_s(self.clock.now)
        if again_s is not None and isinstance(message, BatchReturned):
            self.clock.at(self.clock.now + again_s, self.deliver, message)


def _is_on(fault: LateMessages | DuplicatedMessages, now: float) -> bool:
    return fault.at_s <= now < fault.until_s
