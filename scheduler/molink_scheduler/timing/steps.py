"""Step times of one stage: when decode comes next, how long a step takes, and what fits before.

*`DecodeClock`.* Each slot on the ring comes by once per round. So the next arrival is the last one
plus the round's usual length; a slot that has missed two rounds is taken to be empty. The smoothed
length follows a ring that slows down within a few rounds, and one late round does not move it far.
A visit that is more than a round late may have come after a pause, and says nothing; a second one
in a row says that the ring has become so slow. Without that, the clock of a ring whose
micro-batches were merged into one stayed at a third of the new round, and the worst count was taken
for the best.

*`StepProfile`.* A step costs a fixed part (weights read once, dispatch) and a part for each row.
Both drift: caches cool while a stage waits for its link, another program takes the core. So the
line t = t0 + n t1 is fitted by least squares over recent steps, each counting a little less with
every newer one. A table measured offline was rejected: it is wrong as soon as the owner of the PC
opens a browser.

*`PrefillBudget`.* Chunked prefill, with the budget taken from time instead of a token count: what
is left until the next micro-batch arrives, by this stage's own measured step times. When too little
is left for a useful piece the device waits for the decode step rather than make it wait; but never
twice in a row, so that prefill goes on however dense decode is.

Pure: times and durations are arguments.
"""

import math
from dataclasses import dataclass, field

DECODES_BEFORE_PREFILL_MAX = 8
"""Decode batches that may pass a waiting prefill span in a row: prefill is delayed by decode,
never starved."""

FORGET = 0.98
"""Weight of a step after one newer one: half is forgotten after 34 steps, four seconds of
decode."""

ROWS_SPREAD_MIN = 0.5
"""Variance of row counts below which no slope can be told from noise: then all of it is fixed."""


@dataclass(slots=True)
class StepProfile:
    """Weighted sums of recent steps; `rows` is n, `seconds` is t."""

    _weight: float = 0.0
    _rows: float = 0.0
    _seconds: float = 0.0
    _rows_rows: float = 0.0
    _rows_seconds: float = 0.0
    _line: tuple[float, float] | None = None
    """Fixed part and slope, until the next step is observed."""

    def observe(self, rows: int, seconds: float) -> None:
        """Take one step into account."""
        self._weight = self._weight * FORGET + 1.0
        self._rows = self._rows * FORGET + rows
        self._seconds = self._seconds * FORGET + seconds
        self._rows_rows = self._rows_rows * FORGET + rows * rows
        self._rows_seconds = self._rows_seconds * FORGET + rows * seconds
        self._line = None

    @property
    def known(self) -> bool:
        """Whether any step was seen."""
        return self._weight > 0

    @property
    def row_s(self) -> float:
        """Seconds of one more row, never negative."""
        return (self._line or self._fitted())[1]

    @property
    def fixed_s(self) -> float:
        """Seconds of a step before its rows count, never negative."""
        return (self._line or self._fitted())[0]

    def _fitted(self) -> tuple[float, float]:
        weight, rows, seconds = self._weight, self._rows, self._seconds
        if weight <= 0:
            return 0.0, 0.0
        mean, row_s = rows / weight, 0.0
        variance = self._rows_rows / weight - mean * mean
        if variance >= ROWS_SPREAD_MIN:
            covariance = self._rows_seconds / weight - mean * seconds / weight
            row_s = max(0.0, covariance / variance)
        self._line = line = max(0.0, (seconds - rows * row_s) / weight), row_s
        return line

    def step_s(self, rows: int) -> float:
        """Predicted seconds of a step of `rows` rows; 0 when nothing is known."""
        fixed_s, row_s = self._line or self._fitted()
        return fixed_s + rows * row_s

    def rows_within(self, budget_s: float) -> int:
        """Most rows whose step is predicted to end within `budget_s`."""
        fixed_s, row_s = self._line or self._fitted()
        if row_s <= 0.0:
            return 0 if fixed_s > budget_s else 1_000_000
        return max(0, int((budget_s - fixed_s) / row_s))


WEIGHT_OF_NEWEST_STEP = 0.1
"""Weight of a decode step in their smoothed time: one slow step hardly moves the forecast."""

WEIGHT_OF_NEWEST = 0.25
"""A step change is 90 % absorbed after eight rounds (1 - 0.75**8 = 0.90), about a second."""

ROUNDS_UNTIL_EMPTY = 2.0
"""A slot that has not been seen for so many rounds carries nothing any more."""

ROUNDS_UNTIL_PAUSE = 8.0
"""Rounds after which nobody was there: who asks for a word each minute is no slow ring."""

PAUSE_S_MIN = 2.0
"""Shortest pause: the first round may have been one of a millisecond, by accident."""


