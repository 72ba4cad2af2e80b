"""Idle room: how many sequences of batches may be computed beside what users have asked for.

Each ring is looked at by itself, since nobody is slowed by what another ring computes. While nobody
else is served there, as many as LINES_MAX. Beside others two things are measured:

- *Gaps.* The mean time between two tokens is kept for each number of sequences that decode at a
  time. As many go on beside n others as the gap is at most SLOWER times the gap of n alone; of a
  number that is not known one more is tried. Where gaps of others grow, it falls by itself.
- *Prompts.* Whatever begins, or begins again, has a prompt computed, and gaps of others that fall
  into that time are disturbed. DISTURBED of all gaps of others may be, half of the hundredth
  that their 99th percentile leaves out: a beginning waits until enough gaps have passed.

Nothing begins while somebody else waits for a first token, and who is left waiting in a line has
the room of all of them. A part of the ring's KV is left to whoever comes (KV_SHARE).

Pure: times are arguments, in seconds of one clock.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

LINES_MAX = 32
"""Sequences of batches at a time: ring and links of home PCs are full with fewer."""

BEGINNING_MAX, BEGINNING_TOKENS = 8, 1024
"""Sequences that have no token yet on a ring that nobody else uses, and tokens of their prompts
together where there is more than one: a prompt under way is not interrupted, so a newcomer waits
for these. One at a time left half of a pause of two seconds unused."""

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

KV_SHARE = 0.75
"""Share of a ring's KV beyond which nothing of ours begins: who comes shall not have to wait until
we have left, and answers grow."""


class Seen(NamedTuple):
    """A sequence as it is now."""

    key: int
    tokens: int
    last_token_at: float | None
    """None: it waits for its first token."""
    queued: bool = False
    """Whether its prompt is not begun either."""
    ring: int | None = None
    """Number of the ring that computes it; None: that is not known yet, it may be any."""
    kv_tokens: int = 0
    """Tokens of KV that it holds, or will with its prompt."""


@dataclass(slots=True)
class _Gap:
    mean_s: float = 0.0
    count: int = 0

    def add(self, gap_s: float, times: int) -> None:
        self.count += times
        self.mean_s += (gap_s - self.mean_s) * min(1.0, times / min(self.count, GAPS_REMEMBERED))


@dataclass(slots=True)
class RoomOfRing:
    """What is known of the room of one ring, looked at some times a second."""

    kv_tokens: float = math.inf
    """KV that the ring has."""
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
    _beginning: tuple[int, ...] = ()
    """Tokens of KV of each of ours that has no token yet."""
    _held_kv: int = 0
    """KV that all who are here hold."""

    def look(self, now: float, others: Sequence[Seen], own: Sequence[Seen]) -> None:
        """Take in what has come since the last look."""
        decoding = sum(one.last_token_at is not None for one in (*others, *own))
        for one in others:
            self._measure(one, decoding, is_other=True)
        for one in own:
            self._measure(one, decoding, is_other=False)
        self._met = {one.key: one for one in (*others, *own)}
        self._own, self._others = len(own), len(others)
        self._held_kv = sum(one.kv_tokens for one in (*others, *own))
        self._beginning = tuple(one.kv_tokens for one in own if one.last_token_at is None)
        if self._beginning:
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

    def may_begin(self, now: float, kv_tokens: int = 0) -> bool:
        """Whether one more of ours, which needs so much KV, may begin now. One for which there is
        never so much begins where nobody is."""
        if self._others_wait or self._own >= self.allowed(now):
            return False
        if self._met and self._held_kv + kv_tokens > KV_SHARE * self.kv_tokens:
            return False
        if not self._others:
            is_quiet = now - self._others_at >= QUIET_S
            return is_quiet and self._may_begin_beside_own(kv_tokens)
        return not self._beginning and self._credit >= self._cost

    def _may_begin_beside_own(self, kv_tokens: int) -> bool:
        tokens = sum(self._beginning) + kv_tokens
        is_little = len(self._beginning) < BEGINNING_MAX and tokens <= BEGINNING_TOKENS
        return is_little or not self._beginning

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


@dataclass(slots=True)
class IdleRoom:
    """What is known of the room of all rings of a service."""

    _rings: dict[int, RoomOfRing] = field(default_factory=dict)
    """Rings on which a sequence was seen."""
    _unknown: RoomOfRing = field(default_factory=RoomOfRing)
    """What stands for any ring while no sequence was seen on one."""
    _kv_tokens: Mapping[int, int] = field(default_factory=dict)

    def know(self, kv_tokens: Mapping[int, int]) -> None:
        """Take in the rings that there are, by number, and the KV of each."""
        self._kv_tokens = kv_tokens
        self._rings = {one: room for one, room in self._rings.items() if one in kv_tokens}
        for number, room in self._rings.items():
            room.kv_tokens = kv_tokens[number]

    def look(self, now: float, others: Sequence[Seen], own: Sequence[Seen]) -> None:
        """Take in what has come since the last look. Others who are on no ring yet may come to each
        of them."""
        for one in (*others, *own):
            if one.ring is not None:
                kv_tokens = self._kv_tokens.get(one.ring, math.inf)
                self._rings.setdefault(one.ring, RoomOfRing(kv_tokens))
        for number, room in self._by_number.items():
            here = [one for one in others if one.ring in (number, None)]
            room.look(now, here, [one for one in own if one.ring in (number, None)])

    def aside(self, now: float, own: Sequence[Seen]) -> set[int]:
        """Keys of ours that are to make room at once: of each ring the newest beyond what it
        allows. Ours are given in the order in which they were asked for."""
        leaving: set[int] = set()
        for number, room in self._by_number.items():
            here = [one.key for one in own if one.ring == number]
            leaving.update(here[room.allowed(now) :])
        return leaving

    def avoided(self, now: float, kv_tokens: int) -> frozenset[int] | None:
        """Rings on which one more of ours, which needs so much KV, is not to begin now; None: it is
        to begin nowhere."""
        may = {one: room.may_begin(now, kv_tokens) for one, room in self._by_number.items()}
        full = frozenset(one for one in self._rings if not may[one])
        return full if any(may.values()) else None

    @property
    def _by_number(self) -> dict[int | None, RoomOfRing]:
        rooms: dict[int | None, RoomOfRing] = {}
        rooms.update(self._rings.items())
        return rooms or {None: self._unknown}
