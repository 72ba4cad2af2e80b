"""Pacer of a link: enough is under way to keep it busy, no more, so the sender owns the queue.

What a sender hands to a socket it can no longer order, and a home router holds seconds of prefill.
So no more is unacknowledged than the window of `LinkWindow`: a bandwidth-delay product, a chunk,
and what acknowledgements are usually late. Chunks leave a tenth faster than a window each round and
no faster, so that a prompt after a pause does not put a whole window into the router, and a ramp
over a long link sees its queue and not its bursts. Decode may overdraw the window by two chunks, so
that a few rows never wait for an acknowledgement. Sequence numbers rise, and an acknowledgement
stands for all before it.

Rejected, at 20 Mbps and 30 ms, urgent messages' p99 in ms and bulk Mbps: priority above a socket
buffer (7,874, 18.8), small kernel buffers (145, 3.9), plain TCP with a low-water mark (488, 18.4);
a window by acknowledgements gave 41 to 61 at 17.6 to 18.0. Pacing just under the rate as well
gained nothing while busy, which is why the window and not the pacing rate rules there.
"""

import math
from dataclasses import dataclass, field

from molink_scheduler.link.estimator import LinkEstimator
from molink_scheduler.link.facts import CAUTIOUS, Departure, LinkMemory, Repeat
from molink_scheduler.link.upload_budget import UploadBudget
from molink_scheduler.link.window import LinkWindow

__all__ = ["LinkPacer"]

URGENT_CHUNKS = 2.0
"""How much urgent data may be in flight although the window is full, in chunks."""

URGENT_BYTES_MIN = 16 * 1024
"""Urgent bytes that may be in flight at least: a decode step of two rows of a 4,096-wide model at
16 bits."""

PACE_SLACK_S = 0.004
"""A sender that woke late may make up for so much."""

PAUSE_S = 0.002
"""A window open for longer without a send is the sender's pause; less is the event loop's."""

STALL_S_MIN = 1.0
"""Shortest wait for an acknowledgement after which a link counts as stalled."""

STALL_ROUNDS = 4.0
"""Round trips, queueing included, that such a wait also lasts at least. One more chunk may go then,
and each further one after twice the wait: late acknowledgements must not stop a link. Where the
path is dead there is another connection (`LinkSilence`) before a third chunk."""


