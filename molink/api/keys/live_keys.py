"""The keys of a server that runs: found by their secret, limited, counted.

What `molink key` writes holds from the next request on: SQLite tells in microseconds whether
somebody else has written. What is asked is counted in memory and written every few seconds, by a
thread and over a connection of its own, since a disk may take its time.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

from molink.api.keys.daily_usage import DayUsage, day_of
from molink.api.keys.store import KEY_PREFIX, ApiKey, KeyStore, KeyUsage, digest_of
from molink.errors import ErrorGuard
from molink.report.requests import KeyReport
from molink.tasks import cancel, spawn
from molink.token_bucket import TokenBucket

PERIOD_S = 10.0
"""Seconds of usage that a server forgets when it is killed."""

SECRET_CHARS_MAX = 200
"""Most characters of a secret that are hashed: longer than any key."""


REFUSED_AGAIN_S = 60.0
"""Seconds after which it is news again that a key is used that opens nothing any more."""


@dataclass(frozen=True, slots=True)
class RateState:
    """How a key stands with its limit, after a request."""

    allowed: bool
    limit: int
    """Requests a minute, and at once."""
    remaining: int
    """Requests that may be sent now."""
    reset_s: float
    """Seconds until all of them may be sent again."""
    retry_s: float
    """Seconds until a request may be sent; 0: now."""


@dataclass(slots=True)
class LiveKeys:
    """Keys of a data directory, as a running server needs them."""

    store: KeyStore
    """Store that is only read; usage is written over a connection of its own."""
    clock: Callable[[], float] = time.time
    _known: dict[bytes, ApiKey] = field(default_factory=dict)
    _holds_keys: bool = True
    """Whether there are keys; true until the file was read: nobody is let in without one."""
    _buckets: dict[str, TokenBucket] = field(default_factory=dict)
    _usage: dict[str, KeyUsage] = field(default_factory=dict)
    _day: str = ""
    _written_today: dict[str, DayUsage] = field(default_factory=dict)
    """What is written down of this day, by the id of the key."""
    _refused_at: dict[str, float] = field(default_factory=dict)
    """When it was told last of each key that it is used and opens nothing, by its id."""
    _reading: ErrorGuard = field(default_factory=lambda: ErrorGuard("Reading the API keys"))
    _writing: ErrorGuard = field(default_factory=lambda: ErrorGuard("Writing what keys have used"))

    def find(self, secret: str) -> ApiKey | None:
        """The key with this secret, usable or not; None: nobody was ever given it."""
        if not secret.startswith(KEY_PREFIX) or len(secret) > SECRET_CHARS_MAX:
            return None
        self._refresh()
        return self._known.get(digest_of(secret))

    def holds_keys(self) -> bool:
        """Whether an operator has ever made a key here, usable or not; a command's own is none."""
        self._refresh()
        return self._holds_keys

    def has_usable(self) -> bool:
        """Whether any key of an operator's opens something."""
        self._refresh()
        durable = [key for key in self._known.values() if not key.is_temporary]
        return any(key.state(self.clock()) == "usable" for key in durable)

    def usage(self, key: ApiKey) -> KeyUsage:
        """Usage of a key that is not written yet: add to it."""
        return self._usage.setdefault(key.key_id, KeyUsage())

    def spend(self, key: ApiKey, now_s: float) -> RateState | None:
        """Take one request of the key's rate, if there is one; None: it has no limit.

        `now_s` is of a clock that only goes forward.
        """
        limit = key.rate_per_min
        if limit is None:
            return None
        bucket = self._buckets.setdefault(key.key_id, TokenBucket(limit / 60, limit))
        if allowed := bucket.level(now_s) >= 1:
            bucket.spend(1, now_s)
        level = bucket.level(now_s)
        retry_s = 0.0 if allowed else (1 - level) / bucket.rate_per_s
        return RateState(allowed, limit, int(level), (limit - level) / bucket.rate_per_s, retry_s)

    def quota_left(self, key: ApiKey) -> int | None:
        """Tokens that the key has left today, at least 0; None: it has no quota."""
        if key.tokens_per_day is None:
            return None
        return max(0, key.tokens_per_day - self.tokens_today(key))

    def tokens_today(self, key: ApiKey) -> int:
        """Tokens of prompts and answers that were used with the key today."""
        written, unwritten = self._today(key)
        tokens = unwritten.prompt_tokens + unwritten.answer_tokens
        return tokens + (written.prompt_tokens + written.answer_tokens if written else 0)

    def refused_today(self, key: ApiKey) -> int:
        """Requests of today that were refused as they were over a limit of the key."""
        written, unwritten = self._today(key)
        return unwritten.refused + (written.refused if written else 0)

    def _today(self, key: ApiKey) -> tuple[DayUsage | None, KeyUsage]:
        """What is written down of the key's day, and what is not yet."""
        if self._day != day_of(self.clock()):
            self._read_today()
        return self._written_today.get(key.key_id), self._usage.get(key.key_id, KeyUsage())

    def reports(self) -> tuple[KeyReport, ...]:
        """What those tell who watch: of each key that an operator has made and that may be used."""
        self._refresh()
        now = self.clock()
        keys = [one for one in self._known.values() if not one.is_temporary]
        return tuple(
            KeyReport(
                one.key_id,
                one.name,
                self.tokens_today(one),
                one.tokens_per_day,
                one.concurrency,
                self.refused_today(one),
            )
            for one in sorted(keys, key=lambda key: (key.name, key.key_id))
            if one.state(now) == "usable"
        )

    def is_news(self, key: ApiKey) -> bool:
        """Whether it is to be told that a key is used which opens nothing any more: once a
        minute."""
        now, told_at = self.clock(), self._refused_at.get(key.key_id)
        if told_at is not None and 0 <= now - told_at < REFUSED_AGAIN_S:
            return False
        self._refused_at[key.key_id] = now
        return True

    async def settle(self, store: KeyStore) -> None:
        """Write down the usage since the last call; usage that cannot be written is kept."""
        used = {key_id: one for key_id, one in self._usage.items() if one != KeyUsage()}
        given = {key_id: one.take() for key_id, one in used.items()}
        with self._writing:
            try:
                if given:
                    await asyncio.to_thread(store.add_usage, given, self.clock())
            except Exception:
                for key_id, one in given.items():
                    used[key_id].add(one)
                raise

    def _refresh(self) -> None:
        with self._reading:
            if self.store.changed_elsewhere():
                self._known = self.store.by_digest()
                self._read_today()
                self._holds_keys = not all(key.is_temporary for key in self._known.values())
                ids = {key.key_id for key in self._known.values()}
                self._buckets = {name: one for name, one in self._buckets.items() if name in ids}

    def _read_today(self) -> None:
        now = self.clock()
        self._day = day_of(now)
        self._written_today = {one.key_id: one for one in self.store.days_since(now)}


@asynccontextmanager
async def run_live_keys(data_dir: Path) -> AsyncIterator[LiveKeys]:
    """The keys in a data folder, with usage written down until the block ends.

    Raises UserError when they cannot be opened.
    """
    with closing(KeyStore.open(data_dir)) as read, closing(KeyStore.open(data_dir)) as written:
        keys = LiveKeys(read)

        async def settle_often() -> None:
            while True:
                await asyncio.sleep(PERIOD_S)
                await keys.settle(written)

        task = spawn(settle_often())
        try:
            yield keys
        finally:
            await cancel(task)
            await keys.settle(written)
