"""A decode step is being computed: should prefill leave the link alone until its result is there?

Strict priority decides among what waits; it cannot call back what is in the router. While prefill
keeps a link busy, a window's worth beyond the bandwidth-delay product stands there: a chunk, and
what acknowledgements are usually late. A decode message waits for all of it on every hop that
carries a prompt. But a stage knows when a decode step has begun, and about how long it takes. So
prefill stops as long before its result as the queue takes to run empty.

Simulated (six streams, a prompt of 1,500 tokens every 2 s, 20 Mbps, 30 ms, cores of their own): the
p99 gap falls from 1.34 to 1.27 times the gap without prompts, from 1.46 to 1.38 where delays vary
by 10 ms; the prompts' TTFT is the same within 2 %. Rejected: to stop by the forecast of the next
round (`DecodeClock`), which is off by more than the queue lasts.

What prefill gives up is bounded: 30 ms, and then a fifth of the time, whatever decode does.

Pure: times are arguments.
"""

import math
from dataclasses import dataclass, field

__all__ = ["HOLD_SHARE_MAX", "PrefillPause"]

HOLD_SHARE_MAX = 0.2
"""Of the link's time, at most: steps that follow each other closely would stop prefill for good."""

HOLD_S_MAX = 0.03
"""Of one step, and of what may be saved up: a queue that is longer is not ours."""

HOLD_S_MIN = 0.002
"""With less left it is not worth to begin."""

LATE_S_MAX = 0.005
"""How long a step that takes longer than expected is waited for: the link must not stand."""


@dataclass(slots=True)
class PrefillPause:
    """When prefill on one link stops for a decode step under way."""

    ready_at: float = -math.inf
    """When the result of the step under way is expected, or of the last one was."""
    _since: float | None = field(init=False, default=None)
    """Since when prefill stands still; None while it does not."""
    _allowance_s: float = field(init=False, default=HOLD_S_MAX)
    """For how long it may."""
    _allowed_at: float = field(init=False, default=-math.inf)
    """When the allowance was counted."""

    def until(self, now: float, drain_s: float) -> float | None:
        """Until when prefill that waits must go on waiting; None: it may leave.

        `drain_s` is how long the bottleneck would be busy with what has left and one chunk more.
        """
        ends_at = self.ready_at + LATE_S_MAX
        if now >= ends_at or now + drain_s <= self.ready_at:
            self.end(now)
            return None
        if self._since is None:
            self._earn(now)
            if self._allowance_s < HOLD_S_MIN:
                return None
            self._since = now
        ends_at = min(ends_at, self._since + self._allowance_s)
        return ends_at if now < ends_at else None

    def end(self, now: float) -> None:
        """Decode has come, or is not waited for any longer; fine when nothing was held."""
        if self._since is not None:
            self._allowance_s -= min(now - self._since, self._allowance_s)
            self._allowed_at, self._since = now, None

    def _earn(self, now: float) -> None:
        earned_s = HOLD_SHARE_MAX * (now - self._allowed_at)
        self._allowance_s = min(HOLD_S_MAX, self._allowance_s + earned_s)
        self._allowed_at = now
