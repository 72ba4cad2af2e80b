"""What was asked with each key on each day, in the file of the keys, and how much a day allows.

Days are UTC's, as invoices and quotas are easiest to read everywhere. A day's row keeps the name
that its key had, so that the record outlives the key.
"""

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

DAYS_KEPT = 400
"""A year and the month in which somebody looks at it."""

DAY_S = 86_400.0

TABLE = """
    CREATE TABLE usage_by_day (
        day TEXT NOT NULL,
        key_id TEXT NOT NULL,
        name TEXT NOT NULL,
        requests INTEGER NOT NULL DEFAULT 0,
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        answer_tokens INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (day, key_id)
    )
    """
"""The table as it was first; the migrations of the keys add later columns."""

COLUMNS = "day, key_id, name, requests, prompt_tokens, answer_tokens, refused"


@dataclass(frozen=True, slots=True)
class DayUsage:
    """Sums of one key on one day."""

    day: str
    """Date of UTC, ISO 8601."""
    key_id: str
    name: str
    """Name that the key had when it was last used on that day."""
    requests: int
    prompt_tokens: int
    answer_tokens: int
    refused: int = 0
    """Requests that were over a limit of the key, which `requests` counts too."""


def day_of(unix_s: float) -> str:
    """UTC's date at a time in seconds since 1970."""
    return datetime.fromtimestamp(unix_s, UTC).date().isoformat()


def until_next_day_s(unix_s: float) -> float:
    """Seconds until UTC's midnight."""
    return DAY_S - unix_s % DAY_S


def add_to_day(
    db: sqlite3.Connection, now: float, sums: Mapping[str, tuple[int, int, int, int]]
) -> None:
    """Add requests, prompt tokens, answer tokens and refusals of keys, by their id, to the day of
    `now`.

    Keys that are not known are left out; days of more than `DAYS_KEPT` ago are forgotten.
    """
    day = day_of(now)
    db.executemany(
        f"INSERT INTO usage_by_day ({COLUMNS}) "
        "SELECT ?, id, name, ?, ?, ?, ? FROM keys WHERE id = ? "
        "ON CONFLICT (day, key_id) DO UPDATE SET name = excluded.name, "
        "requests = requests + excluded.requests, "
        "prompt_tokens = prompt_tokens + excluded.prompt_tokens, "
        "answer_tokens = answer_tokens + excluded.answer_tokens, "
        "refused = refused + excluded.refused",
        [(day, *given, key_id) for key_id, given in sums.items()],
    )
    db.execute("DELETE FROM usage_by_day WHERE day < ?", (day_of(now - DAYS_KEPT * DAY_S),))


def days_since(db: sqlite3.Connection, since: float) -> list[DayUsage]:
    """Rows of the days from that of `since` on, the oldest first."""
    rows = db.execute(
        f"SELECT {COLUMNS} FROM usage_by_day WHERE day >= ? ORDER BY day, name, key_id",
        (day_of(since),),
    )
    return [DayUsage(*row) for row in rows]