@dataclass(slots=True)
class DecodeClock:
    """Rhythm of the micro-batches that pass a stage, and how long it computes each."""

    step_s: float = field(init=False, default=0.0)
    """Smoothed time of a decode step."""
    _last_seen: dict[int, float] = field(default_factory=dict)
    """Time at which each micro-batch was last seen, in order of time."""
    _round_s: float | None = None
    _late: set[int] = field(default_factory=set)
    """Places whose last visit came more than a round late."""

    @property
    def round_s(self) -> float | None:
        """Smoothed time between two visits of one micro-batch; None before any came twice."""
        return self._round_s

    def seen(self, slot: int, now: float) -> None:
        """A micro-batch arrived; visits are told in order of time."""
        last, round_s = self._last_seen.pop(slot, None), self._round_s
        self._last_seen[slot] = now
        if last is None:
            return
        elapsed_s = now - last
        if round_s is None:
            self._round_s = elapsed_s
        elif elapsed_s <= ROUNDS_UNTIL_EMPTY * round_s:
            self._late.discard(slot)
            self._round_s = round_s + WEIGHT_OF_NEWEST * (elapsed_s - round_s)
        elif not self._is_pause(slot, elapsed_s, round_s):
            self._round_s = round_s + WEIGHT_OF_NEWEST * (elapsed_s - round_s)

    def due_at(self, now: float) -> float | None:
        """Time at which the next one is expected, at the earliest `now`; None when none circles."""
        due = self.next_due(now)
        return None if due is None else due[1]

    def next_due(self, now: float) -> tuple[int, float] | None:
        """The place of the next one beside its time."""
        if self._round_s is None:
            return None
        full_s = ROUNDS_UNTIL_EMPTY * self._round_s
        for slot, last in self._last_seen.items():
            if now - last <= full_s:
                return slot, max(now, last + self._round_s)
        return None

    def seen_before_s(self, slot: int, now: float) -> float | None:
        """Seconds since a micro-batch was seen in this round; None: it was not."""
        last, round_s = self._last_seen.get(slot), self._round_s
        if last is None or round_s is None or now - last > round_s:
            return None
        return now - last

    def computed(self, elapsed_s: float) -> None:
        """A decode step took so long."""
        self.step_s += WEIGHT_OF_NEWEST_STEP * (elapsed_s - self.step_s)

    def _is_pause(self, slot: int, elapsed_s: float, round_s: float) -> bool:
        """Whether nobody was on the slot for a part of the time since its last visit, which was
        late."""
        was_late = slot in self._late
        self._late.add(slot)
        return not was_late or elapsed_s > max(ROUNDS_UNTIL_PAUSE * round_s, PAUSE_S_MIN)


PREFILL_ROWS_MIN = 16
"""Least rows, a KV block: smaller steps cost nearly the same, as weights are read all the same."""

REPLAY_ROWS_MAX = 512
"""Rows of a step that stay on the stage, and need not be cut for a link: the longest step for which
a card's memory is known to suffice (`molink.engine.step.card_room`)."""

TURN_STEPS = 2.0
"""Decode steps as long as which prefill computes when it is its turn although decode is due: on a
ring of one PC decode always is, and of 16 rows for each eight steps no prompt comes to an end."""

WAIT_MAX_S = 0.02
"""Longest that a device idles for a decode step that is due; predictions are rarely better."""


def fed_rows_max(span_tokens: int | None, *, passed_on: bool) -> int | None:
    """Most rows of a step by which a stage is fed again, where spans have a length of their own or
    not. None: no more than of other steps, as they are `passed_on` to a stage that waits for
    them."""
    return None if passed_on else span_tokens or REPLAY_ROWS_MAX


@dataclass(slots=True)
class PrefillBudget:
    """Rows per prefill step of one stage."""

    rows_max: int
    """Most rows, also when no decode is running: more would not overlap with the next hop."""
    clock: DecodeClock
    profile: StepProfile
    """Measured times of this stage's prefill steps."""
    replay_rows_max: int | None = None
    """Most rows of a step whose rows stay on the stage; None: as of any other."""
    _waiting_since: float | None = None

    def rows_now(self, now: float, *, stay: bool = False, passed: bool = False) -> int:
        """Rows that may be computed now; 0 means: wait for the decode step that is about to
        come. `stay`: whether they go nowhere from here, `passed`: whether decode has gone before
        them so often that it is their turn."""
        rows_max = (self.replay_rows_max if stay else None) or self.rows_max
        due_at = self.clock.due_at(now)
        if due_at is None or not self.profile.known:
            return self._go(rows_max)
        until_due_s = due_at - now
        if passed:
            until_due_s = max(until_due_s, TURN_STEPS * self.clock.step_s)
        rows = min(rows_max, self.profile.rows_within(until_due_s))
        smallest = min(rows_max, PREFILL_ROWS_MIN)
        if rows >= smallest:
            return self._go(rows)
        if self._waiting_since is None:
            self._waiting_since = now
        if now < self._waiting_since + WAIT_MAX_S:
            return 0
        return self._go(smallest)

    @property
    def wait_until(self) -> float | None:
        """Time to ask again after a 0, if no message came before; None when nothing waits."""
        return None if self._waiting_since is None else self._waiting_since + WAIT_MAX_S

    def _go(self, rows: int) -> int:
        self._waiting_since = None
        return rows


LOAD_MEMORY_S = 5.0
"""A prompt counts for so long: users who send one every few seconds are a load, a first one is
not yet."""


@dataclass(slots=True)
class PrefillLoad:
    """Share of a device's time that prompts take, smoothed over some seconds."""

    _share: float = 0.0
    _at: float = 0.0

    def computed(self, seconds: float, now: float) -> None:
        """A prefill step of so many seconds ended."""
        self._share = self.share(now) + seconds / LOAD_MEMORY_S
        self._at = now

    def share(self, now: float) -> float:
        """About 0 to 1."""
        return self._share * math.exp(-max(0.0, now - self._at) / LOAD_MEMORY_S)
