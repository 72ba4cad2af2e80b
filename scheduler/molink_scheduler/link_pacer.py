"""How much may be under way on a link? Enough to keep it busy, no more: the sender owns the queue.

What a sender hands to a socket it can no longer order, and a home router holds seconds of prefill.
So at most one bandwidth-delay product and one chunk are unacknowledged, a chunk being 8 ms of the
measured rate. Every few rounds the window grows by 4 ms to ask whether the link has more, then
shrinks to let the queue run empty; when bytes come back sooner than the believed rate allows, it
ramps up until they queue. Chunks leave a tenth faster than a window each round and no faster, so
that a prompt after a pause does not put a whole window into the router, and a ramp over a long link
sees its queue and not its bursts. Decode may overdraw the window a little: it never waits for an
acknowledgement. Sequence numbers rise, and an acknowledgement stands for all before it.

Rejected, at 20 Mbps and 30 ms, urgent messages' p99 in ms and bulk Mbps: priority above a socket
buffer (7,874, 18.8), small kernel buffers (145, 3.9), plain TCP with a low-water mark (488, 18.4);
a window by acknowledgements gave 41 to 61 at 17.6 to 18.0. Pacing just under the rate as well
gained nothing while busy, which is why the window and not the pace rules there.
"""

import math
from dataclasses import dataclass, field
from enum import Enum

from molink_scheduler.link_estimator import CAUTIOUS, Departure, LinkEstimator, LinkMemory
from molink_scheduler.upload_budget import UploadBudget

__all__ = ["LinkPacer", "LinkSnapshot"]

CHUNK_S = 0.008
"""A chunk in time on the wire: what a decode step waits for at least."""

CHUNK_BYTES_MIN = 4 * 1024
"""Below it headers and wake-ups cost more than the order gains."""

CHUNK_BYTES_MAX = 64 * 1024
"""Above it nothing is gained, and copies leave the processor's cache."""

PIECE_SHARE = 0.25
"""The window is filled up with pieces of a quarter chunk at least; whole chunks only would leave a
fast short link idle for a fifth of the time."""

SHORT_CHUNKS = 4
"""A link that holds fewer chunks gets a piece more, for what whole pieces leave unused."""

PROBE_S = 0.004
"""Queue that a probe adds where the link has no more: half a chunk."""

CYCLE_ROUNDS = 8
"""Probe, drain, then six rounds of cruising (BBR's cycle)..."""

CYCLE_S_MAX = 0.8
"""...but on a long link more often, or a rise would be learned after seconds."""

ROUND_S_MIN = 0.02
"""Phases on a short link last so long, or the cycle would be all probe."""

RAMP_PER_S = 64.0
"""A ramp grows the window by this factor each second: 1 to 200 Mbps in 1.3 s..."""

RAMP_ROUND_S = 0.012
"""...or, where that is more, by this much queue each round..."""

RAMP_ROUND_MAX = 2.0
"""...and at most twofold a round, as TCP does."""

RAMP_LEAD = 2.5
"""A ramp's window is at most so many times what has been seen delivered in a round."""

RAMP_QUEUE_S = 0.010
"""Queueing that ends a ramp, seen twice in a row."""

START_WINDOW_BYTES = 16 * 1024
"""In flight at first to a peer never met: TCP's initial window; 130 ms at 1 Mbps."""

URGENT_CHUNKS = 2.0
"""How much urgent data may be in flight although the window is full, in chunks..."""

URGENT_BYTES_MIN = 16 * 1024
"""...and at least: a decode step of two rows of a 4,096-wide model at 16 bits."""

PACE_GAIN = 1.1
"""Chunks leave this much faster than a window each round: the window rules while the link is busy,
and a prompt after a pause queues for a tenth of a round trip. Without it 4 Mbps at 100 ms stuck at
0.7 Mbps (virtual time): bursts queued in an idle link, and every ramp ended at once."""

PACE_SLACK_S = 0.004
"""A sender that woke late may make up for so much."""

PAUSE_S = 0.002
"""A window open for longer without a send is the sender's pause; less is the event loop's."""

