"""An operator's orders to a running cluster, which the API takes from whoever has an admin key.

Drain, resume and remove a node, make an invite, pause the intake of requests, clear what the rings
have cached. Each changes what the rest reads anyway (the node book, the registry, the service), so
that nothing else knows of orders: a drained node looks to the manager like one whose owner has
paused it, and its ring is replaced before it ends. What is drained outlasts a restart, a paused
intake does not: a coordinator that was started anew is meant to serve.

Every order is an event of the cluster's ledger, with who gave it.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field

from molink.control.registry.registry import Registry
from molink.coordinator.audits.quarantine import Quarantine
from molink.coordinator.nodes.node import Node
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.requests.cluster_service import ClusterService
from molink.errors import UserError
from molink.report.orders import CachesCleared, IntakeChanged, InviteMade, NodeOrdered

DRAINED = "drained_nodes"
"""Name of the registry's setting that keeps them, as a JSON list of ids."""

NO_AGENTS = (
    "The nodes of `molink serve` are its own: no other PC could take their layers, and none joins. "
    "Pause the intake, or use `molink up`."
)


class UnknownNodeError(UserError):
    """Raised when an order names a node that is no member; one sentence for the operator."""


@dataclass(slots=True)
class ClusterAdmin:
    """Orders of an operator, carried out; `by` is who gave one: the id of a key, or an address."""

    book: NodeBook
    registry: Registry
    service: ClusterService
    quarantine: Quarantine = field(init=False)
    _holding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held from reading who is drained until it is kept: orders may come at once."""

    def __post_init__(self) -> None:
        self.book.drained |= _drained_before(self.registry)
        self.quarantine = Quarantine(self.book, self.registry)

    async def drain(self, node_id: str, by: str) -> NodeOrdered:
        """Let a node hand over what it does, and give it nothing more until it is resumed."""
        return await self._set_drained(node_id, by, is_drained=True)

    async def resume(self, node_id: str, by: str) -> NodeOrdered:
        """Let a node serve again that was drained, or quarantined."""
        return await self._set_drained(node_id, by, is_drained=False)

    async def remove(self, node_id: str, by: str) -> NodeOrdered:
        """Throw a PC out with all its devices, for good; names the invite with which it came and
        could come again."""
        self._check_agents()
        now = time.time()
        try:
            gone = await asyncio.to_thread(self.registry.remove_node, node_id, now)
        except UserError as error:
            raise UnknownNodeError(str(error)) from None
        devices = [one for one in self.registry.list_nodes() if one.pc == gone.node_id]
        invites = [one for one in self.registry.list_invites() if one.invite_id == gone.invite_id]
        self._note(f"{gone.name} is removed", by, gone.name)
        return NodeOrdered(
            id=gone.node_id,
            name=gone.name,
            devices=len(devices),
            invite=gone.invite_id,
            invite_usable=any(one.state(now) == "usable" for one in invites),
        )

    async def invite(self, expires_s: float, uses: int, name: str, by: str) -> InviteMade:
        """A new invite, whole: nobody can show it again. Raises UserError for wishes out of
        range."""
        self._check_agents()
        now = time.time()
        made = await asyncio.to_thread(self.registry.make_invite, expires_s, uses, name, now)
        self._note(f"Invite {made.invite_id} for {uses} PCs is made", by)
        return InviteMade(
            id=made.invite_id,
            command=f"molink agent join {made.text}",
            uses=uses,
            expires_unix_s=now + expires_s,
        )

    def pause_intake(self, paused: bool, by: str) -> IntakeChanged:
        """Refuse new requests, or take them again; those under way are finished."""
        self.service.set_intake(paused=paused)
        self._note("The intake is paused" if paused else "The intake is open", by)
        return IntakeChanged(paused)

    def clear_caches(self, by: str) -> CachesCleared:
        """Let all rings forget what they keep of prompts and answers for prompts to come. What a
        request under way uses goes with it, and nobody else finds it."""
        rings = len(self.service.rings)
        self.service.clear_caches()
        self._note("The prefix caches are cleared", by)
        return CachesCleared(rings)

    async def _set_drained(self, node_id: str, by: str, *, is_drained: bool) -> NodeOrdered:
        self._check_agents()
        async with self._holding:
            node = self._member(node_id)
            drained = self.book.drained - {node_id} | ({node_id} if is_drained else set())
            await asyncio.to_thread(self.registry.set_setting, DRAINED, json.dumps(sorted(drained)))
            self.book.set_drained(node, is_drained=is_drained)
            if not is_drained:
                await self.quarantine.release(node_id)
        self._note(f"{node.name} is {'drained' if is_drained else 'resumed'}", by, node.name)
        return NodeOrdered(node_id, node.name, str(node.state))

    def _member(self, node_id: str) -> Node:
        node = self.book.nodes.get(node_id)
        if node is None:
            raise UnknownNodeError(
                f"No node here has the id {node_id!r:.40}: GET /cluster lists the nodes."
            )
        return node

    def _check_agents(self) -> None:
        if self.book.local:
            raise UserError(NO_AGENTS)

    def _note(self, what: str, by: str, node: str = "") -> None:
        self.service.events.add("order", f"{what}, by order of {by}", node=node)


def _drained_before(registry: Registry) -> set[str]:
    """Ids of the nodes that were drained when the coordinator ran last."""
    try:
        kept = json.loads(registry.setting(DRAINED) or "[]")
    except ValueError:
        return set()
    return {one for one in kept if isinstance(one, str)} if isinstance(kept, list) else set()
