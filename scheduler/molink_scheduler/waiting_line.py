"""Waiting line of a ring, closed when it is too long or those that run have become too slow.

A ring begins answers at some pace: as prompts are computed, and as those that end give their KV
back. So whoever comes waits for as many beginnings as there are before it. A beginning takes the
time in which somebody waited, divided by the answers that began in it; time without a line says
nothing. Measured so, the pace knows prompts, answers and links as they are.

Beginnings come in waves, and a flood is let in when the pace is high: those who came then waited
half as long again as was forecast. So what was forecast to each is compared with what came, and
forecasts are made longer by as much.

Nobody is refused for a short line, whatever its pace, and before a pace is known by a long one
only: a ring that has just begun should take its first users, however many come at once.

Where KV is plenty nobody waits: all begin, and all become slower, until no answer comes in time. So
a ring also takes no more once rounds follow each other much later than they have with fewer users.

Rejected: tokens that are outstanding over the ring's tokens per second, because most requests may
generate far more than they do. The latest wait, which tells how long the line was before a flood.

Pure: times are arguments.
"""

import math
from dataclasses import dataclass, field

WAIT_S = 8.0
"""Longest wait for the first token that is forecast for a newcomer: a line that is left alone is
over within ten seconds, and who would wait longer is better told so at once."""

LINE_MIN = 16
"""Waiting requests up to which none is refused: as many as a ring of home PCs often serves, and
whose prompts may come at once."""

LINE_UNMEASURED_MAX = 256
"""Most that wait on a ring whose pace is not known, where WAIT_S is allowed; more where more is."""

BEGINS_REMEMBERED = 64
"""Answers over which the pace is smoothed: micro-batches and ends come in bunches, as many as
decode together in a wave."""

FORECASTS_COMPARED = 32
"""Forecasts over which these are compared with what came. In a model of a ring at five times what
it can answer the longest waits became 10 s in place of 13.5 s, and with 128 no shorter."""

FORECAST_S_MIN = 1.0
"""A shorter one is not compared: the prompt's own time is most of such a wait."""

LONGER_MAX = 3.0
"""Most times by which forecasts are made longer: a wait while a stage was lost says little."""

BEGINS_MEASURED = 8
"""Number of begun answers from which on the pace counts as known."""

RUNNING_MIN = 16
"""Requests that may run, however slow they are."""

SLOWER_MAX = 2.5
"""Most times as long for a round as with few users: micro-batches keep devices and links
busy from about twice on, and more users then only share what there is."""

GAPS_REMEMBERED = 256
"""Gaps over which the time of a round is smoothed: some rounds of sixteen users, so that what comes
late and all at once counts as what it was on average."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Request that waits, and what was forecast to it."""

    since: float
    forecast_s: float | None
    """Wait that was forecast by the pace alone; None: the pace was not known."""


@dataclass(slots=True)
class WaitingLine:
    """Requests of one ring that wait or run, and the pace at which they get their tokens."""

    waiting: int = field(init=False, default=0)
    """Requests that wait for their first token."""
    running: int = field(init=False, default=0)
    """Requests between their first token and their last."""
    _begins: float = field(init=False, default=0.0)
    """Answers that have begun, older ones counting less."""
    _begun: int = field(init=False, default=0)
    """Answers that have begun, all of them."""
    _waited_s: float = field(init=False, default=0.0)
    """Time in which somebody waited, forgotten at the same rate."""
    _counted_at: float = field(init=False, default=0.0)
    _forecast_s: float = field(init=False, default=0.0)
    """Waits that were forecast to those who have begun since; older ones count less."""
    _came_s: float = field(init=False, default=0.0)
    """Waits that came for those forecasts; older ones count less."""
    _gaps: int = field(init=False, default=0)
    _gap_s: float = field(init=False, default=0.0)
    """Seconds of a round of one request, smoothed."""
    _least_gap_s: float = field(init=False, default=math.inf)

    def joined(self, now: float) -> Wait:
        """Count one more request that waits."""
        wait = Wait(now, self._pace_wait_s(now))
        self._count(now)
        self.waiting += 1
        return wait

    def left(self, now: float) -> None:
        """Take out a request that waited and has gone without a token."""
        self._count(now)
        self.waiting -= 1

    def began(self, wait: Wait, now: float) -> None:
        """Note that a request that waited has its first token."""
        self._compare(wait, now)
        kept = 1 - 1 / BEGINS_REMEMBERED
        self._waited_s, self._begins = kept * self._waited_s, kept * self._begins + 1
        self._begun += 1
        self._count(now)
        self.waiting -= 1
        self.running += 1

    def round_came(self, gap_s: float) -> None:
        """Note that a request that runs has more, so long after what it had before: one token, or
        several of a round with drafts. Text that can be guessed now and then, and not always, is no
        ring that has become slow."""
        self._gaps += 1
        self._gap_s += (gap_s - self._gap_s) / min(self._gaps, GAPS_REMEMBERED)
        if self._gaps >= GAPS_REMEMBERED:
            self._least_gap_s = min(self._least_gap_s, self._gap_s)

    def ended(self) -> None:
        """Take out a request that ran."""
        self.running -= 1

    @property
    def is_slow(self) -> bool:
        """Whether one more would only make all slower."""
        return self.running >= RUNNING_MIN and self._gap_s > SLOWER_MAX * self._least_gap_s

    def wait_s(self, now: float) -> float | None:
        """How long one that came now would wait; None: the pace is not known."""
        wait_s = self._pace_wait_s(now)
        if wait_s is None or not self._forecast_s:
            return wait_s
        return wait_s * min(LONGER_MAX, max(1.0, self._came_s / self._forecast_s))

    def _pace_wait_s(self, now: float) -> float | None:
        if self._begun < BEGINS_MEASURED:
            return None
        since_s = now - self._counted_at if self.waiting else 0.0
        return self.waiting * (self._waited_s + since_s) / self._begins

    def is_full(self, within_s: float, now: float) -> bool:
        """Whether one more is to be refused, because it would not begin or not go on in time."""
        if self.is_slow:
            return True
        if self.waiting < LINE_MIN:
            return False
        wait_s = self.wait_s(now)
        if wait_s is None:
            return self.waiting >= LINE_UNMEASURED_MAX * max(1.0, within_s / WAIT_S)
        return wait_s > within_s

    def _compare(self, wait: Wait, now: float) -> None:
        if wait.forecast_s is not None and wait.forecast_s >= FORECAST_S_MIN:
            kept = 1 - 1 / FORECASTS_COMPARED
            self._forecast_s = kept * self._forecast_s + wait.forecast_s
            self._came_s = kept * self._came_s + now - wait.since

    def _count(self, now: float) -> None:
        if self.waiting:
            self._waited_s += now - self._counted_at
        self._counted_at = now
