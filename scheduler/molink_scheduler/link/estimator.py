"""Estimator of a link: how fast it is, and how long its bytes queue, right now.

Every chunk is acknowledged. The bytes that came back between two moments give a rate; the soonest
that any chunk came back, less the time that the chunk itself took on the wire, gives the base round
trip; what a chunk took beyond both is queueing. Rates are kept as the maximum of two seconds, as
BBR does, because a sender that pauses measures itself and not the link: such samples may raise the
estimate, never lower it, and an idle link keeps what it knew. A rate is counted over the longer of
the times that its bytes took to leave and to come back, so that acknowledgements that were held up
and come in a burst raise nothing. When every chunk queued for long over a tenth of a second, the
maximum is history, and the rate at which acknowledgements arrive now takes its place; one stall is
no such evidence. Lateness that our own bytes do not explain is the far end computing: the window
makes up for it, up to 10 ms.

Rejected: the plain minimum round trip with fixed 32 KB chunks. It contains the chunk's own time on
the wire at the old rate; after 20 -> 5 -> 20 Mbps that estimate stuck at 9 to 13 Mbps, where this
one learned the drop in 0.5 s and the rise in 1.7 s (measured, like the benchmark of pacing).
"""

import math
from collections import deque
from dataclasses import dataclass, field

from molink_scheduler.link.facts import (
    CAUTIOUS,
    RATE_FLOOR_BYTES_PER_S,
    RATE_MAX_BYTES_PER_S,
    RATE_MIN_BYTES_PER_S,
    Departure,
    LinkMemory,
)

__all__ = ["ForeignUpload", "LinkEstimator"]

RATE_WINDOW_S = 2.0
"""How long a maximum counts: long enough that among late acknowledgements a timely one is found,
short enough that a mild drop, one that builds no long queue, is learned in three seconds."""

RTT_WINDOW_S = 10.0
"""How long a minimum counts (BBR's choice); the pacer drains the queue more often than that."""

RTT_BUCKET_S = 1.0
"""One minimum is kept for each second, so that the window costs ten numbers."""

RTT_MIN_S = 1e-4
"""Below it clocks and threads are measured, not links."""

DROP_QUEUE_S = 0.040
"""Queueing that our own window cannot have caused: the link got slower, forget old maxima."""

DROP_QUEUE_BYTES = 16 * 1024
"""The same on a slow link: what a few small chunks queue there by themselves."""

DROP_LASTS_S = 0.1
"""Time that such queueing must last: a stall of the far end is over by then."""

LATENESS_SHARE = 1 / 32
"""Weight of one chunk in the smoothed lateness."""

LATENESS_S_MAX = 0.010
"""Lateness that the window makes up for at most: it is a queue where the cause is a slower link."""

LATENESS_S_CAP = 0.020
"""A stall counts as no more than this, or one would be felt for a hundred chunks."""

ARRIVAL_SPAN_S = 0.1
"""Shortest span over which acknowledgements are timed, so that a burst of them is no rate."""

ARRIVAL_ACKS_MIN = 3
"""Fewest acknowledgements that are timed, two gaps: large chunks of a fast link trickle once it is
slow."""

HEADROOM_S = 0.002
"""Bytes that came back this much sooner than the believed rate allows say that the link has more:
half of what a probe adds, and above the jitter of a wired link."""

HEADROOM_QUEUE_S = 0.005
"""Where a chunk queued for longer there is no headroom, however fast its neighbours came back."""

CAPACITY_QUEUE_S = 0.015
"""With less queueing than this the rate counts as what the link can do, else as our share."""

FOREIGN_RTT_FREEZE_S = 300.0
"""While somebody else fills the queue its delay is not learned as the base round trip; after five
minutes it is, because by then a longer route is as likely."""

FOREIGN_NOTICE_S = 0.025
"""Queueing that our few bytes in flight do not explain, from which on we blame a foreign upload."""

