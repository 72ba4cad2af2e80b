"""Callers of the API, and each one's share of the server at the moment.

A caller is the holder of a key, or an address without one. What is bounded in all is bounded for
each caller too, so that one of them leaves room for others. A caller exists while a request of his
does: nothing is kept of who has gone.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from aiohttp import web

from molink.api.errors import RETRY_AFTER_S, ApiError
from molink.api.keys.live_keys import LiveKeys
from molink.api.keys.store import ApiKey, KeyUsage
from molink.households import household_of

SEQUENCES_MAX = 1024
"""Sequences of one caller at a time: a quarter of what a ring takes, and the largest request that
there can be (64 prompts with 16 choices each)."""

BODIES_BYTES_MAX = 128 * 2**20
"""Bytes of bodies that are being read, parsed or tokenized at a time: most take well under a
second, so only a flood comes this far."""

BODIES_PART = 4
"""Share of one caller, a quarter of them: the longest body alone."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Caller:
    """Key or address with requests under way, and what they hold."""

    name: str
    """Id of a key, or an address."""
    key_id: str | None = None
    """None: without a key."""
    usage: KeyUsage = field(default_factory=KeyUsage)
    """Count of the key's tokens; that of an address is never read."""
    has_tokens: bool = True
    """Whether the key had tokens of this day left when a batch of its owner was looked at last."""
    shares_cache: bool = False
    """Whether cached KV of other keys may serve it."""
    priority: int = 0
    """Priority of requests that state none; lower goes first."""
    priority_best: int | None = None
    """The lowest that requests may say; None: any."""
    concurrency: int | None = None
    """Requests that may generate at the same time; None: any number."""
    requests: int = 0
    """Requests that generate, each of one or more sequences."""
    sequences: int = 0
    body_bytes: int = 0

    @contextmanager
    def generating(self, sequences: int) -> Iterator[None]:
        """Hold the place of a request of so many sequences. Raises ApiError (429) when that is over
        what the key, or any caller, may have."""
        if (refusal := self._refusal(sequences)) is not None:
            self.usage.refused += 1
            raise refusal
        self.requests += 1
        self.sequences += sequences
        try:
            yield
        finally:
            self.requests -= 1
            self.sequences -= sequences

    def _refusal(self, sequences: int) -> ApiError | None:
        """Why a request of so many sequences may not begin; None: it may."""
        if self.concurrency is not None and self.requests >= self.concurrency:
            return _over(
                "concurrency_limit_exceeded",
                f"Your key has {self.requests} of {self.concurrency} requests under way: wait "
                "until one has ended.",
            )
        if self.sequences + sequences > SEQUENCES_MAX:
            return _over(
                "too_many_sequences",
                f"You have {self.sequences} sequences under way and may have {SEQUENCES_MAX}: wait "
                "until some have ended.",
            )
        return None


def _over(code: str, sentence: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(sentence, status=429, code=code, headers=headers)


@dataclass(slots=True)
class BodyBudget:
    """Bytes of bodies that the server holds for all callers together."""

    bytes_max: int = BODIES_BYTES_MAX
    held: int = 0

    def take(self, caller: Caller, size: int) -> None:
        """Hold `size` more bytes. Raises ApiError: 429 over the caller's share, 503 over all."""
        if caller.body_bytes + size > self.bytes_max // BODIES_PART:
            raise _too_much(429, "Your requests are too large together: send fewer at a time.")
        if self.held + size > self.bytes_max:
            raise _too_much(503, "The server reads too many requests: send yours again later.")
        caller.body_bytes += size
        self.held += size

    def give_back(self, caller: Caller, size: int) -> None:
        """Hold `size` bytes less."""
        caller.body_bytes -= size
        self.held -= size


def _too_much(status: int, sentence: str) -> ApiError:
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return ApiError(sentence, status=status, code="bodies_too_large", headers=headers)


@dataclass(slots=True)
class Callers:
    """Callers with requests under way, by name."""

    keys: LiveKeys | None = None
    shares_cache: bool = False
    """Whether users of different keys share cached KV."""
    budget: BodyBudget = field(default_factory=BodyBudget)
    _known: WeakValueDictionary[str, Caller] = field(default_factory=WeakValueDictionary)

    def find(self, address: str | None, key: ApiKey | None = None) -> Caller:
        """The holder of this key, or else the caller at this address."""
        name = key.key_id if key is not None else household_of(address)
        caller = self._known.get(name)
        if caller is None:
            caller = self._known[name] = Caller(name, shares_cache=self.shares_cache)
            if key is not None and self.keys is not None:
                caller.key_id, caller.usage = key.key_id, self.keys.usage(key)
                caller.priority, caller.concurrency = key.priority, key.concurrency
                if key.scope != "admin":
                    caller.priority_best = key.priority
        return caller


CALLERS = web.AppKey("callers", Callers)
CALLER = web.RequestKey("caller", Caller)


def caller_of(request: web.Request) -> Caller:
    """The caller that has sent a request, by its key or else its address."""
    if CALLER not in request:
        request[CALLER] = request.app[CALLERS].find(request.remote)
    return request[CALLER]
