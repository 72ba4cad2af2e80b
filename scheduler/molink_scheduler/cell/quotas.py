"""Quotas of a lender: how much of its memory and of its time others may have.

The ledger offers by them, from reports that may be old; the lender itself holds to them when it is
asked. So two devices that ask one lender at once need no rule: the second one asks the next lender.
"""

from collections import deque
from dataclasses import dataclass, field

from molink_scheduler.cell.events import CellLink, DeviceFacts


@dataclass(frozen=True, slots=True)
class Quotas:
    """Shares of a device that others may have."""

    memory_share: float = 0.5
    """Share of what is free above its high-water mark: the rest is for a busier day than today."""
    mark_s: float = 600.0
    """Seconds that the high-water mark remembers."""
    step_growth: float = 0.1
    """Share by which the device's own step may grow: a user of its ring does not feel that."""


@dataclass(slots=True)
class HighWaterMark:
    """Most bytes that a device has used itself of late."""

    within_s: float
    _peaks: deque[tuple[float, int]] = field(default_factory=deque)
    """Pairs (time, bytes) of falling bytes: a later peak hides lower ones before it."""

    def used(self, size: int, now: float) -> None:
        """Count a use; `now` in seconds of a clock that does not go back."""
        while self._peaks and self._peaks[-1][1] <= size:
            self._peaks.pop()
        self._peaks.append((now, size))

    def bytes_at(self, now: float) -> int:
        """The most within the time; the last use counts however old it is."""
        while len(self._peaks) > 1 and self._peaks[0][0] < now - self.within_s:
            self._peaks.popleft()
        return self._peaks[0][1] if self._peaks else 0


def quota_bytes(facts: DeviceFacts, mark_bytes: int, quotas: Quotas) -> int:
    """Bytes that a device may have lent in all, by memory and by compute: what it has lent is read
    in each step of its debtors, beside a step of its own if it has a stage."""
    if facts.attend_bytes_per_s <= 0:
        return 0
    free = facts.memory_bytes - max(mark_bytes, facts.used_bytes)
    memory = min(quotas.memory_share * free, free - facts.headroom_bytes)
    compute = quotas.step_growth * facts.step_s * facts.attend_bytes_per_s
    return max(0, int(min(memory, compute) if facts.step_s > 0 else memory))


def link_s(debtor: DeviceFacts, link: CellLink, rows: int = 1) -> float:
    """Seconds for which queries and answers of a decode step are on the way, in all layers."""
    return debtor.layers * (link.round_trip_s + rows * debtor.row_bytes / link.bytes_per_s)


def bearable_bytes(
    debtor: DeviceFacts, link: CellLink, attend_bytes_per_s: float, slower_s: float, rows: int = 1
) -> float:
    """Bytes that a lender attends to in what is left of the time by which a step may be slower."""
    left_s = slower_s - link_s(debtor, link, rows)
    return left_s * attend_bytes_per_s if min(left_s, attend_bytes_per_s) > 0 else 0.0
