"""Choice of a link's path, and its moves from one path to another.

Direct is better: no third party's line, no detour. So the link is direct when an address answers,
goes through the relay when none does, and then tries the direct addresses again, less and less
often. Two things keep it from flapping, because each move costs the link a round trip without
traffic: an address must answer twice in a row before a relayed link moves to it, and a direct path
that has failed is left alone for a while that doubles with each failure. A path that has held for
an hour is forgiven its past.

Measured rates do not enter: whether the relay is quicker than a poor direct path is a question of
seconds, and the scheduler's pacer copes with either.

Pure: the time is an argument, in seconds of any clock that does not go back.
"""

from dataclasses import dataclass, field
from typing import Literal

NOTHING: Literal["none"] = "none"


@dataclass(frozen=True, slots=True)
class Path:
    """Path that a link takes."""

    kind: Literal["direct", "relay", "none"]
    address: str = ""
    """host:port to connect to; of a relayed link a port on loopback; empty: there is no path."""


@dataclass(frozen=True, slots=True)
class PathPeriods:
    """Waiting times of a chooser."""

    confirm_s: float = 2.0
    """Seconds between the two answers that a move needs."""
    retry_first_s: float = 30.0
    """Seconds from the first failed attempt to the next: a router or a mapping may be starting."""
    retry_max_s: float = 900.0
    """A connection attempt every quarter of an hour costs nothing, and a home whose router has
    learnt to map ports shall not wait longer."""
    lost_retry_s: float = 1.0
    """Instead of `retry_first_s` as long as there is no path at all."""
    cool_down_s: float = 120.0
    """Seconds after the first failure of a direct path; doubles with each."""
    cool_down_max_s: float = 3600.0
    steady_s: float = 3600.0
    """A direct path that has held so long has no failures behind it."""


@dataclass(slots=True)
class PathChooser:
    """Chooser of one link's path; `answered` and `unanswered` take what a try has found."""

    has_relay: bool
    periods: PathPeriods = PathPeriods()
    path: Path = Path(NOTHING)
    """Path in use."""
    next_try_at: float | None = 0.0
    """Time to try the direct addresses next; None: not needed."""
    _answers: int = field(default=0, init=False)
    """Answers in a row, since the link was last moved."""
    _failures: int = field(default=0, init=False)
    _retry_s: float = field(default=0.0, init=False)
    _moved_at: float = field(default=0.0, init=False)
    _not_before: float = field(default=0.0, init=False)
    """A direct path that has failed is not taken again before."""

    def answered(self, address: str, now: float) -> None:
        """A direct address has answered."""
        if self.path.kind == "direct":
            self.next_try_at = None
            return
        self._answers += 1
        if now < self._not_before or (self.path.kind == "relay" and self._answers < 2):
            self.next_try_at = max(now + self.periods.confirm_s, self._not_before)
            return
        self._move(Path("direct", address), now)
        self.next_try_at = None

    def unanswered(self, now: float) -> None:
        """Note that no direct address has answered."""
        if self.path.kind == "direct":
            self.next_try_at = None
            return
        self._answers = 0
        if self.path.kind == NOTHING and self.has_relay:
            self._move(Path("relay"), now)
        first_s = self.periods.retry_first_s if self.has_relay else self.periods.lost_retry_s
        self._retry_s = min(max(first_s, 2 * self._retry_s), self.periods.retry_max_s)
        self.next_try_at = max(now + self._retry_s, self._not_before)

    def failed(self, now: float) -> None:
        """The path in use does not carry the link, as the stage reports.

        A relayed link stays where it is until a direct address answers: they are tried at once,
        those that have failed before too, and one answer is enough.
        """
        if self.path.kind == "relay":
            self.next_try_at = self._not_before = now
            self._answers = 1
            return
        if self.path.kind == NOTHING:
            return
        if now - self._moved_at >= self.periods.steady_s:
            self._failures = 0
        self._failures += 1
        self._move(Path("relay") if self.has_relay else Path(NOTHING), now)
        self.next_try_at = self._not_before = now + self._cool_down_s()

    def _cool_down_s(self) -> float:
        """Seconds until the next try. Without a relay there is nothing better than to try again
        soon."""
        if not self.has_relay:
            return self.periods.lost_retry_s
        doubled = self.periods.cool_down_s * 2.0 ** (self._failures - 1)
        return min(doubled, self.periods.cool_down_max_s)

    def _move(self, path: Path, now: float) -> None:
        self.path = path
        self._answers = 0
        self._retry_s = 0.0
        self._moved_at = now
