"""Hours of the week in which a PC is lent: `18:00-02:00`, `sat-sun 10:00-23:00`.

A week is a circle of 10,080 minutes, each entry an arc of it for each of its days; 18:00-02:00 of
Sunday ends on Monday. Times are the PC's own wall clock, without a zone: on the night the clock is
put forward the hours move with it, which is what their owner means.
"""

import re
from dataclasses import dataclass
from datetime import datetime, timedelta

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

DAY_MINUTES = 24 * 60
WEEK_MINUTES = 7 * DAY_MINUTES

HOURS_ALLOWED = '"18:00-02:00", with days if wanted: "mon-fri 18:00-02:00", "sat 00:00-24:00"'

ENTRY = re.compile(
    r"(?:(?P<first>[a-z]{3})(?:-(?P<last>[a-z]{3}))?\s+)?"
    r"(?P<start>\d{1,2}:\d{2})\s*-\s*(?P<end>\d{1,2}:\d{2})"
)


@dataclass(frozen=True, slots=True)
class LendingHours:
    """Hours of one line of the limits, such as `mon-fri 18:00-02:00`; built by `parse`."""

    days: tuple[int, ...]
    """Days on which it begins; 0 is Monday."""
    start_minute: int
    end_minute: int
    """Minute of the same day when later than the start, else of the next."""
    text: str
    """Line as its owner wrote it, in plain form."""

    @classmethod
    def parse(cls, text: str) -> "LendingHours":
        """Read what an owner wrote. Raises ValueError whose text completes a sentence."""
        found = ENTRY.fullmatch(text.strip().lower())
        if found is None:
            raise ValueError(f"{text!r} is not of that form")
        start, end = _minute(found["start"]), _minute(found["end"])
        if start == DAY_MINUTES:
            raise ValueError(f"{text!r} begins at 24:00: write 00:00")
        if start == end:
            raise ValueError(f"{text!r} ends where it begins: for the whole day write 00:00-24:00")
        days = _days(found["first"], found["last"])
        return cls(days, start, end, " ".join(text.lower().split()))

    @property
    def minutes(self) -> int:
        """Length on each of its days."""
        length = self.end_minute - self.start_minute
        return length if length > 0 else length + DAY_MINUTES

    def contains(self, minute_of_week: int) -> bool:
        """Whether that minute is lent."""
        starts = (day * DAY_MINUTES + self.start_minute for day in self.days)
        return any((minute_of_week - start) % WEEK_MINUTES < self.minutes for start in starts)


def is_open(hours: tuple[LendingHours, ...], now_local: datetime) -> bool:
    """Whether any entry lends now; without entries all hours are lent."""
    return _open(hours, _minute_of_week(now_local))


def next_change(hours: tuple[LendingHours, ...], now_local: datetime) -> datetime | None:
    """Time when `is_open` will next answer otherwise; None: never."""
    now = _minute_of_week(now_local)
    here = _open(hours, now)
    later = sorted({(edge - now) % WEEK_MINUTES or WEEK_MINUTES for edge in _edges(hours)})
    for ahead in later:
        if _open(hours, (now + ahead) % WEEK_MINUTES) != here:
            return now_local.replace(second=0, microsecond=0) + timedelta(minutes=ahead)
    return None


def _open(hours: tuple[LendingHours, ...], minute_of_week: int) -> bool:
    return not hours or any(entry.contains(minute_of_week) for entry in hours)


def _edges(hours: tuple[LendingHours, ...]) -> set[int]:
    """Minutes of the week at which an entry begins or ends."""
    starts = [
        (day * DAY_MINUTES + entry.start_minute, entry.minutes)
        for entry in hours
        for day in entry.days
    ]
    return {start for start, _ in starts} | {
        (start + length) % WEEK_MINUTES for start, length in starts
    }


def _minute_of_week(moment: datetime) -> int:
    return moment.weekday() * DAY_MINUTES + moment.hour * 60 + moment.minute


def _minute(text: str) -> int:
    hour, _, minute = text.partition(":")
    total = int(hour) * 60 + int(minute)
    if int(minute) > 59 or total > DAY_MINUTES:
        raise ValueError(f"{text} is not a time of day between 00:00 and 24:00")
    return total


def _days(first: str | None, last: str | None) -> tuple[int, ...]:
    if first is None:
        return tuple(range(7))
    for name in (first, last or first):
        if name not in DAYS:
            raise ValueError(f"{name!r} is not a day: write one of {', '.join(DAYS)}")
    start, end = DAYS.index(first), DAYS.index(last or first)
    return tuple((start + step) % 7 for step in range((end - start) % 7 + 1))
