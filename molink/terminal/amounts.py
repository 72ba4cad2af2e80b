"""Amounts in words for people: how long, how much of how much, how fast. Pure."""

from collections.abc import Sequence
from typing import Literal

from molink_scheduler.units import GB, MB

Unit = Literal["count", "bytes", "share"]
"""A share counts up to 1."""

MINUTE_S, HOUR_S = 60, 3600

WORDS_PER_TOKEN = 0.75
"""Words of English in a token, about: four tokens are three words."""


def duration_text(seconds: float) -> str:
    """Seconds, minutes, or hours with a tenth."""
    if seconds < MINUTE_S:
        return f"{seconds:.0f} s"
    if seconds < HOUR_S:
        return f"{seconds / MINUTE_S:.0f} min"
    return f"{seconds / HOUR_S:.1f} h"


def bytes_text(size: float) -> str:
    """Gigabytes, or megabytes below one, with a tenth."""
    return _done_text(size, None, "bytes")


def words_text(tokens_per_s: float) -> str:
    """A rate in words, with a tenth below three."""
    rate = WORDS_PER_TOKEN * tokens_per_s
    return f"{rate:.0f} words/s" if rate >= 3 else f"{rate:.1f} words/s"


def progress_text(done: float, total: float | None, per_s: float, unit: Unit = "count") -> str:
    """What is done, of how much, how fast, and the time that is left at this rate.

    A share (`total` 1) has no rate that tells anybody something.
    """
    parts = [_done_text(done, total, unit)]
    if unit == "bytes" and per_s:
        parts.append(f"{per_s / MB:,.1f} MB/s")
    elif unit == "count" and per_s:
        parts.append(f"{per_s:,.1f} per s" if per_s >= 0.1 else f"{per_s * MINUTE_S:,.1f} per min")
    if total is not None and per_s and done < total:
        parts.append(f"{duration_text((total - done) / per_s)} left")
    return ", ".join(parts)


def _done_text(done: float, total: float | None, unit: Unit) -> str:
    if unit == "share":
        return f"{done / (total or 1.0):.0%}"
    if unit == "bytes":
        scale, name = (GB, "GB") if max(done, total or 0.0) >= GB else (MB, "MB")
        of = "" if total is None else f" of {total / scale:,.1f}"
        return f"{done / scale:,.1f}{of} {name}"
    return f"{done:,.0f}" + ("" if total is None else f" of {total:,.0f}")


def layers_text(layers: Sequence[int]) -> str:
    """Layers `[first, behind the last]` as people count them, with the last: `0-8` of nine."""
    first, end = layers
    return f"{first}-{end - 1}"
