"""What does a link send next, and how much of it? One interface, five policies.

A stage offers its results; the link's driver asks `next_chunk` each time that the link can
take more, and sends what the answer says. The decision is made at that moment and not when the
transfer was offered: a priority given to bytes that already sit in a socket's buffer is worth
nothing. The driver in turn keeps few bytes in flight (about one bandwidth-delay product and one
chunk), or the queue would grow where no policy can see it.

A policy is an order (`PriorityQueues`, `FifoQueue`, `FairQueue`) and a size of pieces
(`ChunkRule`). Rejected: one class with switches, in which no policy can be read by itself.

Pure: `now` is an argument, nothing sleeps, the bytes stay with the caller.
"""

from molink_scheduler.link.baseline_queues import FairQueue, FifoQueue
from molink_scheduler.link.priority_queues import (
    Chunk,
    LinkView,
    PriorityQueues,
    StarvationLimits,
    Transfer,
    TransmissionQueue,
    fixed_quantum,
    just_in_time,
    quantum,
)

__all__ = [
    "POLICIES",
    "POLICY_DEFAULT",
    "Chunk",
    "LinkView",
    "Transfer",
    "TransmissionQueue",
    "make_transmission",
]

POLICIES = ("molink", "just_in_time", "quantum", "fifo", "fair")
"""Names that `make_transmission` and the operator's `--policy` know."""

POLICY_DEFAULT = "molink"
"""Strict priority and pieces of constant duration: docs/scheduling.md says why."""


def make_transmission(
    policy: str = POLICY_DEFAULT, limits: StarvationLimits | None = None
) -> TransmissionQueue:
    """The queue of one link. Raises ValueError for an unknown policy."""
    limits = limits or StarvationLimits()
    match policy:
        case "molink":
            return PriorityQueues(quantum, quantum, limits)
        case "just_in_time":
            return PriorityQueues(just_in_time, quantum, limits)
        case "quantum":
            return PriorityQueues(fixed_quantum, fixed_quantum, limits)
        case "fifo":
            return FifoQueue()
        case "fair":
            return FairQueue()
    raise ValueError(f"unknown policy {policy!r}; there are {', '.join(POLICIES)}")