@dataclass(slots=True)
class LinkPacer:
    """Congestion control of one directed link: whether a chunk may leave, and its most bytes."""

    memory: LinkMemory | None = None
    budget: UploadBudget = field(default_factory=lambda: UploadBudget(None))
    """Shared by all links that leave this node."""
    is_spare: bool = False
    """Whether it takes of the budget only what all others leave."""
    acks_refused: int = field(init=False, default=0)
    """Acknowledgements of anything that is not in flight; they are dropped."""
    estimator: LinkEstimator = field(init=False)
    _flights: dict[int, tuple[Departure, bool]] = field(init=False, default_factory=dict)
    """Unacknowledged chunks by sequence number, in order, and whether they are urgent."""
    _newest_sequence: int = field(init=False, default=-1)
    _urgent_bytes: int = field(init=False, default=0)
    _window: LinkWindow = field(init=False)
    _open_since: float | None = field(init=False, default=-math.inf)
    """Since when something may have gone; None while the window is full."""
    _paced_until: float = field(init=False, default=-math.inf)
    """Prefill's next chunk leaves no sooner."""
    _progress_at: float = field(init=False, default=0.0)
    _stalls: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self.estimator = LinkEstimator(self.memory or CAUTIOUS)
        self._window = LinkWindow(self.estimator, self.budget)
        if self.memory is None:
            self._window.start_ramp()

    @property
    def chunk_bytes(self) -> int:
        """Size of a chunk at the rate or the upload cap, whichever is lower."""
        return self._window.chunk_bytes

    @property
    def foreign_upload(self) -> bool:
        """Whether somebody else seems to fill the same uplink."""
        return self.estimator.foreign.noticed

    @property
    def in_flight_bytes(self) -> int:
        """Bytes sent and not acknowledged."""
        return self.estimator.in_flight_bytes

    @property
    def oldest(self) -> int | None:
        """Number of the first chunk that is not acknowledged; None: nothing is in flight."""
        return next(iter(self._flights), None)

    @property
    def silent_since(self) -> float:
        """Time of the last acknowledgement, or when what is in flight began to leave, if later."""
        return self._progress_at

    @property
    def ack_due_s(self) -> float:
        """How long all that is in flight takes there, and its acknowledgement back."""
        estimator = self.estimator
        wire_s = estimator.in_flight_bytes / estimator.rate_bytes_per_s
        return estimator.base_rtt_s + estimator.queueing_delay_s + wire_s

    @property
    def drain_s(self) -> float:
        """How long the bottleneck is busy with what is in flight and one chunk more."""
        estimator = self.estimator
        rate = estimator.rate_bytes_per_s
        queued_s = (estimator.in_flight_bytes + self.chunk_bytes) / rate - estimator.base_rtt_s
        return max(queued_s, self.chunk_bytes / rate)

    def sendable_bytes(self, now: float, *, urgent: bool = False) -> int:
        """Most bytes that the next chunk may have; 0: wait.

        The window says whether a chunk may leave, the upload budget how long it may be; within that
        its size is the queue's to choose.
        """
        self._window.tick(now)
        is_open = self._open_bytes(now, urgent) >= self._window.piece_bytes
        is_due = urgent or now >= self._paced_until
        if not (is_open and is_due) and not self._stalled(now):
            return 0
        sendable = self.budget.sendable_bytes(now, urgent=urgent, spare=self.is_spare)
        return sendable if sendable >= self._least_bytes(urgent) else 0

    def on_sent(self, sequence: int, size_bytes: int, now: float, *, urgent: bool = False) -> None:
        """A chunk was handed to the connection; sequence numbers rise."""
        assert sequence > self._newest_sequence, "sequence numbers rise"
        # What may still be acknowledged is waited for from its first chunk on.
        if not self._flights:
            self._progress_at = now
        elif self._stalled(now):
            self._stalls += 1
        paused = self._open_since is not None and now - self._open_since > PAUSE_S
        departure = self.estimator.on_sent(size_bytes, now, paused=paused)
        self._flights[sequence] = (departure, urgent)
        self._newest_sequence = sequence
        self._urgent_bytes += size_bytes if urgent else 0
        self.budget.on_sent(size_bytes, now)
        # Prefill's next chunk leaves when this one has left at the pacing rate; a sender that woke
        # late may catch up a little.
        earliest = max(self._paced_until, now - PACE_SLACK_S)
        self._paced_until = earliest + size_bytes / self._window.pacing_rate(now)
        self._open_since = self._opens_at(now)

    def on_ack(self, sequence: int, now: float) -> bool:
        """The far end has this chunk and all before it; False, and counted, for a number that is
        not in flight."""
        if sequence not in self._flights:
            self.acks_refused += 1
            return False
        waited_for = self._open_since is None or self._open_since > now
        departure = self._ack_up_to(sequence, now)
        self._progress_at, self._stalls = now, 0
        self._window.update_ramp(departure, now, waited_for=waited_for)
        opens_at = self._opens_at(now)
        if opens_at is None or self._open_since is None:
            self._open_since = opens_at
        return True

    def next_wake(self, now: float, *, urgent: bool = False) -> float | None:
        """Time when a chunk may leave without another acknowledgement; None: one may leave now."""
        if self._open_bytes(now, urgent) >= self._window.piece_bytes:
            least, spare = self._least_bytes(urgent), self.is_spare
            at = self.budget.sendable_at(least, now, urgent=urgent, spare=spare)
            at = at if urgent else max(at, self._paced_until)
            return at if at > now else None
        return max(now, min(self._stall_at, self._window.phase_ends(now)))

    def pause_until(self, until: float) -> None:
        """Prefill pauses until then for a decode step: a pause of ours, but no lack of demand.

        What leaves afterwards may lower the estimate; if it counted as sent after a pause, a mild
        drop of the rate would not be learned for as long as decode steps go on.
        """
        if self._open_since is not None:
            self._open_since = max(self._open_since, until)

    def take_unacknowledged(self, first: int, now: float) -> list[Repeat]:
        """The far end has all chunks before number `first`, and the others are lost or not: nothing
        is in flight now, and these must leave once more, in this order. The estimate stays."""
        lost = [
            Repeat(sequence, departure.size_bytes, urgent)
            for sequence, (departure, urgent) in self._flights.items()
            if sequence >= first
        ]
        if lost:
            self._newest_sequence = lost[0].sequence - 1
        self._flights.clear()
        self._urgent_bytes = 0
        self._open_since = self._paced_until = -math.inf
        self._progress_at, self._stalls = now, 0
        self.estimator.forget_in_flight(now)
        return lost

    def path_changed(self, now: float) -> None:
        """The connection takes another path to the same peer; nothing may be in flight.

        The round trip of the old path would be learned as a queue on a longer one, and its rate is
        too much for a slower one, so all begins as with a peer never met. A rate that was lower
        than what one would begin with there stays: it may well be the uplink's, which both share.
        """
        assert not self._flights, "what is in flight would be acknowledged on the old path"
        rate = min(self.estimator.rate_bytes_per_s, CAUTIOUS.rate_bytes_per_s)
        self.estimator = LinkEstimator(LinkMemory(rate, CAUTIOUS.rtt_s))
        self._window = LinkWindow(self.estimator, self.budget)
        self._window.start_ramp()
        self._open_since = self._paced_until = -math.inf
        self._progress_at, self._stalls = now, 0

    def _least_bytes(self, urgent: bool) -> int:
        """Bytes that the upload budget must have before anything leaves: a whole chunk of prefill,
        a piece of decode, and under a tiny cap, whose bucket never holds either, half of that."""
        wanted = self._window.piece_bytes if urgent else self.chunk_bytes
        most = self.budget.sendable_bytes_max(urgent=urgent, spare=self.is_spare)
        return max(1, min(wanted, most // 2))

    def _open_bytes(self, now: float, urgent: bool) -> float:
        """What is left of the window, or what urgent data may overdraw it by."""
        left = self._window.bytes_at(now) - self.estimator.in_flight_bytes
        return max(left, self._urgent_extra - self._urgent_bytes) if urgent else left

    @property
    def _urgent_extra(self) -> float:
        return max(URGENT_CHUNKS * self.chunk_bytes, URGENT_BYTES_MIN)

    @property
    def _stall_at(self) -> float:
        if not self._flights:
            return math.inf
        loaded_s = self.estimator.base_rtt_s + self.estimator.queueing_delay_s
        wait_s = max(STALL_S_MIN, STALL_ROUNDS * loaded_s)
        return self._progress_at + wait_s * ((2 << self._stalls) - 1)

    def _stalled(self, now: float) -> bool:
        return now >= self._stall_at

    def _opens_at(self, now: float) -> float | None:
        """Time from which the pacing rate lets something go; None while the window is full."""
        is_open = self._open_bytes(now, False) >= self._window.piece_bytes
        return max(now, self._paced_until) if is_open else None

    def _ack_up_to(self, sequence: int, now: float) -> Departure:
        """Take the chunk and all before it out of flight."""
        while True:
            oldest = next(iter(self._flights))
            departure, urgent = self._flights.pop(oldest)
            self._urgent_bytes -= departure.size_bytes if urgent else 0
            self.estimator.on_ack(departure, now)
            if oldest == sequence:
                self._window.update()
                return departure
