"""Events of a cluster, as `GET /cluster/events` tells them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Event in the life of a cluster."""

    seq: int
    """Number of the event, from 1 on without gaps."""
    unix_s: float
    """Seconds since 1970."""
    kind: str
    """Kind of the event, for programs."""
    node: str
    """Name of the node that it is about; empty: about none."""
    ring: int | None
    """Number of the ring that it is about; None: about none."""
    text: str
    """Printable line for people."""


@dataclass(frozen=True, slots=True)
class EventsReport:
    """Events of the cluster behind a number."""

    events: tuple[ClusterEvent, ...]
    next: int
    """Number to send as `after` for the events that come next."""
