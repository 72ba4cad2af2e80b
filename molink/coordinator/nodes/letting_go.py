"""PCs that another coordinator of this cluster takes over are let go: drained, then shut out here.

A PC that the broker refuses asks the port for agents where it belongs, and is led on from there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.control.registry.succession import moved_pcs
from molink.coordinator.nodes.hub import ControlHub
from molink.coordinator.nodes.node import Node
from molink.errors import ErrorGuard

LOOK_S = 1.0
"""Seconds between two looks at who was moved."""


@dataclass(slots=True)
class LettingGo:
    """Lets the PCs go that the registry names as moved."""

    hub: ControlHub
    told: Callable[[Node], None]
    """Called with a node that is to go, once."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Letting PCs go"))
    _going: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            with self.guard:
                self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Drain each node that is to go; shut it out once it holds no layers. Until then its ring
        hands its answers over, as for any drained node."""
        moved = moved_pcs(self.hub.registry)
        for node in [one for one in self.hub.book if one.pc in moved]:
            if node.node_id not in self._going:
                self._going.add(node.node_id)
                self.told(node)
                self.hub.book.hold(node, is_held=True)
                self.hub.book.drained.discard(node.node_id)  # No order, which would be kept.
            if not node.is_assigned:
                self._shut_out(node)
        self._going &= {one.node_id for one in self.hub.book}

    def _shut_out(self, node: Node) -> None:
        self.hub.access.shut_out(node.node_id)
        self.hub.book.drop(node.node_id)
