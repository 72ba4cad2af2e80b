"""Backoff of nodes whose stage has failed: how long plans leave them out.

Only the node can know that its disk is full, so it is tried again, and later each time. Pure: times
are arguments.
"""

from dataclasses import dataclass, field

__all__ = ["FailureBackoff"]

BACKOFF_FIRST_S, BACKOFF_MAX_S = 60.0, 3600.0
"""Of a node whose stage has failed; doubles with each failure."""


@dataclass(slots=True)
class FailureBackoff:
    """Failures of nodes, by id."""

    first_s: float = BACKOFF_FIRST_S
    max_s: float = BACKOFF_MAX_S
    _failures: dict[str, int] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)

    def failed(self, node_id: str, now: float) -> None:
        """Its stage could not be, or has ended by an error of its own."""
        count = self._failures.get(node_id, 0)
        self._failures[node_id] = count + 1
        self._until[node_id] = now + min(self.max_s, self.first_s * 2 ** min(count, 30))

    def is_waiting(self, node_id: str, now: float) -> bool:
        """Whether it is left out."""
        return self._until.get(node_id, 0.0) > now
