"""How long does this stage compute a step? Learned from the steps that it has computed.

A step costs a fixed part (weights read once, dispatch) and a part for each row. Both drift: caches
cool while a stage waits for its link, another program takes the core. So the line t = t0 + n t1 is
fitted by least squares over recent steps, each counting a little less with every newer one. A table
measured offline was rejected: it is wrong as soon as the owner of the PC opens a browser.

Pure: durations are arguments.
"""

from dataclasses import dataclass

__all__ = ["StepProfile"]

FORGET = 0.98
"""Weight of a step after one newer one: half is forgotten after 34 steps, four seconds of
decode."""

ROWS_SPREAD_MIN = 0.5
"""Variance of row counts below which no slope can be told from noise: then all of it is fixed."""


@dataclass(slots=True)
class StepProfile:
    """Weighted sums of recent steps; `rows` is n, `seconds` is t."""

    _weight: float = 0.0
    _rows: float = 0.0
    _seconds: float = 0.0
    _rows_rows: float = 0.0
    _rows_seconds: float = 0.0
    _line: tuple[float, float] | None = None
    """Fixed part and slope, until the next step is observed."""

    def observe(self, rows: int, seconds: float) -> None:
        """Take one step into account."""
        self._weight = self._weight * FORGET + 1.0
        self._rows = self._rows * FORGET + rows
        self._seconds = self._seconds * FORGET + seconds
        self._rows_rows = self._rows_rows * FORGET + rows * rows
        self._rows_seconds = self._rows_seconds * FORGET + rows * seconds
        self._line = None

    @property
    def known(self) -> bool:
        """Whether any step was seen."""
        return self._weight > 0

    @property
    def row_s(self) -> float:
        """Seconds of one more row, never negative."""
        return (self._line or self._fitted())[1]

    @property
    def fixed_s(self) -> float:
        """Seconds of a step before its rows count, never negative."""
        return (self._line or self._fitted())[0]

    def _fitted(self) -> tuple[float, float]:
        if not self.known:
            return 0.0, 0.0
        row_s = self._slope()
        fixed_s = max(0.0, (self._seconds - self._rows * row_s) / self._weight)
        self._line = fixed_s, row_s
        return self._line

    def _slope(self) -> float:
        mean = self._rows / self._weight
        variance = self._rows_rows / self._weight - mean * mean
        if variance < ROWS_SPREAD_MIN:
            return 0.0
        covariance = self._rows_seconds / self._weight - mean * self._seconds / self._weight
        return max(0.0, covariance / variance)

    def step_s(self, rows: int) -> float:
        """Predicted seconds of a step of `rows` rows; 0 when nothing is known."""
        return self.fixed_s + rows * self.row_s

    def rows_within(self, budget_s: float) -> int:
        """Most rows whose step is predicted to end within `budget_s`."""
        fixed_s, row_s = self._line or self._fitted()
        if row_s <= 0.0:
            return 0 if fixed_s > budget_s else 1_000_000
        return max(0, int((budget_s - fixed_s) / row_s))
