"""Heartbeats: which nodes have fallen silent. Pure.

A last will comes at once when a process dies, because its connection closes. A PC that freezes, or
whose line is cut, closes nothing: the broker's own clock must run out, 1.5 keep-alives,
but Mosquitto 2.0 checks only every five seconds and so may take nine. Nodes send their health once
a second anyway; counting those shows a silence within `SILENT_AFTER_S`, whatever the broker.
"""

from dataclasses import dataclass, field

SILENT_AFTER_S = 4.0
"""Four heartbeats in a row: a home line that stalls for two or three seconds is common and passes,
five seconds is the longest that users should wait for a dead node."""


@dataclass(slots=True)
class Heartbeats:
    """Time of each node's last heartbeat, by any one clock that only goes forward."""

    silent_after_s: float = SILENT_AFTER_S
    _last_s: dict[str, float] = field(default_factory=dict)

    def beat(self, node_id: str, now_s: float) -> None:
        """The node was there then: it had joined, or sent something that is not a retained
        message."""
        self._last_s[node_id] = max(now_s, self._last_s.get(node_id, now_s))

    def forget(self, node_id: str) -> None:
        """The node has said good-bye, or its last will has come."""
        self._last_s.pop(node_id, None)

    def fallen_silent(self, now_s: float) -> list[str]:
        """Nodes without a heartbeat for too long; each is reported once, until its next one."""
        silent = [one for one, at_s in self._last_s.items() if now_s - at_s > self.silent_after_s]
        for node_id in silent:
            del self._last_s[node_id]
        return silent
