"""Admission of nodes: a sealed request becomes a member, a broker user and a sealed answer."""

import asyncio
import time
from dataclasses import dataclass, field

from molink.control.broker.broker import Broker
from molink.control.identity import KeyPair
from molink.control.messages.joining import JoinAnswer, JoinRequest
from molink.control.messages.payloads import ModelSize
from molink.control.messages.sealing import open_sealed, seal
from molink.control.registry.database import NodeRecord
from molink.control.registry.registry import Registry

__all__ = ["JoinService", "let_in"]


async def let_in(broker: Broker, registry: Registry) -> None:
    """Make every member of a registry a user of a broker; quickest before it starts."""
    for member in registry.list_nodes():
        if member.removed is None:
            await broker.allow(member.node_id, member.password)


@dataclass(slots=True)
class JoinService:
    """Service that admits nodes."""

    registry: Registry
    broker: Broker
    broker_host: str
    """Where agents find the broker; empty: at the host of the URL by which they came."""
    model: ModelSize | None = None
    """That is served."""
    _admitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Each waits for the disk, in a thread, and holds the registry meanwhile: one at a time, or the
    event loop would wait for all of them when it asks the registry itself."""

    async def join(self, sealed: bytes) -> bytes:
        """The answer to a request, sealed for its sender.

        Raises JoinRefusedError with a sentence for the node's owner, ControlError for what is no
        request, or when the broker does not answer.
        """
        async with self._admitting:
            admitted = await asyncio.to_thread(self._admit, sealed)
        own, public_key, request, member = admitted
        credentials = await self.broker.allow(member.node_id, member.password)
        address = self.broker.address
        answer = JoinAnswer(
            challenge=request.challenge,
            node_id=member.node_id,
            broker_host=self.broker_host,
            broker_port=address.port,
            broker_tls=address.tls,
            broker_ca=address.ca,
            username=credentials.username,
            password=credentials.password,
            weights_token=member.weights_token,
            time_unix_s=time.time(),
            coordinator_public_key=own.public_z85,
            model=self.model,
        )
        return seal(answer, own, public_key)

    def _admit(self, sealed: bytes) -> tuple[KeyPair, bytes, JoinRequest, NodeRecord]:
        own = self.registry.coordinator
        request, public_key = open_sealed(sealed, own, JoinRequest)
        member = self.registry.admit(public_key, request, time.time()).node
        return own, public_key, request, member
