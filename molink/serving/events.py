"""Events of a cluster, in order: one ledger for the terminal's lines, the API and traces.

Each entry is a sentence for people with a kind for programs. Whoever decides or notices something
adds it; readers ask for what came after the last number they know. It is kept in memory only: a
coordinator that starts anew begins at 1 again.

PCs that change their state on purpose push older events out. So what an operator has ordered, and
whom audits have found out, stands in a list of its own, into which no PC can write.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import merge
from typing import Literal, get_args

from molink.printable import printable_line
from molink.report.events import ClusterEvent, EventsReport
from molink.tasks import Signal

EventKind = Literal[
    "node_joined",
    "node_changed",
    "node_slow",
    "node_lost",
    "node_removed",
    "plan",
    "ring_serving",
    "stage_silent",
    "stage_lost",
    "ring_resumed",
    "ring_ended",
    "codec",
    "ready",
    "unready",
    "request_moved",
    "rows_refused",
    "audit_failed",
    "node_quarantined",
    "order",
    "key_refused",
    "trouble",
]

EVENT_KINDS: tuple[str, ...] = get_args(EventKind)

EVENTS_MAX = 2000
"""Events kept: a day of a ring whose PCs come and go every few minutes, half a megabyte."""

ORDER_KINDS: frozenset[EventKind] = frozenset({"order", "node_quarantined", "node_removed"})

ORDERS_MAX = 500
"""Events of orders that are kept beside the others."""

TEXT_CHARS_MAX = 500
"""Reasons come from nodes, too."""


@dataclass(slots=True)
class EventLedger:
    """Bounded list of a cluster's events, oldest first."""

    clock: Callable[[], float] = time.time
    changed: Signal = field(default_factory=Signal)
    """Sent with each event."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(EVENT_KINDS, 0))
    """Events of each kind since the start."""
    _events: deque[ClusterEvent] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))
    _orders: deque[ClusterEvent] = field(default_factory=lambda: deque(maxlen=ORDERS_MAX))
    _seq: int = 0

    def add(self, kind: EventKind, text: str, *, node: str = "", ring: int | None = None) -> None:
        """Note what has just happened."""
        self._seq += 1
        self.counts[kind] += 1
        line = printable_line(text)[:TEXT_CHARS_MAX]
        kept = self._orders if kind in ORDER_KINDS else self._events
        kept.append(ClusterEvent(self._seq, self.clock(), kind, node, ring, line))
        self.changed.send()

    @property
    def last_seq(self) -> int:
        """Number of the latest event; 0 before the first."""
        return self._seq

    def after(self, seq: int) -> list[ClusterEvent]:
        """Events with higher numbers that are still kept; all of them for a number that was never
        given: whoever asks knows the ledger of a coordinator that ran before."""
        known = seq if seq <= self._seq else 0
        both = merge(self._orders, self._events, key=lambda event: event.seq)
        return [event for event in both if event.seq > known]

    def report(self, after: int) -> EventsReport:
        """Report on later events; `next` is the number to ask with the next time."""
        return EventsReport(tuple(self.after(after)), next=self._seq)
