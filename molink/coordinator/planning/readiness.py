"""When it is time to plan: nodes that start together are planned for together, once the paths
between them are measured.

Nodes settle first, for a moment at most. A first plan waits for nodes that have just come, for
those that still time a layer, and for those that still measure the paths to each other: a link that
was not measured is only guessed. Each of these waits has an end, so that no single PC holds up the
others. A repair waits for nothing: users do. While a ring serves, what may come to it has time, and
waits for the paths.

Pure: times are arguments, in seconds on a clock that never jumps.
"""

from collections import deque
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from molink.control.messages.payloads import NodeState
from molink.coordinator.nodes.node import Node

if TYPE_CHECKING:
    pass

SETTLE_S, SETTLE_MAX_S = 1.0, 3.0
"""Seconds after the last change of which nodes are there and lent; and at most, after the first:
among a thousand nodes something always changes, and one may change on purpose."""

CHANGES_MAX, CHANGES_WITHIN_S = 8, 60.0
"""Times that one node may come, go, or change its wish within so long: owners who try out a limit
do so a few times a minute."""

MEASURING_WAIT_S = 60.0
"""A node that has joined and not reported its step times by then is planned without: it would hold
up all others. A slow PC loads its probe in ten seconds."""

PATHS_WAIT_S = 20.0
"""Seconds after the last newcomer has timed its layer. The paths are measured meanwhile and are
usually known first: a PC with twelve neighbours needs a second and a half for each."""

Asked = Callable[[Node, Sequence[Node]], Set[str]]
"""Ids of the nodes that the first one shall measure, of all that are there."""


@dataclass(slots=True)
class RestlessNodes:
    """Watch over nodes that come and go, or change their wish, more often than anybody means to."""

    _seen: dict[str, int] = field(default_factory=dict)
    """Changes of each that were taken in."""
    _changed_at: dict[str, deque[float]] = field(default_factory=dict)
    """The latest times at which each has changed."""

    def update(self, nodes: Sequence[Node], now: float) -> list[str]:
        """Take in which nodes are there; the ids of those that have just changed too often."""
        found = []
        for node in nodes:
            count = node.changes - self._seen.get(node.node_id, 0)
            self._seen[node.node_id] = node.changes
            if count and self._changed(node.node_id, min(count, CHANGES_MAX), now):
                found.append(node.node_id)
        return found

    def _changed(self, node_id: str, count: int, now: float) -> bool:
        """Whether so many more changes are too many; then they are counted anew."""
        times = self._changed_at.setdefault(node_id, deque(maxlen=CHANGES_MAX))
        times.extend([now] * count)
        is_restless = len(times) == CHANGES_MAX and now - times[0] <= CHANGES_WITHIN_S
        if is_restless:
            del self._changed_at[node_id]
        return is_restless


@dataclass(slots=True)
class Readiness:
    """Judge of whether to plan now, by which nodes are there and what they have reported."""

    asked_of: Asked
    settle_s: float = SETTLE_S
    _lending: frozenset[tuple[str, str]] = frozenset()
    _lending_since: float = 0.0
    _unsettled_since: float | None = None
    """When the first of the changes came since nodes were last settled; None: they are."""
    _measured_at: dict[str, float] = field(default_factory=dict)
    """When each node was first seen to have timed its layer."""
    _news_at: float = 0.0
    """When the lent nodes, or those that have timed their layer, were last seen to change."""
    _silent: set[str] = field(default_factory=set)
    """Nodes whose paths are not waited for any more, until they have reported them."""

    def update(self, nodes: Sequence[Node], now: float) -> None:
        """Take in which nodes are there."""
        here = [node for node in nodes if node.is_here]
        lending = frozenset((node.node_id, node.wants) for node in here)
        if lending != self._lending:
            self._lending, self._lending_since, self._news_at = lending, now, now
            if self._unsettled_since is None:
                self._unsettled_since = now
        measured = {node.node_id for node in here if node.is_measured}
        if measured != self._measured_at.keys():
            known = self._measured_at
            self._measured_at = {name: known.get(name, now) for name in measured}
            self._news_at = now

    def is_time(self, nodes: Sequence[Node], now: float, *, first: bool, serving: bool) -> bool:
        """Whether to plan now, after an `update`.

        `first`: there has been no ring yet; `serving`: one serves users meanwhile.
        """
        if not (first or serving):
            return True
        if not self._is_settled(now):
            return False
        if first and self._is_timing(nodes, now):
            return False
        return not self.nodes_still_measuring(nodes, now)

    def _is_settled(self, now: float) -> bool:
        if now - self._lending_since >= self.settle_s:
            self._unsettled_since = None
            return True
        since = self._unsettled_since
        return since is not None and now - since >= SETTLE_MAX_S

    def _is_timing(self, nodes: Sequence[Node], now: float) -> bool:
        joining = any(node.state is NodeState.JOINING for node in nodes if node.is_here)
        return joining and now - self._news_at < MEASURING_WAIT_S

    def nodes_still_measuring(self, nodes: Sequence[Node], now: float) -> list[Node]:
        """The nodes whose paths to others are still waited for."""
        lent = {node.node_id for node in nodes if node.may_serve}
        return [
            node
            for node in nodes
            if node.node_id in lent and self._is_awaited(node, nodes, lent, now)
        ]

    def _is_awaited(self, node: Node, nodes: Sequence[Node], lent: Set[str], now: float) -> bool:
        unknown = (self.asked_of(node, nodes) & lent) - node.paths.keys()
        if not unknown:
            self._silent.discard(node.node_id)
            return False
        known_at = max(self._measured_at.get(name, now) for name in (node.node_id, *unknown))
        if now - known_at >= PATHS_WAIT_S:
            self._silent.add(node.node_id)
        return node.node_id not in self._silent
