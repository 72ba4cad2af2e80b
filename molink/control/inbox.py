"""Inbox of messages from the broker that wait to be read: fair between those who sent them.

The control plane is made of states, so of each topic only the last message waits: whoever repeats
itself gains nothing by it. Each sender has a budget of messages and bytes. What exceeds it is not
lost, it waits, unread and unparsed, until the budget allows; only who exceeds it by far is
overdrawn, and for the inbox's owner to mute. Nobody's messages wait behind another's.

When a message came is noted as it comes off the socket: a reader that is behind must not take
others for silent.

A single queue was here before: one node that repeated itself at 3 Mbit/s filled it, and all others
counted as lost.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from molink.control.messages.topics import (
    Received,
    UnreadableError,
    node_of,
    read_message,
    topic_of,
)
from molink.token_bucket import TokenBucket

log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 2**20
"""Most bytes of a coordinator's message, which may hold the config.json of a model."""
NODE_MESSAGE_BYTES_MAX = 2**16
"""Most bytes of a node's message; a report of 64 paths or a profile of 16 devices has 30 KB."""
WAITING_BYTES_MAX = 64 * 2**20
"""Bytes that wait from all senders together: ten times the states of a thousand nodes. What finds
no room is dropped, and the retained messages are requested again once there is some."""
SENDERS_MAX = 4096
"""Most senders, as many as a coordinator takes for nodes: names cost memory where somebody else's
broker lets anybody write under any."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Budget of one sender: what it may say on average, at once, and too much before it is
    overdrawn."""

    messages_per_s: float = math.inf
    messages_burst: float = math.inf
    bytes_per_s: float = math.inf
    bytes_burst: float = math.inf
    message_bytes_max: int = MESSAGE_BYTES_MAX


OVERDRAFT = 2.0
"""Bursts by which a sender may exceed its budget: held up, or back ten times within a minute, it
stays below this."""

UNLIMITED = Budget()
"""Budget of a node's own inbox: the coordinator may say what it likes."""

NODE_BUDGET = Budget(
    messages_per_s=11.0,
    messages_burst=50.0,
    bytes_per_s=2**16,
    bytes_burst=2**19,
    message_bytes_max=NODE_MESSAGE_BYTES_MAX,
)
"""Seven heartbeats a second at most, and four others: nodes were seen to say two of each. At once
all of its seven topics, each as large as may be, and the forty steps of a load that takes no
time."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """Message as it came off the socket."""

    path: str
    payload: bytes
    retained: bool
    at_s: float


@dataclass(slots=True)
class _Sender:
    """Sender's messages that wait, by topic, and the budget that it has left."""

    budget: Budget
    waiting: dict[str, Arrived] = field(default_factory=dict)
    muted: bool = False
    _messages: TokenBucket = field(init=False)
    _bytes: TokenBucket = field(init=False)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Give it a full budget."""
        budget = self.budget
        self._messages = TokenBucket(budget.messages_per_s, budget.messages_burst)
        self._bytes = TokenBucket(budget.bytes_per_s, budget.bytes_burst)

    def spend(self, size: int, now_s: float) -> bool:
        """Take a message from the budget; whether that is overdrawn now."""
        if self.budget is UNLIMITED:
            return False
        self._messages.spend(1, now_s)
        self._bytes.spend(size, now_s)
        return any(
            one.level(now_s) < -OVERDRAFT * one.burst for one in (self._messages, self._bytes)
        )

    def wait_s(self, now_s: float) -> float:
        """Seconds until the sender's messages may be read."""
        if self.budget is UNLIMITED:
            return 0.0
        return max(self._messages.wait_s(now_s), self._bytes.wait_s(now_s))


