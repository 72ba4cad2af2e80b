"""How many prompt rows may a stage compute now, so that the step ends before decode is due?

Chunked prefill, with the budget taken from time instead of a token count: what is left until the
next micro-batch arrives, by this stage's own measured step times. When too little is left for a
useful piece the device waits for the decode step rather than make it wait; but never twice in a
row, so that prefill goes on however dense decode is.

Pure: times are arguments.
"""

from dataclasses import dataclass

from molink_scheduler.timing.decode_clock import DecodeClock
from molink_scheduler.timing.step_profile import StepProfile

__all__ = ["PREFILL_ROWS_MIN", "PrefillBudget"]

PREFILL_ROWS_MIN = 16
"""One KV block: smaller steps cost nearly the same, because their weights are read all the same."""

WAIT_MAX_S = 0.02
"""Longest that a device idles for a decode step that is due; predictions are rarely better."""


@dataclass(slots=True)
class PrefillBudget:
    """Rows per prefill step of one stage."""

    rows_max: int
    """Also the piece when no decode is running: larger ones would not overlap with the next hop."""
    clock: DecodeClock
    profile: StepProfile
    """Of this stage's prefill steps."""
    _waiting_since: float | None = None

    def rows_now(self, now: float) -> int:
        """Rows that may be computed now; 0 means: wait for the decode step that is about to
        come."""
        due_at = self.clock.due_at(now)
        if due_at is None or not self.profile.known:
            return self._go(self.rows_max)
        rows = min(self.rows_max, self.profile.rows_within(due_at - now))
        smallest = min(self.rows_max, PREFILL_ROWS_MIN)
        if rows >= smallest:
            return self._go(rows)
        if self._waiting_since is None:
            self._waiting_since = now
        if now < self._waiting_since + WAIT_MAX_S:
            return 0
        return self._go(smallest)

    @property
    def wait_until(self) -> float | None:
        """When to ask again after a 0, if no message came before; None when nothing waits."""
        return None if self._waiting_since is None else self._waiting_since + WAIT_MAX_S

    def _go(self, rows: int) -> int:
        self._waiting_since = None
        return rows
