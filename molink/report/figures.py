"""Figures in the few characters that a terminal has for them."""

from datetime import datetime, tzinfo

NONE = "-"
DATA_UNITS = ("B", "KB", "MB", "GB", "TB", "PB")


def data(size_bytes: float | None) -> str:
    """Bytes, in powers of 1000: 0 B, 12 KB, 1.2 GB."""
    if size_bytes is None:
        return NONE
    value, unit = float(size_bytes), 0
    while abs(value) >= 999.5 and unit < len(DATA_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    digits = 1 if unit and value < 9.95 else 0
    return f"{value:.{digits}f} {DATA_UNITS[unit]}"


def seconds(value_s: float | None) -> str:
    """A short time: 12 ms, 0.82 s, 61 s."""
    if value_s is None:
        return NONE
    if value_s < 0.0995:
        return f"{1000 * value_s:.1f} ms" if value_s < 0.00995 else f"{1000 * value_s:.0f} ms"
    return f"{value_s:.2f} s" if value_s < 9.995 else f"{value_s:.0f} s"


def duration(value_s: float | None) -> str:
    """A long time in its two largest parts: 45s, 3m12s, 2h05m, 3d04h."""
    if value_s is None:
        return NONE
    whole = int(value_s)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def mbps(rate: float | None) -> str:
    """A link's rate: 98.1 Mbps, 15.4 Gbps."""
    if rate is None:
        return NONE
    if rate >= 999.5:
        return f"{rate / 1000:.1f} Gbps"
    return f"{rate:.1f} Mbps" if rate < 99.95 else f"{rate:.0f} Mbps"


def percent(share: float | None) -> str:
    """A share of 1: 71 %."""
    return NONE if share is None else f"{100 * share:.0f} %"


def per_s(rate: float | None) -> str:
    """Rate of tokens: 8.2/s, 140/s."""
    if rate is None:
        return NONE
    return f"{rate:.1f}/s" if rate < 99.95 else f"{rate:.0f}/s"


def thousands(tokens: int) -> str:
    """A count of tokens: 4096, 12k."""
    return f"{tokens / 1000:.0f}k" if tokens >= 10_000 else f"{tokens}"


def clock(unix_s: float, zone: tzinfo | None = None) -> str:
    """Time of day; None: in this PC's zone."""
    return datetime.fromtimestamp(unix_s, zone).strftime("%H:%M:%S")


def day_and_clock(unix_s: float, zone: tzinfo | None = None) -> str:
    """Date and time of day."""
    return datetime.fromtimestamp(unix_s, zone).strftime("%Y-%m-%d %H:%M:%S")