class Inbox:
    """Queue of what has arrived, for one reader; it outlives connections."""

    def __init__(
        self,
        budget: Budget = UNLIMITED,
        *,
        waiting_bytes_max: int = WAITING_BYTES_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.waiting_bytes_max = waiting_bytes_max
        self.invalid_count = 0
        """Messages that cannot be read."""
        self.dropped_count = 0
        """Messages that found no room, or came from a muted sender."""
        self.heard: dict[str, float] = {}
        """Sender to the time of its last message, of those that are not retained ones."""
        self._budget, self._clock = budget, clock
        self._senders: dict[str, _Sender] = {}
        self._waiting: dict[str, _Sender] = {}
        """Senders of whom a message waits."""
        self._waiting_bytes = 0
        self._overdrawn: dict[str, None] = {}
        self._arrived = asyncio.Event()
        self._missed = False

    def put(self, path: str, payload: object, *, retained: bool) -> None:
        """Add what has arrived; costs little, whatever it is."""
        if not isinstance(payload, bytes):
            return
        name, now_s = node_of(path) or "", self._clock()
        sender = self._sender(name)
        if sender is None:
            self._drop(is_missed=True)
            return
        if sender.spend(len(path) + len(payload), now_s):
            self._overdrawn[name] = None
        if sender.muted:
            self._drop(is_missed=False)
        elif topic_of(path) is None or len(payload) > self._budget.message_bytes_max:
            self._refuse(f"{path[:200]!r} with {len(payload)} bytes is no message of ours")
        elif payload:
            if not retained:
                self.heard[name] = now_s
            self._keep(name, sender, Arrived(path, payload, retained, now_s))

    def _sender(self, name: str) -> _Sender | None:
        if name not in self._senders and len(self._senders) < SENDERS_MAX:
            self._senders[name] = _Sender(self._budget)
        return self._senders.get(name)

    def _keep(self, name: str, sender: _Sender, message: Arrived) -> None:
        """Keep a message in place of an earlier one of its topic, at the end: it came last."""
        self._take(sender, message.path)
        if self._waiting_bytes + len(message.payload) > self.waiting_bytes_max:
            self._drop(is_missed=True)
            return
        sender.waiting[message.path] = message
        self._waiting[name] = sender
        self._waiting_bytes += len(message.payload)
        self._arrived.set()

    def _take(self, sender: _Sender, path: str) -> Arrived | None:
        if (message := sender.waiting.pop(path, None)) is not None:
            self._waiting_bytes -= len(message.payload)
        return message

    def _drop(self, *, is_missed: bool) -> None:
        self.dropped_count += 1
        self._missed |= is_missed

    def _refuse(self, why: str) -> None:
        self.invalid_count += 1
        level = logging.WARNING if self.invalid_count == 1 else logging.DEBUG
        log.log(level, "a control message is dropped: %s", why)

    # -- budgets ---------------------------------------------------------------------------------

    def take_overdrawn(self) -> list[str]:
        """Senders that have exceeded their budget by far since the last call; it is full again."""
        found, self._overdrawn = list(self._overdrawn), {}
        for name in found:
            self._senders[name].reset()
        return found

    def mute(self, name: str) -> None:
        """Drop what this sender has said and says from now on; what it says still costs it."""
        if (sender := self._sender(name)) is not None:
            sender.muted = True
            self._waiting.pop(name, None)
            for path in list(sender.waiting):
                self._take(sender, path)

    def unmute(self, name: str) -> None:
        """Listen to it again, with a full budget."""
        if (sender := self._senders.get(name)) is not None:
            sender.muted = False
            sender.reset()

    def forget(self, name: str) -> None:
        """A sender that is no more."""
        self.mute(name)
        self._senders.pop(name, None)
        self._overdrawn.pop(name, None)
        self.heard.pop(name, None)

    # -- reading ---------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make `changed` return, although nothing has arrived."""
        self._arrived.set()

    async def changed(self) -> None:
        """Wait until something may be read, or `wake`."""
        wait_s = self._wait_s()
        if wait_s is None:
            await self._arrived.wait()
        elif wait_s > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await self._arrived.wait()
        self._arrived.clear()

    def _wait_s(self) -> float | None:
        """Seconds until the first message that waits may be read; None when none waits."""
        now_s = self._clock()
        return min((one.wait_s(now_s) for one in self._waiting.values()), default=None)

    def has_missed(self) -> bool:
        """Whether messages found no room since this was last asked."""
        missed, self._missed = self._missed, False
        if missed:
            log.warning("%d control messages were dropped: too many waited", self.dropped_count)
        return missed

    def read(self) -> Iterator[Received]:
        """All that waits, may be read and can be: of each sender in turn."""
        for name, sender in list(self._waiting.items()):
            if sender.wait_s(self._clock()) > 0:
                continue
            del self._waiting[name]
            for path in list(sender.waiting):
                message = self._take(sender, path)
                received = self._read(message) if message is not None else None
                if received is not None:
                    yield received

    def _read(self, message: Arrived) -> Received | None:
        try:
            return read_message(message.path, message.payload, message.retained, message.at_s)
        except UnreadableError as error:
            self._refuse(str(error))
            return None
