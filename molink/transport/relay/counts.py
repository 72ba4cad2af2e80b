"""What a relay counts."""

from dataclasses import dataclass

__all__ = ["RelayCounts", "RelayStatistics"]


@dataclass(frozen=True, slots=True)
class RelayStatistics:
    """What a relay has done since it started, and holds now."""

    registered: int
    joined: int
    """Pairs of connections that are joined now."""
    held_bytes: int
    """Read from one end and not yet taken by the other, now."""
    bytes_carried: int
    dials: int
    """That were joined."""
    refused: int
    """Dials that were not, for whatever reason."""
    unroutable: int
    """Of those: the receiver is not registered, has no such port, or did not come."""
    spoofed: int
    """Requests in a name whose proof was wrong."""


@dataclass(slots=True)
class RelayCounts:
    """What only grows; fields as in RelayStatistics."""

    dials: int = 0
    refused: int = 0
    unroutable: int = 0
    spoofed: int = 0
