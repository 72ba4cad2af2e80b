"""Watch over the far end of a link: both ends miss it within a second or so, also on an idle link.

A PC that is switched off, or whose line is cut, closes nothing. So whoever sends lets no
`BEAT_PERIOD_S` pass without a frame, a hello where there is nothing else, and the far end answers
at once: each end gets a frame several times a second as long as both are there. What is too long
without one, the line itself says: twice the longest pause that it has made lately, but no less than
TCP needs to bring through what was sent in a cut of half a second.

Nothing is ended here. A silence is reported, and believed where others see it too; what a link does
about a dead path of its own is decided elsewhere (`LinkSilence`).

Rejected: a smoothed pause plus its deviations, which a busy link pulls down to milliseconds within
a round, so that only the bound beneath it was left; ZeroMQ's own heartbeats, which close a
connection where this one only reports; datagrams, which a relay does not carry.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

import math
from dataclasses import dataclass, field

BEAT_PERIOD_S = 0.2
"""Longest pause of a sender between two frames: 150 bytes with all headers, 6 kbps of a link that
is idle."""

SILENT_MIN_S = 1.2
"""TCP repeats what was lost after 0.25 and 0.75 s over a home line: what a cut of half a second
swallowed has come by then, the pause before it included."""

SILENT_MAX_S = 4.0
"""However restless the line is: as long as a node may miss its heartbeats to the coordinator."""

PAUSES = 2.0
"""Times the longest pause of late."""

FORGOTTEN_S = 60.0
"""Within which such a pause counts for a third of what it was."""

LATE_S = 0.6
"""Who has not looked for so long was itself suspended, or is overloaded: what arrived meanwhile may
still wait to be read."""


@dataclass(slots=True)
class PeerWatch:
    """Watch over the far end of one link: for how long nothing has come from it."""

    _arrived_at: float | None = field(init=False, default=None)
    """When the last frame came, or silence began to count; None: nothing has come yet."""
    _pause_s: float = field(init=False, default=0.0)
    """Longest pause of late between two frames."""
    _paused_at: float = field(init=False, default=-math.inf)
    """When the longest pause of late ended."""
    _looked_at: float = field(init=False, default=-math.inf)
    _is_silent: bool = field(init=False, default=False)

    def arrived(self, now: float) -> None:
        """A frame of the far end has come."""
        if self._arrived_at is not None:
            pause_s = now - self._arrived_at
            if pause_s >= BEAT_PERIOD_S and pause_s >= self._lately_s(now):
                self._pause_s, self._paused_at = pause_s, now
        self._arrived_at = now

    def excuse(self, now: float) -> None:
        """Nothing could come until now: nothing was read."""
        if self._arrived_at is not None:
            self._arrived_at = now

    def look(self, now: float) -> bool:
        """Whether the far end has just fallen silent; to be asked several times a second."""
        if now - self._looked_at > LATE_S:
            self.excuse(now)
        self._looked_at = now
        before, self._is_silent = self._is_silent, self.silent_s(now) > 0
        return self._is_silent and not before

    def silent_s(self, now: float) -> float:
        """Seconds for which nothing has come; 0 while that is not too long."""
        if self._arrived_at is None:
            return 0.0
        silent_s = now - self._arrived_at
        return silent_s if silent_s >= self._bound_s(now) else 0.0

    def _bound_s(self, now: float) -> float:
        return min(SILENT_MAX_S, max(SILENT_MIN_S, PAUSES * self._lately_s(now)))

    def _lately_s(self, now: float) -> float:
        return self._pause_s * math.exp((self._paused_at - now) / FORGOTTEN_S)