STALL_S_MIN = 1.0
"""Without an acknowledgement for so long..."""

STALL_ROUNDS = 4.0
"""...and so many round trips, queueing included, one more chunk may go: an acknowledgement is late
and not lost (TCP is reliable), but its sender may have restarted, and the link must not stand."""

STALL_DOUBLINGS_MAX = 6
"""Each further chunk waits twice as long, up to 64 times; a live link is reset long before."""

FOREIGN_SHARE = 0.5
"""Beside a foreign upload we hold the window of this share of the capacity: the fair half."""

FOREIGN_QUEUE_S_MAX = 0.2
"""Queueing that this window makes up for at most: our half must not grow without end."""

FOREIGN_RECHECK_S = 5.0
"""So often the share is given up for two rounds, to see whether the queue was ours."""

FOREIGN_RECHECK_ROUNDS = 2.0


class Phase(Enum):
    """What a link does with its window now."""

    PROBE = "probe"
    DRAIN = "drain"
    CRUISE = "cruise"
    RAMP = "ramp"


@dataclass(frozen=True, slots=True)
class LinkSnapshot:
    """One link in `GET /cluster`."""

    rate_mbps: float
    rtt_ms: float
    """Without queueing and without the chunk's own time."""
    queueing_delay_ms: float
    in_flight_bytes: int
    chunk_bytes: int
    foreign_upload: bool
    acks_refused: int


