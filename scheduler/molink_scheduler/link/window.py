"""Congestion window of a link, the bytes that may be in flight now, and the size of a chunk.

While cruising: one bandwidth-delay product, one chunk of 8 ms of the measured rate, and what the
link's acknowledgements are usually late. Every few rounds the window grows by 4 ms to ask whether
the link has more, then shrinks to let the queue run empty; when bytes come back sooner than the
believed rate allows, it ramps up until they queue for half a round trip. The allowance follows the
measured lateness, because a stage that computes acknowledges late: with none, every late
acknowledgement lowered the rate and the rate the window (100 Mbps ended at 20), and a constant one
is a queue on links that need none. Beside a foreign upload we hold the fair half.
"""

import math
from dataclasses import dataclass, field

from molink_scheduler.link.estimator import LinkEstimator
from molink_scheduler.link.facts import CHUNK_S, Departure, chunk_bytes_at
from molink_scheduler.link.upload_budget import UploadBudget

PIECE_SHARE = 0.25
"""A window with so much of a chunk left is open. One that had to have a whole chunk left would
leave a fast short link idle for a fifth of the time."""

SHORT_CHUNKS = 4
"""A link that holds fewer chunks gets a piece more, for what whole pieces leave unused."""

PROBE_S = 0.004
"""Queue that a probe adds where the link has no more: half a chunk."""

CYCLE_ROUNDS = 8
"""Rounds of a cycle: probe, drain, then six rounds of cruising (BBR's cycle)."""

CYCLE_S_MAX = 0.8
"""Longest cycle: without it a long link would learn of a rise only after seconds."""

ROUND_S_MIN = 0.02
"""Phases on a short link last so long, or the cycle would be all probe."""

RAMP_PER_S = 64.0
"""Factor by which a ramp grows the window each second: 1 to 200 Mbps in 1.3 s."""

RAMP_ROUND_S = 0.012
"""Queue by which a ramp grows the window each round, where that is more."""

RAMP_ROUND_MAX = 2.0
"""Largest factor by which a ramp grows the window in a round, as TCP does."""

RAMP_LEAD = 2.5
"""A ramp's window is at most so many times what has been seen delivered in a round."""

RAMP_QUEUE_S = 0.010
"""Queueing, beyond the lateness that is usual, that stops a ramp."""

RAMP_QUEUE_ROUNDS = 0.5
"""Round trips after which a ramp ends if every chunk saw such queueing: a stage that computed for a
while is over by then, and a prompt acknowledgement lets the ramp go on."""

START_WINDOW_BYTES = 16 * 1024
"""In flight at first to a peer never met: TCP's initial window; 130 ms at 1 Mbps."""

PACE_GAIN = 1.1
"""Chunks leave this much faster than a window each round: the window rules while the link is busy,
and a prompt after a pause queues for a tenth of a round trip. Without it 4 Mbps at 100 ms stuck at
0.7 Mbps (virtual time): bursts queued in an idle link, and every ramp ended at once."""

FOREIGN_SHARE = 0.5
"""Beside a foreign upload we hold the window of this share of the capacity: the fair half."""

FOREIGN_QUEUE_S_MAX = 0.2
"""Queueing that this window makes up for at most: our half must not grow without end."""

FOREIGN_RECHECK_S = 5.0
"""So often the share is given up for two rounds, to see whether the queue was ours."""

FOREIGN_RECHECK_ROUNDS = 2.0