FOREIGN_CLEAR_S = 0.010
"""Queueing below which a foreign upload has ended."""

FOREIGN_NOTICE_AFTER_S = 1.0
"""A Wi-Fi stall is over by then."""

FOREIGN_CLEAR_AFTER_S = 0.3
"""Short, because a foreign upload that yields leaves its queue for good."""

FOREIGN_ACKS_MIN = 6
"""Verdicts rest on as many chunks at least."""

_RoundTrip = tuple[float, float, int, float]
"""(when, round trip, chunk size, rate believed then)."""


@dataclass(slots=True)
class ForeignUpload:
    """Detector of somebody else's upload on the line that our chunks leave by; only evidence that
    lasts counts."""

    noticed: bool = False
    noticed_at: float = 0.0
    _since: float = field(init=False, default=math.inf)
    _acks: int = field(init=False, default=0)

    def observe(self, queue_s: float, own_s: float, now: float, *, starved: bool) -> None:
        """Take in how long a chunk queued, and how much of that our own bytes explain."""
        if self.noticed:
            contrary, lasting_s = queue_s < FOREIGN_CLEAR_S, FOREIGN_CLEAR_AFTER_S
        else:
            contrary = starved and queue_s - own_s > FOREIGN_NOTICE_S
            lasting_s = FOREIGN_NOTICE_AFTER_S
        if not contrary:
            self._since, self._acks = math.inf, 0
            return
        self._since, self._acks = min(self._since, now), self._acks + 1
        if now - self._since >= lasting_s and self._acks >= FOREIGN_ACKS_MIN:
            self.noticed, self.noticed_at = not self.noticed, now
            self._since, self._acks = math.inf, 0


