"""Many values in four numbers. Pure."""

from collections.abc import Sequence

__all__ = ["percentile", "spread"]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` of `ordered` (ascending, not empty) lie, linear between
    neighbours."""
    place = (len(ordered) - 1) * percent / 100
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and percentiles; null for all when there is no value."""
    if not values:
        return {"mean": None, "p50": None, "p95": None, "p99": None}
    ordered = sorted(values)
    return {
        "mean": sum(ordered) / len(ordered),
        "p50": percentile(ordered, 50),
        "p95": percentile(ordered, 95),
        "p99": percentile(ordered, 99),
    }
