"""Between what was measured: straight lines, and beyond it the line of the last two points.

A table of step times is ragged: many rows are measured with short contexts only, because long ones
would not fit. So each number of rows has a curve of its own, and a step between two numbers of rows
lies between their curves. Times never fall below zero.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Curve", "Surface"]


@dataclass(frozen=True, slots=True)
class Curve:
    """A value for every x, through measured points of rising x (at least one)."""

    xs: tuple[float, ...]
    ys: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.xs or len(self.xs) != len(self.ys) or sorted(set(self.xs)) != list(self.xs):
            raise ValueError("a curve goes through points of rising x, at least one")

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> "Curve":
        """The curve through points in any order; no x twice."""
        ordered = sorted(points)
        return cls(tuple(x for x, _ in ordered), tuple(y for _, y in ordered))

    def at(self, x: float) -> float:
        """The value there, never below zero."""
        if len(self.xs) == 1:
            return self.ys[0]
        left, weight = _place(self.xs, x)
        return max(0.0, self.ys[left] + weight * (self.ys[left + 1] - self.ys[left]))


@dataclass(frozen=True, slots=True)
class Surface:
    """A value for every x and y: for each measured x a curve over y."""

    xs: tuple[float, ...]
    curves: tuple[Curve, ...]

    @classmethod
    def through(cls, points: Iterable[tuple[float, float, float]]) -> "Surface":
        """The surface through points (x, y, value); no (x, y) twice."""
        by_x: dict[float, list[tuple[float, float]]] = {}
        for x, y, value in points:
            by_x.setdefault(x, []).append((y, value))
        xs = sorted(by_x)
        return cls(tuple(xs), tuple(Curve.through(by_x[x]) for x in xs))

    def at(self, x: float, y: float) -> float:
        """The value there, never below zero."""
        if len(self.xs) == 1:
            return self.curves[0].at(y)
        left, weight = _place(self.xs, x)
        below, above = self.curves[left].at(y), self.curves[left + 1].at(y)
        return max(0.0, below + weight * (above - below))


def _place(xs: tuple[float, ...], x: float) -> tuple[int, float]:
    """The interval that x lies in, or the last one on its side, and how far along it is."""
    left = min(max(bisect_right(xs, x) - 1, 0), len(xs) - 2)
    return left, (x - xs[left]) / (xs[left + 1] - xs[left])
