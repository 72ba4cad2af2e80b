"""Offset of this PC's clock from the coordinator's.

One request and its answer tell it: the coordinator's time was true about half way between the
two, so the error is at most half the round trip. Nothing in the ring needs clocks to agree; but
expiries, certificates, the hours that the owner set and people who compare two logs do.
"""

from dataclasses import dataclass

CLOCK_OFF_S = 60.0
"""Seconds by which a clock is off when people notice: logs do not fit together, an invite seems to
expire too early."""

HOUR_S = 3600.0

ZONE_ERROR_S = 300.0
"""Off by whole hours to within this: the time zone is wrong, not the clock."""


@dataclass(frozen=True, slots=True)
class ClockReading:
    """Request to the coordinator that was answered with its time."""

    sent_unix_s: float
    """This PC's clock when the request left."""
    round_trip_s: float
    """Seconds until the answer was here, by a clock that nobody sets."""
    coordinator_unix_s: float
    """Time in the coordinator's answer."""

    @property
    def offset_s(self) -> float:
        """Add it to this PC's clock for the coordinator's time."""
        return self.coordinator_unix_s - (self.sent_unix_s + self.round_trip_s / 2)


def clock_trouble(offset_s: float) -> str | None:
    """A sentence when the clock is off by more than people bear; None when it is not."""
    if abs(offset_s) < CLOCK_OFF_S:
        return None
    side = "behind" if offset_s > 0 else "ahead of"
    off = f"This PC's clock is {_span(abs(offset_s))} {side} the coordinator's"
    if _is_whole_hours(abs(offset_s)):
        return (
            f"{off}, by whole hours: check the time zone, and where Windows shares the PC "
            "let only one system set the clock (`timedatectl set-local-rtc 0`)."
        )
    return f"{off}: let the network set it (`sudo timedatectl set-ntp true`)."


def _is_whole_hours(off_s: float) -> bool:
    hours = round(off_s / HOUR_S)
    return hours >= 1 and abs(off_s - hours * HOUR_S) <= ZONE_ERROR_S


def _span(seconds: float) -> str:
    if seconds < HOUR_S:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * HOUR_S:
        return f"{seconds / HOUR_S:.1f} hours"
    return f"{seconds / HOUR_S / 24:.0f} days"
