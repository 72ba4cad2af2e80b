"""Detector of requests that a ring starves, from what whoever asks can tell without the head.

A head may answer some users and let others wait: tokens come all the time, and no sum of them shows
who gets none. But the order in which it is to compute prompts is known here as well
(`prompt_order`), and so is who came before whom. Two things no honest head does:

- One begins that came later and stands behind another that waits, again and again. Places are
  compared as if nothing of the one that waits were cached, and of the other all that is said to be.
- No rows of any prompt leave the tail for long, although some wait and there is room for all.

Time alone was rejected: a long prompt takes minutes, and so does waiting for room.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

STARVED_AFTER_S = 30.0
"""Patience beside what a prompt takes: a slow stage computes a span, a hop of a home line stalls,
and a ring that was idle for long wakes, in less."""

STALLED_S = 5.0
"""Seconds without a token after which a request that has had some counts as waiting."""

BEGUN_MAX = 64
"""Requests that began within one look and are compared with those that wait: the latest."""

NEWS_MAX_S = 3.0
"""Seconds without news of the tail after which nothing is known: the broker may be away."""

STARVED_MAX, STARVED_WITHIN_S = 3, 3600.0
"""Requests that a head may starve within so long."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Request without a token lately."""

    request_id: int
    """Id that rises in the order in which requests came."""
    place: tuple[int, int]
    """Priority and place in the ring's order if nothing of it is cached; the least goes first."""
    patience_s: float
    """Seconds that it may be passed, or stand, before it is starved."""


@dataclass(slots=True)
class LineWatch:
    """Watch over the requests of one ring, about once a second."""

    starved_count: int = 0
    """How many the ring has starved so far."""
    _begun: deque[tuple[int, tuple[int, int]]] = field(
        default_factory=lambda: deque(maxlen=BEGUN_MAX)
    )
    """Requests that have begun since the last look, and their places."""
    _since: dict[int, float] = field(default_factory=dict)
    """Time at which each waiting request was first seen to wait."""
    _passed_at: dict[int, float] = field(default_factory=dict)
    """Time at which each waiting request was first passed by one that had to wait for it."""
    _rows: float = -math.inf
    """The most rows of prompts that were seen to have left: counts err by what leaves in a moment,
    and then they do not rise."""
    _heard_at: float = -math.inf
    """Time of the last news of the tail's rows."""
    _flowed_at: float = 0.0
    """Time at which the rows last rose, or could not rise."""
    _starved_at: deque[float] = field(default_factory=lambda: deque(maxlen=STARVED_MAX))

    def began(self, request_id: int, place: tuple[int, int]) -> None:
        """A request has its first token; its priority, and its place by what was cached of it."""
        self._begun.append((request_id, place))

    def look(
        self, waiting: Iterable[Waiting], rows: int | None, now: float, *, has_room: bool
    ) -> set[int]:
        """The starved requests. `rows` of prompts have left the tail so far, None: there is no
        news of it. `has_room`: whether all that have come find room."""
        is_new = rows is not None and rows > self._rows
        if rows is not None:
            self._heard_at, self._rows = now, max(self._rows, rows)
        if is_new or not has_room or now - self._heard_at > NEWS_MAX_S:
            self._flowed_at = now
        known = {one.request_id: one for one in waiting}
        self._since = {one: self._since.get(one, now) for one in known}
        self._passed_at = {one: at for one, at in self._passed_at.items() if one in known}
        found = {one.request_id for one in known.values() if self._is_starved(one, now)}
        self._begun.clear()
        self.starved_count += len(found)
        self._starved_at.extend([now] * len(found))
        return found

    def _is_starved(self, one: Waiting, now: float) -> bool:
        if now - max(self._since[one.request_id], self._flowed_at) > one.patience_s:
            return True
        if not any(who > one.request_id and place > one.place for who, place in self._begun):
            return False
        return now - self._passed_at.setdefault(one.request_id, now) > one.patience_s

    def is_habit(self, now: float) -> bool:
        """Whether so many starved within an hour that it is the head's doing."""
        times = self._starved_at
        return len(times) == STARVED_MAX and now - times[0] <= STARVED_WITHIN_S

    def begin_anew(self) -> None:
        """The ring's counts begin anew, and so does the time for which requests have waited."""
        self._rows = -math.inf
        for seen in (self._begun, self._since, self._passed_at):
            seen.clear()
