"""What the coordinator runs for its nodes beside the broker: the relay, and tokens for it and for
measurements."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from molink.config.up_settings import UpSettings
from molink.control.messages.payloads import ModelSize, Services
from molink.control.registry.registry import Registry
from molink.coordinator.members.node_book import NodeBook
from molink.coordinator.members.probing import Probing
from molink.coordinator.services.coordinator_relay import CoordinatorRelay, start_relay
from molink.transport.peer.protocol import PEER_PORT_NAME
from molink.transport.peer.service import PeerService
from molink.transport.relay.protocol import COORDINATOR
from molink.transport.stun import StunServer, serve_stun

__all__ = ["OwnServices"]

RELAY_SECRET, PROBE_SECRET = "relay secret", "probe secret"
"""Settings of the registry: nodes' tokens stay good over a restart."""

SECRET_BYTES = 32


@dataclass(slots=True)
class OwnServices:
    """Services of a coordinator for its nodes, from `start` to `stop`."""

    relay: CoordinatorRelay
    peer: PeerService
    probing: Probing
    stun: StunServer
    model: ModelSize
    """That is served."""

    @classmethod
    async def start(
        cls,
        settings: UpSettings,
        registry: Registry,
        book: NodeBook,
        model: ModelSize,
        config: Mapping[str, Any],
    ) -> "OwnServices":
        """Raises UserError when the relay cannot be had."""
        relay = await start_relay(
            settings,
            _secret(registry, RELAY_SECRET),
            lambda node_id: registry.member(node_id) is not None,
        )
        probing = Probing(model.name, config, _secret(registry, PROBE_SECRET))
        peer = PeerService(probing.key_of(COORDINATOR), "127.0.0.1", gives=True)
        peer.saw = lambda node_id, rate: book.saw(node_id, rate * 8 / 1e6)
        await peer.start()
        relay.forward(PEER_PORT_NAME, peer.address)
        return cls(relay, peer, probing, await serve_stun(settings.host, 0), model)

    async def stop(self) -> None:
        """End every connection."""
        self.stun.close()
        await self.peer.stop()
        await self.relay.stop()

    def of_node(self, node_id: str) -> Services:
        """What a node is sent of them: addresses and its own keys."""
        return Services(
            relay=self.relay.address,
            relay_token=self.relay.token(node_id),
            probe_key=self.probing.key_of(node_id),
            stun_port=self.stun.port,
            model=self.model,
        )

    def forbid(self, node_id: str) -> None:
        """End the access of a removed node to the relay."""
        self.relay.forbid(node_id)


def _secret(registry: Registry, name: str) -> bytes:
    """Drawn once for a registry."""
    text = registry.setting(name)
    if text is None:
        text = secrets.token_hex(SECRET_BYTES)
        registry.set_setting(name, text)
    return bytes.fromhex(text)