@dataclass(slots=True)
class LinkWindow:
    """Congestion window of one directed link, with its probing cycle and its ramps."""

    estimator: LinkEstimator
    budget: UploadBudget
    _ramp_bytes: float | None = field(init=False, default=None)
    """The window while ramping."""
    _ramp_queued_since: float = field(init=False, default=math.inf)
    _cycle_at: float = field(init=False, default=-math.inf)
    chunk_bytes: int = field(init=False)
    """Size of a chunk at the rate or the upload cap, whichever is lower."""
    piece_bytes: int = field(init=False)
    """What must be left of the window for a chunk to leave."""
    cycle_s: float = field(init=False)
    """From one probe to the next."""
    _round_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.update()

    def start_ramp(self) -> None:
        """Start from a small window, as with a peer never met."""
        self._ramp_bytes = START_WINDOW_BYTES

    def tick(self, now: float) -> None:
        """Begin the next cycle if this one is over."""
        if now - self._cycle_at >= self.cycle_s:
            self._cycle_at = now

    def update(self) -> None:
        """Follow the estimator after an acknowledgement."""
        rate = self.estimator.rate_bytes_per_s
        self.chunk_bytes = chunk_bytes_at(min(rate, self.budget.cap_bytes_per_s or math.inf))
        self.piece_bytes = int(PIECE_SHARE * self.chunk_bytes)
        self._round_s = max(ROUND_S_MIN, self.estimator.base_rtt_s + CHUNK_S)
        self.cycle_s = max(3 * self._round_s, min(CYCLE_ROUNDS * self._round_s, CYCLE_S_MAX))

    def bytes_at(self, now: float) -> float:
        """Bytes that may be in flight now, and a piece at least: where the rate has risen since a
        ramp began, its window may be less, and with nothing in flight nothing would make it grow.
        """
        if self._ramp_bytes is not None:
            return max(self._ramp_bytes, self.piece_bytes)
        window = self._cycle_bytes((now - self._cycle_at) / self._round_s)
        return max(window, self._foreign_share(now)) if self.estimator.foreign.noticed else window

    def _cycle_bytes(self, rounds: float) -> float:
        """The window so many rounds into the cycle."""
        estimator, chunk = self.estimator, self.chunk_bytes
        rate = estimator.rate_bytes_per_s
        product = rate * estimator.base_rtt_s
        if rounds < 1:  # Probe: does the link carry more?
            probe = max(PROBE_S * rate, self.piece_bytes)
            window = product + chunk + probe + estimator.jitter_s * rate
        elif rounds < 2:  # Drain what the probe has queued.
            window = max(product, chunk)
        else:  # Cruise.
            window = product + chunk + estimator.jitter_s * rate
        return window + self.piece_bytes if product < SHORT_CHUNKS * chunk else window

    def pacing_rate(self, now: float) -> float:
        """Bytes per second at which prefill leaves: a window each round, and a little more."""
        rate = self.estimator.rate_bytes_per_s
        round_s = self.estimator.base_rtt_s + self.chunk_bytes / rate
        return PACE_GAIN * self.bytes_at(now) / round_s

    def phase_ends(self, now: float) -> float:
        """Time when the window changes by itself; never while ramping."""
        if self._ramp_bytes is not None:
            return math.inf
        ends = (self._round_s, 2 * self._round_s, self.cycle_s)
        return next((at for s in ends if (at := self._cycle_at + s) > now), now)

    def update_ramp(self, departure: Departure, now: float, *, waited_for: bool) -> None:
        """Begin, continue or end a ramp after an acknowledgement; `waited_for`: the window was full
        until it came."""
        if self._ramp_bytes is None:
            if self.estimator.headroom:
                self._ramp_bytes, self._ramp_queued_since = self.bytes_at(now), math.inf
        elif self.estimator.queueing_delay_s > RAMP_QUEUE_S + self.estimator.jitter_s:
            # It queues: the ramp stands still, and ends when that lasts.
            self._ramp_queued_since = min(now, self._ramp_queued_since)
            lasted_s = now - self._ramp_queued_since
            if lasted_s >= RAMP_QUEUE_ROUNDS * self.estimator.base_rtt_s:
                self._end_ramp(now)
        else:
            self._ramp_queued_since = math.inf
            if waited_for:
                self._ramp_bytes = self._ramped(departure.size_bytes)

    def _ramped(self, acknowledged_bytes: int) -> float:
        """The ramp's window after so many acknowledged bytes: a factor for each round."""
        # The share by which a round's acknowledgements may raise the window, at most twofold.
        rtt_s = self.estimator.base_rtt_s
        growth = max(math.pow(RAMP_PER_S, rtt_s) - 1, RAMP_ROUND_S / rtt_s)
        grown = (self._ramp_bytes or 0.0) + acknowledged_bytes * min(growth, RAMP_ROUND_MAX - 1)
        # Never far ahead of what has been seen delivered, and never back.
        delivered = self.estimator.rate_bytes_per_s * rtt_s
        return max(
            self._ramp_bytes or 0.0, min(grown, RAMP_LEAD * delivered + 4 * self.chunk_bytes)
        )

    def _end_ramp(self, now: float) -> None:
        """Drain what the ramp queued."""
        self._ramp_bytes = None
        self._cycle_at = now - self._round_s

    def _foreign_share(self, now: float) -> float:
        """The window that we hold against a foreign upload; 0 at rechecks."""
        estimator = self.estimator
        held_s = (now - estimator.foreign.noticed_at) % FOREIGN_RECHECK_S
        loaded_s = estimator.base_rtt_s + min(estimator.queueing_delay_s, FOREIGN_QUEUE_S_MAX)
        if held_s > FOREIGN_RECHECK_S - FOREIGN_RECHECK_ROUNDS * loaded_s:
            return 0.0
        return FOREIGN_SHARE * estimator.capacity_bytes_per_s * loaded_s