@dataclass(slots=True)
class LinkEstimator:
    """Estimate of one directed link, fed by acknowledgements: rate, base round trip, queueing."""

    memory: LinkMemory = CAUTIOUS
    in_flight_bytes: int = field(init=False, default=0)
    rate_bytes_per_s: float = field(init=False)
    """What the link delivers: the maximum of the window."""
    base_rtt_s: float = field(init=False)
    """Round trip of a tiny chunk that meets no queue."""
    jitter_s: float = field(init=False, default=0.0)
    """How much lateness of acknowledgements the window makes up for."""
    queueing_delay_s: float = field(init=False, default=0.0)
    """Queueing delay that the newest acknowledgement saw."""
    capacity_bytes_per_s: float = field(init=False)
    """The rate when last nothing queued: what the link can do when it is ours alone."""
    foreign: ForeignUpload = field(init=False, default_factory=ForeignUpload)
    headroom: bool = field(init=False, default=False)
    """Whether the newest chunk came back sooner than the believed rate allows."""
    _rates: deque[tuple[float, float]] = field(init=False, default_factory=deque)
    """(when, rate), falling: the first is the maximum of the window."""
    _round_trips: deque[_RoundTrip] = field(init=False, default_factory=deque)
    """The shortest of each second."""
    _arrivals: deque[tuple[float, int]] = field(init=False, default_factory=deque)
    """(when, delivered in total) of the newest acknowledgements without a pause between."""
    _delivered_bytes: int = field(init=False, default=0)
    _delivered_at: float = field(init=False, default=0.0)
    _delivered_sent_at: float = field(init=False, default=0.0)
    """When the newest acknowledged chunk had left."""
    _long_queue_since: float = field(init=False, default=math.inf)
    """Since when every chunk queued longer than our own window explains."""
    _lateness_s: float = field(init=False, default=0.0)
    """By how much acknowledgements come later than our own queue explains, smoothed."""
    _limited_until_bytes: int = field(init=False, default=0)
    """Chunks sent before so much is delivered belong to a flight that began with a pause."""

    def __post_init__(self) -> None:
        self.rate_bytes_per_s = self.memory.rate_bytes_per_s
        self.base_rtt_s = self.memory.rtt_s
        self.capacity_bytes_per_s = self.memory.rate_bytes_per_s

    def on_sent(self, size_bytes: int, now: float, *, paused: bool) -> Departure:
        """A chunk is handed to the link; `paused`: one could have gone before."""
        if not self._rates:
            self._rates.append((now, self.memory.rate_bytes_per_s))
        if paused:
            self._limited_until_bytes = self._delivered_bytes + self.in_flight_bytes + size_bytes
            self._arrivals.clear()
            if not self.in_flight_bytes:
                self._delivered_at = self._delivered_sent_at = now
        self.in_flight_bytes += size_bytes
        return Departure(
            size_bytes=size_bytes,
            sent_at=now,
            in_flight_bytes=self.in_flight_bytes,
            delivered_bytes=self._delivered_bytes,
            delivered_at=self._delivered_at,
            delivered_sent_at=self._delivered_sent_at,
            rate_bytes_per_s=self.rate_bytes_per_s,
            app_limited=self._delivered_bytes < self._limited_until_bytes,
        )

    def on_ack(self, chunk: Departure, now: float) -> None:
        """A chunk has arrived at the far end, as we know `now`."""
        self.in_flight_bytes -= chunk.size_bytes
        self._delivered_bytes += chunk.size_bytes
        self._delivered_at, self._delivered_sent_at = now, chunk.sent_at
        self._note_arrival(now)
        self._note_round_trip(chunk, now)
        rate_before = self.rate_bytes_per_s
        self._note_rate(chunk, now)
        if self.rate_bytes_per_s != rate_before:
            self._update_base_rtt()
        self._update_share(chunk, now)

    def forget_in_flight(self, now: float) -> None:
        """The connection was made anew: nothing under way will be acknowledged."""
        self.in_flight_bytes = 0
        self._delivered_at = self._delivered_sent_at = now
        self._long_queue_since = math.inf
        self._arrivals.clear()

    def _note_arrival(self, now: float) -> None:
        arrivals = self._arrivals
        arrivals.append((now, self._delivered_bytes))
        while len(arrivals) > ARRIVAL_ACKS_MIN and arrivals[1][0] <= now - ARRIVAL_SPAN_S:
            arrivals.popleft()

    def _note_round_trip(self, chunk: Departure, now: float) -> None:
        """Keep the shortest of each second, and see how long this chunk queued."""
        entry = (now, now - chunk.sent_at, chunk.size_bytes, self.rate_bytes_per_s)
        bare_s = self._bare(entry)
        # A rival's queue must not become our base round trip.
        if not (self.foreign.noticed and self._rtt_frozen(now)):
            self._keep_minimum(entry, bare_s, now)
        self.queueing_delay_s = max(0.0, bare_s - self.base_rtt_s)

    def _keep_minimum(self, entry: _RoundTrip, bare_s: float, now: float) -> None:
        trips = self._round_trips
        newest = trips[-1] if trips else None
        # One entry for each second: a new second begins, this one's minimum falls, or only what is
        # too old is forgotten.
        if newest is None or newest[0] <= now - RTT_BUCKET_S:
            trips.append(entry)
        elif bare_s <= self._bare(newest):
            trips[-1] = (newest[0], *entry[1:])
        elif trips[0][0] >= now - RTT_WINDOW_S:
            return
        while trips[0][0] < now - RTT_WINDOW_S and len(trips) > 1:
            trips.popleft()
        self._update_base_rtt()

    def _update_base_rtt(self) -> None:
        """Needed when a round trip was added or forgotten, or the rate has changed."""
        self.base_rtt_s = max(RTT_MIN_S, min([self._bare(entry) for entry in self._round_trips]))

    def _rtt_frozen(self, now: float) -> bool:
        return now - self.foreign.noticed_at < FOREIGN_RTT_FREEZE_S

    def _note_rate(self, chunk: Departure, now: float) -> None:
        # The sample: what was delivered while this chunk was under way, over the longer of the
        # times that it took to leave and to come back.
        sending_s = chunk.sent_at - chunk.delivered_sent_at
        took_s = max(now - chunk.delivered_at, sending_s, RTT_MIN_S)
        delivered_bytes = self._delivered_bytes - chunk.delivered_bytes
        sample = min(delivered_bytes / took_s, RATE_MAX_BYTES_PER_S)
        # Headroom: nothing queued, and the bytes came back sooner than the rate believed when the
        # chunk left allows.
        believed = self.rate_bytes_per_s
        sooner_s = delivered_bytes / chunk.rate_bytes_per_s - took_s
        unqueued = self.queueing_delay_s < HEADROOM_QUEUE_S + self.jitter_s
        self.headroom = unqueued and sooner_s > HEADROOM_S and sample > believed
        # A drop: every chunk has queued for longer than our own window explains, for a while.
        rate = max(believed, RATE_MIN_BYTES_PER_S)
        if self.queueing_delay_s > max(DROP_QUEUE_S, DROP_QUEUE_BYTES / rate):
            self._long_queue_since = min(self._long_queue_since, now)
        else:
            self._long_queue_since = math.inf
        arriving = self._arrival_rate(now)
        # After a drop the rate of arrivals replaces all maxima. Else a sample joins them; one taken
        # after a pause may raise the estimate but not lower it.
        if arriving is not None and now - self._long_queue_since >= DROP_LASTS_S:
            self._rates = deque([(now, min(arriving, RATE_MAX_BYTES_PER_S))])
        elif sample >= believed or not chunk.app_limited:
            self._keep_maximum(sample, now)
        self.rate_bytes_per_s = self._rates[0][1]

    def _keep_maximum(self, sample: float, now: float) -> None:
        """Add a sample to the falling list of which the first is the maximum of the window."""
        while self._rates and self._rates[-1][1] <= sample:
            self._rates.pop()
        self._rates.append((now, max(sample, RATE_FLOOR_BYTES_PER_S)))
        while self._rates[0][0] < now - RATE_WINDOW_S:
            self._rates.popleft()

    def _arrival_rate(self, now: float) -> float | None:
        """Rate of the newest acknowledgements; None when they are too few for one."""
        first_at, first_bytes = self._arrivals[0]
        if len(self._arrivals) < ARRIVAL_ACKS_MIN or now - first_at < ARRIVAL_SPAN_S:
            return None
        return max(RATE_FLOOR_BYTES_PER_S, (self._delivered_bytes - first_bytes) / (now - first_at))

    def _update_share(self, chunk: Departure, now: float) -> None:
        """Find out whether what we get is what the link can do, or what somebody else leaves us."""
        rate = max(self.rate_bytes_per_s, RATE_MIN_BYTES_PER_S)
        # Queueing that the bytes in flight before this chunk explain; the rest is lateness.
        own_s = max(0.0, (chunk.in_flight_bytes - chunk.size_bytes) / rate - self.base_rtt_s)
        late_s = max(0.0, self.queueing_delay_s - own_s)
        self._lateness_s += LATENESS_SHARE * (min(late_s, LATENESS_S_CAP) - self._lateness_s)
        self.jitter_s = min(self._lateness_s, LATENESS_S_MAX)
        # We are starved where the rate is under half of what it was when last nothing queued.
        starved = 2 * self.rate_bytes_per_s < self.capacity_bytes_per_s
        self.foreign.observe(self.queueing_delay_s, own_s, now, starved=starved)
        if self.queueing_delay_s < CAPACITY_QUEUE_S and not self.foreign.noticed:
            self.capacity_bytes_per_s = self.rate_bytes_per_s

    def _bare(self, entry: _RoundTrip) -> float:
        """A round trip without the chunk's own time on the wire.

        The rate believed then may have been too low: once a higher one is known it counts.
        """
        _, rtt_s, size_bytes, rate_then = entry
        return rtt_s - size_bytes / max(rate_then, self.rate_bytes_per_s, RATE_MIN_BYTES_PER_S)
