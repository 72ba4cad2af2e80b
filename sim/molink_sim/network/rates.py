"""A link's rate and delay over time: constant, changing in steps, or cut for a while."""

import bisect
import math
from collections.abc import Sequence

from molink_sim.scenario import LinkSpec

__all__ = ["BYTES_PER_MEGABIT", "RateSchedule"]

BYTES_PER_MEGABIT = 1e6 / 8


class RateSchedule:
    """Steps of (from when, bytes per second, one-way delay), the first from the beginning."""

    __slots__ = ("_last", "_one_way_s", "_rates", "_starts")

    def __init__(self, steps: Sequence[tuple[float, float, float]]) -> None:
        self._starts = [0.0, *(start for start, _, _ in steps[1:])]
        self._rates = [rate for _, rate, _ in steps]
        self._one_way_s = [one_way_s for _, _, one_way_s in steps]
        self._last = len(steps) - 1

    @classmethod
    def of(cls, spec: LinkSpec) -> "RateSchedule":
        """What the scenario says of a link."""
        steps = [(0.0, spec.mbps, spec.one_way_s)]
        steps += [(change.at_s, change.mbps, change.one_way_s) for change in spec.changes]
        return cls([(at, mbps * BYTES_PER_MEGABIT, delay) for at, mbps, delay in steps])

    def rate_at(self, when: float) -> float:
        """Bytes per second; 0 while the link is cut."""
        return self._rates[self._step(when) if self._last else 0]

    def one_way_at(self, when: float) -> float:
        """Seconds from the end of the wire to the far end."""
        return self._one_way_s[self._step(when) if self._last else 0]

    def finish(self, start: float, size_bytes: float) -> float:
        """When the last of `size_bytes` that go from `start` on has left; never: infinity."""
        if not self._last:
            return start + size_bytes / self._rates[0] if self._rates[0] else math.inf
        step, at, left = self._step(start), start, size_bytes
        while step < self._last:
            possible = (self._starts[step + 1] - at) * self._rates[step]
            if left <= possible and self._rates[step]:
                break
            step, at, left = step + 1, self._starts[step + 1], left - possible
        return at + left / self._rates[step] if self._rates[step] else math.inf

    def carried_bytes(self, start: float, end: float) -> float:
        """What leaves between two moments if there is always something to send."""
        if not self._last:
            return (end - start) * self._rates[0]
        total, at, step = 0.0, start, self._step(start)
        while step < self._last and self._starts[step + 1] < end:
            total += (self._starts[step + 1] - at) * self._rates[step]
            step, at = step + 1, self._starts[step + 1]
        return total + (end - at) * self._rates[step]

    def after_cut(self, when: float) -> float:
        """`when`, or for what would arrive during a cut one delay after its end: TCP sends again
        what was lost. Infinity when the cut has no end."""
        if not self._last:
            return when if self._rates[0] else math.inf
        step = self._step(when)
        if self._rates[step]:
            return when
        while step < self._last and not self._rates[step]:
            step += 1
        return self._starts[step] + self._one_way_s[step] if self._rates[step] else math.inf

    def _step(self, when: float) -> int:
        return max(0, bisect.bisect_right(self._starts, when) - 1) if self._last else 0
