"""Lengths of time as people write them: 30m, 24h, 7d."""

import math
import re

from molink.errors import UserError

__all__ = ["duration_s"]

UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")


def duration_s(option: str, text: str) -> float:
    """Seconds. Raises UserError for what is no length of time."""
    match = DURATION.fullmatch(text)
    if match is None or not math.isfinite(seconds := float(match[1]) * UNITS_S[match[2]]):
        raise UserError(
            f"{option} takes a length of time such as 30m, 24h or 7d, got {text!r:.40}."
        )
    return seconds