@dataclass(slots=True)
class LinkPacer:
    """What may be sent now on one directed link."""

    memory: LinkMemory | None = None
    budget: UploadBudget = field(default_factory=lambda: UploadBudget(None))
    """Shared by all links that leave this node."""
    acks_refused: int = field(init=False, default=0)
    estimator: LinkEstimator = field(init=False)
    _flights: dict[int, tuple[Departure, bool]] = field(init=False, default_factory=dict)
    """Unacknowledged chunks by sequence number, in order, and whether they are urgent."""
    _newest_sequence: int = field(init=False, default=-1)
    _urgent_bytes: int = field(init=False, default=0)
    _ramp_bytes: float | None = field(init=False, default=None)
    """The window while ramping."""
    _ramp_queued: bool = field(init=False, default=False)
    _cycle_at: float = field(init=False, default=-math.inf)
    _open_since: float | None = field(init=False, default=-math.inf)
    """Since when something may have gone; None while the window is full."""
    _paced_until: float = field(init=False, default=-math.inf)
    """Prefill's next chunk leaves no sooner."""
    _progress_at: float = field(init=False, default=0.0)
    _stalls: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.estimator = LinkEstimator(self.memory or CAUTIOUS)
        if self.memory is None:
            self._ramp_bytes = START_WINDOW_BYTES

    @property
    def chunk_bytes(self) -> int:
        """The size that a chunk should have now."""
        cap = self.budget.cap_bytes_per_s or math.inf
        wanted = int(CHUNK_S * min(self.estimator.rate_bytes_per_s, cap))
        return min(CHUNK_BYTES_MAX, max(CHUNK_BYTES_MIN, wanted))

    @property
    def foreign_upload(self) -> bool:
        """Whether somebody else seems to fill the same uplink."""
        return self.estimator.foreign.noticed

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not acknowledged."""
        return self.estimator.in_flight_bytes

    def room(self, now: float, *, urgent: bool = False) -> int:
        """Bytes that may be sent now, at most a chunk; 0: wait."""
        if now - self._cycle_at >= self._cycle_s:
            self._cycle_at = now
        room = self._open_bytes(now, urgent)
        if not urgent and now < self._paced_until:
            room = 0
        if room < self._piece_bytes and self._stalled(now):
            room = self.chunk_bytes
        room = min(int(room), self.chunk_bytes, self.budget.room(now, urgent=urgent))
        return room if room >= self._piece_bytes else 0

    def sent(self, sequence: int, size_bytes: int, now: float, *, urgent: bool = False) -> None:
        """A chunk was handed to the connection; sequence numbers rise."""
        assert sequence > self._newest_sequence, "sequence numbers rise"
        if not self._flights:
            self._progress_at = now
        elif self._stalled(now):
            self._progress_at, self._stalls = now, min(self._stalls + 1, STALL_DOUBLINGS_MAX)
        paused = self._open_since is not None and now - self._open_since > PAUSE_S
        departure = self.estimator.departed(size_bytes, now, paused=paused)
        self._flights[sequence] = (departure, urgent)
        self._newest_sequence = sequence
        self._urgent_bytes += size_bytes if urgent else 0
        self.budget.sent(size_bytes, now)
        earliest = max(self._paced_until, now - PACE_SLACK_S)
        self._paced_until = earliest + size_bytes / self._pace(now)
        self._open_since = now if self._is_open(now) else None

    def acknowledged(self, sequence: int, now: float) -> None:
        """The far end has this chunk and all before it; anything unknown is dropped and counted."""
        if sequence not in self._flights:
            self.acks_refused += 1
            return
        waited_for = self._open_since is None
        departure = self._settle(sequence, now)
        self._progress_at, self._stalls = now, 0
        self._steer(departure, now, waited_for=waited_for)
        if not self._is_open(now):
            self._open_since = None
        elif self._open_since is None:
            self._open_since = now

    def next_wake(self, now: float, *, urgent: bool = False) -> float | None:
        """When room may appear without an acknowledgement; None when there is room, or nothing
        but an acknowledgement brings it."""
        if self._open_bytes(now, urgent) >= self._piece_bytes:
            at = self.budget.room_at(self._piece_bytes, now, urgent=urgent)
            at = at if urgent else max(at, self._paced_until)
            return at if at > now else None
        wake_at = self._stall_at
        if self._ramp_bytes is None:
            wake_at = min(wake_at, self._phase_ends(now))
        return max(now, wake_at)

    def reset(self, now: float) -> None:
        """The connection was made anew: what was in flight is gone, the estimate stays."""
        self._flights.clear()
        self._urgent_bytes = 0
        self._open_since = self._paced_until = -math.inf
        self._progress_at, self._stalls = now, 0
        self.estimator.forget_in_flight(now)

    def remembered(self) -> LinkMemory:
        """What to start from when this peer is met again."""
        return LinkMemory(self.estimator.rate_bytes_per_s, self.estimator.base_rtt_s)

    def snapshot(self) -> LinkSnapshot:
        """The link as users see it."""
        return LinkSnapshot(
            rate_mbps=self.estimator.rate_bytes_per_s * 8e-6,
            rtt_ms=self.estimator.base_rtt_s * 1e3,
            queueing_delay_ms=self.estimator.queueing_delay_s * 1e3,
            in_flight_bytes=self.in_flight_bytes,
            chunk_bytes=self.chunk_bytes,
            foreign_upload=self.foreign_upload,
            acks_refused=self.acks_refused,
        )

    # -- the window -----------------------------------------------------------------------------

    def _open_bytes(self, now: float, urgent: bool) -> float:
        """What the window leaves, or what urgent data may overdraw it by."""
        left = self._window(now) - self.in_flight_bytes
        return max(left, self._urgent_extra - self._urgent_bytes) if urgent else left

    def _window(self, now: float) -> float:
        rate, chunk = self.estimator.rate_bytes_per_s, self.chunk_bytes
        product = rate * self.estimator.base_rtt_s
        match self._phase(now):
            case Phase.RAMP:
                return self._ramp_bytes or 0.0
            case Phase.PROBE:
                window = product + chunk + max(PROBE_S * rate, self._piece_bytes)
            case Phase.DRAIN:
                window = max(product, chunk)
            case Phase.CRUISE:
                window = product + chunk
        if product < SHORT_CHUNKS * chunk:
            window += self._piece_bytes
        return max(window, self._foreign_share(now))

    def _pace(self, now: float) -> float:
        rate = self.estimator.rate_bytes_per_s
        round_s = self.estimator.base_rtt_s + self.chunk_bytes / rate
        return PACE_GAIN * self._window(now) / round_s

    def _phase(self, now: float) -> Phase:
        if self._ramp_bytes is not None:
            return Phase.RAMP
        rounds = (now - self._cycle_at) / self._round_s
        if rounds < 1:
            return Phase.PROBE
        return Phase.DRAIN if rounds < 2 else Phase.CRUISE

    def _phase_ends(self, now: float) -> float:
        ends = (self._round_s, 2 * self._round_s, self._cycle_s)
        return next((at for s in ends if (at := self._cycle_at + s) > now), now)

    def _steer(self, departure: Departure, now: float, *, waited_for: bool) -> None:
        """Begin, continue or end a ramp after an acknowledgement."""
        if self._ramp_bytes is None:
            if self.estimator.headroom:
                self._ramp_bytes, self._ramp_queued = self._window(now), False
        elif self.estimator.queueing_delay_s > RAMP_QUEUE_S:
            if self._ramp_queued:
                self._end_ramp(now)
            self._ramp_queued = True
        else:
            self._ramp_queued = False
            if waited_for:
                self._ramp_bytes = self._ramped(departure.size_bytes)

    def _ramped(self, acknowledged_bytes: int) -> float:
        """The ramp's window after so many acknowledged bytes: a factor for each round."""
        rtt_s = self.estimator.base_rtt_s
        growth = max(math.pow(RAMP_PER_S, rtt_s) - 1, RAMP_ROUND_S / rtt_s)
        grown = (self._ramp_bytes or 0.0) + acknowledged_bytes * min(growth, RAMP_ROUND_MAX - 1)
        delivered = self.estimator.rate_bytes_per_s * rtt_s
        return max(
            self._ramp_bytes or 0.0, min(grown, RAMP_LEAD * delivered + 4 * self.chunk_bytes)
        )

    def _end_ramp(self, now: float) -> None:
        """Believe what is delivered now, and drain what the ramp queued."""
        self._ramp_bytes = None
        self.estimator.forget_maxima(now)
        self._cycle_at = now - self._round_s

    def _foreign_share(self, now: float) -> float:
        """The window that we hold against a foreign upload; 0 without one, and at rechecks."""
        estimator = self.estimator
        if not estimator.foreign.noticed:
            return 0.0
        held_s = (now - estimator.foreign.noticed_at) % FOREIGN_RECHECK_S
        loaded_s = estimator.base_rtt_s + min(estimator.queueing_delay_s, FOREIGN_QUEUE_S_MAX)
        if held_s > FOREIGN_RECHECK_S - FOREIGN_RECHECK_ROUNDS * loaded_s:
            return 0.0
        return FOREIGN_SHARE * estimator.capacity_bytes_per_s * loaded_s

    @property
    def _urgent_extra(self) -> float:
        return max(URGENT_CHUNKS * self.chunk_bytes, URGENT_BYTES_MIN)

    @property
    def _round_s(self) -> float:
        return max(ROUND_S_MIN, self.estimator.base_rtt_s + CHUNK_S)

    @property
    def _cycle_s(self) -> float:
        return max(3 * self._round_s, min(CYCLE_ROUNDS * self._round_s, CYCLE_S_MAX))

    @property
    def _piece_bytes(self) -> int:
        """The least that is worth sending; a tiny upload cap never fits a quarter chunk."""
        return max(1, min(int(PIECE_SHARE * self.chunk_bytes), self.budget.piece_bytes_max() // 2))

    @property
    def _stall_at(self) -> float:
        if not self._flights:
            return math.inf
        loaded_s = self.estimator.base_rtt_s + self.estimator.queueing_delay_s
        wait_s = max(STALL_S_MIN, STALL_ROUNDS * loaded_s)
        return self._progress_at + wait_s * (1 << self._stalls)

    def _stalled(self, now: float) -> bool:
        return now >= self._stall_at

    def _is_open(self, now: float) -> bool:
        return self._open_bytes(now, False) >= self._piece_bytes and now >= self._paced_until

    def _settle(self, sequence: int, now: float) -> Departure:
        """Take the chunk and all before it out of flight."""
        while True:
            oldest = next(iter(self._flights))
            departure, urgent = self._flights.pop(oldest)
            self._urgent_bytes -= departure.size_bytes if urgent else 0
            self.estimator.acknowledged(departure, now)
            if oldest == sequence:
                return departure
