"""Estimator of the gap between two tokens that a share of a ring's gaps stays within.

A mean hides the stutter that prompts make beside answers; Mooncake's target (TBT) is the gap that
all but a few are within. Gaps are counted as multiples of the pace that was forecast for them, in
classes of length that are a twentieth wider each, apart for classes of load that double. So what
was seen beside four answers says something of eight, whose pace is known, and a ring that becomes
slower is followed by its pace at once. Of fewer it says nothing: a ring that refused by what it
only did when it was busier would not learn better.

Counts of all loads fade together, each time that enough gaps came: how a busy ring stuttered is
forgotten while it is quiet, or nobody would be let in to see how it is now.

Rejected: a list of the last gaps, which is sorted for each request; the P2 algorithm (Jain and
Chlamtac, 1985), which holds one share and forgets nothing; the mean and deviation of a normal
distribution, whose tail is far shorter than that of gaps.

Pure, and of one size whatever comes.
"""

import math
from dataclasses import dataclass, field

CLASS_WIDTH = math.log(1.05)
"""Logarithm of a class's width: a quantile is true to a fortieth."""

TIMES_MIN, CLASSES = 1 / 8, 192
"""Multiple of the pace below which all gaps are of the first class, and number of classes: the last
holds what is longer than 1,300 times the pace, minutes on any ring."""

LOADS = 8
"""Classes of load: none beside it, 1, 2 to 3, 4 to 7, and so on; the last from 64 on."""

FADE_AFTER = 4096
"""Gaps after which all counts are halved: half a minute of sixteen answers, some minutes of one."""

KNOWN_GAPS = 256
"""Gaps from which a quantile is taken: in fewer a hundredth is one or two."""


@dataclass(slots=True, eq=False)
class GapTimes:
    """Counts of gaps by load and length, the newest counting most."""

    _counts: list[list[float]] = field(init=False)
    """Count of gaps by class of load, then of length."""
    _totals: list[float] = field(init=False)
    """Count of all gaps of a class of load."""
    _since: int = field(init=False, default=0)
    """Gaps since counts were halved."""

    def __post_init__(self) -> None:
        self._counts = [[0.0] * CLASSES for _ in range(LOADS)]
        self._totals = [0.0] * LOADS

    @property
    def total(self) -> float:
        """Count of all gaps, those that fade by what is left of them."""
        return sum(self._totals)

    def add(self, others: int, times: float) -> None:
        """A gap of so many times the pace has come beside so many other answers."""
        load = _load_of(others)
        self._counts[load][_class_of(times)] += 1
        self._totals[load] += 1
        self._since += 1
        if self._since == FADE_AFTER:
            self._fade()

    def _fade(self) -> None:
        self._since = 0
        self._counts = [[count / 2 for count in counts] for counts in self._counts]
        self._totals = [total / 2 for total in self._totals]

    def times(self, others: float, percentile: float) -> float:
        """Multiple of the pace that so many per cent of gaps stay within beside so many others, by
        gaps of that load and the next quieter ones, until there are enough; 1 where nobody knows:
        the pace."""
        total, near = 0.0, []
        for load in range(_load_of(others), -1, -1):
            total += self._totals[load]
            near.append(self._counts[load])
            if total >= KNOWN_GAPS:
                return _quantile(near, total * percentile / 100)
        return 1.0


NO_GAPS = GapTimes()
"""Gaps of a ring that has told of none; nobody adds to it."""


def _quantile(near: list[list[float]], count: float) -> float:
    """Multiple that so many of the gaps are within."""
    for number in range(CLASSES):
        count -= sum(counts[number] for counts in near)
        if count <= 0:
            return TIMES_MIN * math.exp(CLASS_WIDTH * (number - 0.5))
    return TIMES_MIN * math.exp(CLASS_WIDTH * CLASSES)


def _load_of(others: float) -> int:
    return min(LOADS - 1, round(others).bit_length())


def _class_of(times: float) -> int:
    if times <= TIMES_MIN:
        return 0
    return min(CLASSES - 1, math.ceil(math.log(times / TIMES_MIN) / CLASS_WIDTH))
