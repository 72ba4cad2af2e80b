"""Which nodes are left out for a while because their stage has failed, and for how long.

Nobody but the node can know that its disk is full, so it is tried again, and later each time.
Pure: times are arguments.
"""

from dataclasses import dataclass, field

__all__ = ["FailureBackoff"]

REST_FIRST_S, REST_MAX_S = 60.0, 3600.0
"""For a node whose stage has failed; doubles with each failure."""


@dataclass(slots=True)
class FailureBackoff:
    """Counts failures of nodes, by id."""

    _failures: dict[str, int] = field(default_factory=dict)
    _until: dict[str, float] = field(default_factory=dict)

    def has_failed(self, node_id: str, now: float) -> None:
        """Its stage could not be, or has ended by an error of its own."""
        count = self._failures.get(node_id, 0)
        self._failures[node_id] = count + 1
        self._until[node_id] = now + min(REST_MAX_S, REST_FIRST_S * 2**count)

    def rests(self, node_id: str, now: float) -> bool:
        """Whether it is left out."""
        return self._until.get(node_id, 0.0) > now
