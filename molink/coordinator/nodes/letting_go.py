"""PCs that another coordinator of this cluster takes over are let go: drained, then shut out here.

A PC that the broker refuses asks the port for agents where it belongs, and is led on from there.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from molink.control.registry.succession import moved_pcs, successor_of
from molink.coordinator.nodes.hub import ControlHub
from molink.coordinator.nodes.node import Node
from molink.errors import ErrorGuard

LOOK_S = 1.0
"""Seconds between two looks at who was moved."""

ALL_WENT = (
    "Its PCs were handed to the coordinator that takes over from this one: ask for {model!r}, at "
    "the same address."
)


@dataclass(slots=True)
class LettingGo:
    """Lets the PCs go that the registry names as moved."""

    hub: ControlHub
    told: Callable[[Node], None]
    """Called with a node that is to go, once."""
    all_went: Callable[[str], None]
    """Called at each look: with a sentence for users while nobody is left here, else an empty
    one."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Letting PCs go"))
    _going: dict[str, bool] = field(default_factory=dict)
    """Nodes that are to go, and whether an operator had drained them before."""

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            with self.guard:
                self.look()
            await asyncio.sleep(LOOK_S)

    def look(self) -> None:
        """Drain each node that is to go; shut it out once it holds no layers. Until then its ring
        hands its answers over, as for any drained node. One that came back before stays."""
        moved = moved_pcs(self.hub.registry)
        self._keep(moved)
        for node in [one for one in self.hub.book if one.pc in moved]:
            if node.node_id not in self._going:
                self._going[node.node_id] = node.node_id in self.hub.book.drained
                self.told(node)
                self.hub.book.set_drained(node, is_drained=True)
                self.hub.book.drained.discard(node.node_id)  # No order, which would be kept.
            if not node.is_assigned:
                self._shut_out(node)
        self.all_went(self._sentence(moved))
        known = self.hub.book.nodes
        self._going = {one: before for one, before in self._going.items() if one in known}

    def _sentence(self, moved: frozenset[str]) -> str:
        is_left = any(node.is_here and node.pc not in moved for node in self.hub.book)
        after = successor_of(self.hub.registry) if moved and not is_left else None
        return "" if after is None else ALL_WENT.format(model=after.models[0])

    def _keep(self, moved: frozenset[str]) -> None:
        """Let those serve again that were to go, and are taken back before they went; one that its
        operator had drained stays so."""
        for node in [one for one in self.hub.book if one.pc not in moved]:
            was_drained = self._going.pop(node.node_id, None)
            if was_drained is not None:
                self.hub.book.set_drained(node, is_drained=was_drained)

    def _shut_out(self, node: Node) -> None:
        self.hub.access.shut_out(node.node_id)
        self.hub.book.drop(node.node_id)
