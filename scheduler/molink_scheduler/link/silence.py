"""Steps against a path to the far end that is dead: another connection, another path, giving up.

A router that restarts, or forgets a connection, informs neither end: what is sent vanishes, and TCP
goes on trying for a quarter of an hour. What a link can see is that nothing is acknowledged any
more. So when bytes have been under way for several times as long as they should take, it opens a
new connection to the same address, beside the old one, and repeats there what is unacknowledged;
when that does not help, another path is asked for; when none is found in time, the link is given
up, and its ring with it.

Being wrong costs little: the old connection stays in use until the new one has answered, and what
arrives twice is dropped. Being wrong over and over would cost the link, therefore each further try
within one silence waits twice as long.

A link with nothing under way says hello all the same (`PeerWatch`), and a hello that is not
answered counts like a chunk that is not acknowledged: a dead path is mended before a user needs it.

No event reaches this watch when a chunk leaves or is acknowledged: it is asked when `check_at` has
come and reads then what the pacer knows. So a link that works pays one comparison for it.

Rejected: TCP's own time-out (TCP_USER_TIMEOUT), which knows nothing of the rate, and ends the
connection before there is another one; ZeroMQ's heartbeats for plain links too, which notice a dead
path only as long as pings are not delayed by the link's own traffic.
"""

import math
from dataclasses import dataclass, field

from molink_scheduler.link.pacer import LinkPacer

SILENT_ROUNDS = 4.0
"""Times what all that is in flight should take: as the pacer's stalls, a far end that computes or
an access point that is changed stays within it."""

SILENT_S_MIN = 2.0
"""Shortest silence that counts: TCP repeats a lost packet three or four times within two seconds,
and a stall of a home Wi-Fi is over by then."""

SILENT_S_MAX = 10.0
"""Longest silence that is waited for: the largest chunk of a link that has fallen to a tenth of a
Mbps takes half."""

RECONNECT_S = 4.0
"""Between two tries: a relayed connection with its handshake answers within three."""

LOST_S = 25.0
"""From the first try until the link is given up: six tries, or two other paths. A ring that is
built anew serves after about as long."""


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Command: open a new connection to the same address, and go on there once it answers."""

    ask_for_path: bool
    """Whether to report as well that another path is wanted."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Command: report that this link is lost."""

    silent_s: float
    """Since the first try."""


SilenceStep = Reconnect | GiveUp


@dataclass(slots=True)
class LinkSilence:
    """Watch over one directed link: notices that nothing is acknowledged, and says what to do."""

    lost_s: float = LOST_S
    """From the first try until it is given up."""
    check_at: float = field(init=False, default=-math.inf)
    """When to call `check` next."""
    _oldest: tuple[int | None, float | None] = field(init=False, default=(None, None))
    """The first chunk that was unacknowledged at the last check, else when the first hello left
    that was not answered."""
    _tries: int = field(init=False, default=0)
    """Since it was silent."""
    _tried_at: float = field(init=False, default=-math.inf)
    _first_tried_at: float = field(init=False, default=math.inf)
    _hello_at: float | None = field(init=False, default=None)

    @property
    def is_silent(self) -> bool:
        """Whether the link was silent for too long at the last check."""
        return self._tries > 0

    def check(
        self, oldest: int | None, pacer: LinkPacer, now: float, hello_at: float | None = None
    ) -> SilenceStep | None:
        """What to do now about the silence, if it is one; `oldest` is the number of the first
        unacknowledged chunk, None: there is none. `hello_at`: when the first hello left that is not
        answered."""
        self._hello_at = hello_at
        waits = (oldest, hello_at if oldest is None else None)
        if waits != self._oldest:
            self._oldest, self._tries, self._first_tried_at = waits, 0, math.inf
        lost_at = self._first_tried_at + self.lost_s
        if now >= lost_at:
            self.check_at = math.inf
            return GiveUp(now - self._first_tried_at)
        due_at = self._due_at(pacer, now)
        if now < due_at:
            self.check_at = min(due_at, lost_at)
            return None
        return self._try(pacer, now)

    def _try(self, pacer: LinkPacer, now: float) -> Reconnect:
        self._tries += 1
        self._tried_at = now
        self._first_tried_at = min(now, self._first_tried_at)
        self.check_at = min(self._due_at(pacer, now), self._first_tried_at + self.lost_s)
        return Reconnect(ask_for_path=self._tries > 1)

    def _due_at(self, pacer: LinkPacer, now: float) -> float:
        """Time when the next try is due if nothing is acknowledged before."""
        since = pacer.silent_since if pacer.in_flight_bytes else self._hello_at
        if since is None:  # What leaves from now on cannot be late sooner.
            return now + SILENT_S_MIN
        usual_s = max(SILENT_S_MIN, SILENT_ROUNDS * pacer.ack_due_s)
        patience_s = min(SILENT_S_MAX, usual_s * 2.0**self._tries)
        due_at = since + patience_s
        return max(due_at, self._tried_at + RECONNECT_S) if self._tries else due_at
