"""What an operator may wish of a key: the bounds of its values."""

from molink.errors import UserError
from molink_scheduler.request import PRIORITY_MAX

NAME_MAX = 60

RATE_PER_MIN_MAX = 1_000_000

TOKENS_PER_DAY_MAX = 10**12

CONCURRENCY_MAX = 1024
"""Most requests of a key at the same time: a caller may have so many sequences."""

EXPIRES_S_MAX = 10 * 366 * 24 * 3600.0


def check_wishes(
    name: str, rate_per_min: int | None, expires_s: float | None, priority: int
) -> None:
    """Raise UserError for what no key can be: its name, rate, end or priority."""
    if len(name) > NAME_MAX or not (name.isprintable() and name == name.strip()):
        raise UserError(f"A key's name has at most {NAME_MAX} characters on one line (--name).")
    if rate_per_min is not None and not 1 <= rate_per_min <= RATE_PER_MIN_MAX:
        raise UserError(f"A key's rate is 1 to {RATE_PER_MIN_MAX} requests a minute (--rate).")
    if expires_s is not None and not 0 < expires_s <= EXPIRES_S_MAX:
        raise UserError("A key expires within ten years, or never (--expires).")
    if abs(priority) > PRIORITY_MAX:
        raise UserError(f"A key's priority is -{PRIORITY_MAX} to {PRIORITY_MAX} (--priority).")


def check_limits(tokens_per_day: int | None, concurrency: int | None) -> None:
    """Raise UserError for a quota or a number of requests at a time that no key can have."""
    if tokens_per_day is not None and not 1 <= tokens_per_day <= TOKENS_PER_DAY_MAX:
        raise UserError(f"A key has 1 to {TOKENS_PER_DAY_MAX:,} tokens a day (--tokens-per-day).")
    if concurrency is not None and not 1 <= concurrency <= CONCURRENCY_MAX:
        raise UserError(f"A key has 1 to {CONCURRENCY_MAX} requests at a time (--concurrency).")
