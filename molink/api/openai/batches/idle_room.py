"""Idle room: how many sequences of batches may be computed beside what users have asked for.

While nobody else is served, as many as LINES_MAX. Beside others two things are measured:

- *Gaps.* The mean time between two tokens is kept for each number of sequences that decode at a
  time. As many go on beside n others as the gap is at most SLOWER times the gap of n alone; of a
  number that is not known one more is tried. Where gaps of others grow, it falls by itself.
- *Prompts.* Whatever begins, or begins again, has a prompt computed, and gaps of others that fall
  into that time are disturbed. DISTURBED of all gaps of others may be, half of the hundredth
  that their 99th percentile leaves out: a beginning waits until enough gaps have passed.

Nothing begins while somebody else waits for a first token, and who is left waiting in a line has
the room of all of them.

Pure: times are arguments, in seconds of one clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LINES_MAX = 32
"""Sequences of batches at a time: ring and links of home PCs are full with fewer."""

BEGINNING_MAX = 1
"""Sequences that have no token yet, on a ring that nobody else uses: a prompt under way is not
interrupted, so a newcomer waits for these."""

SLOWER = 1.05
"""Times as long for a gap of others, at most."""

DISTURBED = 0.005

CREDIT_MAX = 200.0
"""Disturbed gaps that a long time without any allows at most."""

GAPS_KNOWN, GAPS_REMEMBERED = 20, 64
"""Gaps after which a mean counts, and over which it is smoothed."""

QUEUED_S = 0.5
"""Seconds after which a prompt that no head has begun waits for room, as far as can be seen: heads
report twice a second."""

QUIET_S = 0.1
"""Seconds without others after which their room is idle: between two requests of one client."""


class Seen(NamedTuple):
    """A sequence as it is now."""

    key: int
    tokens: int
    last_token_at: float | None
    """None: it waits for its first token."""
    queued: bool = False
    """Whether its prompt is not begun either."""


@dataclass(slots=True)
class _Gap:
    mean_s: float = 0.0
    count: int = 0

    def add(self, gap_s: float, times: int) -> None:
        self.count += times
        self.mean_s += (gap_s - self.mean_s) * min(1.0, times / min(self.count, GAPS_REMEMBERED))


@dataclass(slots=True)
class IdleRoom:
    """What is known of a service's room, looked at some times a second."""

    _gaps: dict[int, _Gap] = field(default_factory=dict)
    """Gaps by the number of sequences that decode."""
    _met: dict[int, Seen] = field(default_factory=dict)
    _credit: float = 0.0
    """Gaps of others that may be disturbed now."""
    _cost: float = 8.0
    """Gaps of others that a beginning disturbs, smoothed; a guess at first."""
    _disturbed: int = 0
    """Gaps that were disturbed since the last beginning."""
    _begins_until: float = -1.0
    """When one of ours last waited for its first token."""
    _others_at: float = -QUIET_S
    _others: int = 0
    _others_wait: bool = False
    _queued_since: float | None = None
    _own: int = 0
    _own_beginning: int = 0

    def look(self, now: float, others: Sequence[Seen], own: Sequence[Seen]) -> None:
        """Take in what has come since the last look."""
        decoding = sum(one.last_token_at is not None for one in (*others, *own))
        for one in others:
            self._measure(one, decoding, is_other=True)
        for one in own:
            self._measure(one, decoding, is_other=False)
        self._met = {one.key: one for one in (*others, *own)}
        self._own, self._others = len(own), len(others)
        self._own_beginning = sum(one.last_token_at is None for one in own)
        if self._own_beginning:
            self._begins_until = now
        elif self._disturbed:
            self._cost += (self._disturbed - self._cost) / 4
            self._disturbed = 0
        if others:
            self._others_at = now
        self._others_wait = any(one.last_token_at is None for one in others)
        is_queued = any(one.queued for one in others)
        self._queued_since = (self._queued_since or now) if is_queued else None

    def allowed(self, now: float) -> int:
        """How many of ours may be computed; the newest beyond make room at once."""
        if self._queued_since is not None and now - self._queued_since >= QUEUED_S:
            return 0
        if not self._others:
            return LINES_MAX
        alone_s = self._gap_s(self._others)
        if alone_s is None:
            return 0
        for fits in range(LINES_MAX):
            gap_s = self._gap_s(self._others + fits + 1)
            if gap_s is None:
                return fits + 1
            if gap_s > SLOWER * alone_s:
                return fits
        return LINES_MAX

    def may_begin(self, now: float) -> bool:
        """Whether one more of ours may begin now."""
        if self._others_wait or self._own >= self.allowed(now):
            return False
        if not self._others:
            is_quiet = now - self._others_at >= QUIET_S
            return is_quiet and self._own_beginning < BEGINNING_MAX
        return not self._own_beginning and self._credit >= self._cost

    def _measure(self, one: Seen, decoding: int, *, is_other: bool) -> None:
        before = self._met.get(one.key)
        if before is None or before.last_token_at is None or one.last_token_at is None:
            return
        count = one.tokens - before.tokens
        if count <= 0:
            return
        gap_s = (one.last_token_at - before.last_token_at) / count
        is_disturbed = self._begins_until > before.last_token_at
        if not is_disturbed:
            self._gaps.setdefault(decoding, _Gap()).add(gap_s, count)
        if is_other:
            self._credit = min(CREDIT_MAX, self._credit + DISTURBED * count - count * is_disturbed)
            self._disturbed += count * is_disturbed

    def _gap_s(self, sequences: int) -> float | None:
        """Mean time between two tokens where so many decode; None: not known."""
        gap = self._gaps.get(sequences)
        return gap.mean_s if gap is not None and gap.count >= GAPS_KNOWN else None
