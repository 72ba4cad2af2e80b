"""What the coordinator runs for its nodes beside the broker: the relay, and tokens for it and for
measurements."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from molink.config.up_settings import UpSettings
from molink.control.messages import ModelSize, Services
from molink.control.registry import Registry
from molink.runtime.cluster.probing import Probing
from molink.transport.peer.protocol import PEER_PORT_NAME
from molink.transport.peer.service import PeerService
from molink.transport.relay.protocol import COORDINATOR, relay_token
from molink.transport.relay.server import RelayServer
from molink.transport.stun import StunServer, serve_stun

__all__ = ["OwnServices"]

RELAY_SECRET, PROBE_SECRET = "relay secret", "probe secret"
"""Settings of the registry: nodes' tokens stay good over a restart."""

SECRET_BYTES = 32


@dataclass(slots=True)
class OwnServices:
    """Running from `start` to `stop`."""

    relay: RelayServer
    peer: PeerService
    probing: Probing
    stun: StunServer
    relay_address: str
    """host:port for nodes."""
    _relay_secret: bytes
    model: ModelSize | None = None
    """That is served, once its sizes are known."""

    @classmethod
    async def start(
        cls, settings: UpSettings, registry: Registry, model: str, config: Mapping[str, Any]
    ) -> "OwnServices":
        """Raises UserError when the relay's port is taken."""
        secret = _secret(registry, RELAY_SECRET)
        relay = RelayServer(
            secret,
            settings.host,
            settings.relay_port,
            lambda node_id: node_id == COORDINATOR or registry.member(node_id) is not None,
        )
        await relay.start()
        probing = Probing(model, config, _secret(registry, PROBE_SECRET))
        peer = PeerService(probing.key_of(COORDINATOR), "127.0.0.1", gives=True)
        await peer.start()
        relay.forward(COORDINATOR, PEER_PORT_NAME, peer.address)
        stun = await serve_stun(settings.host, 0)
        return cls(relay, peer, probing, stun, f"{settings.public_host}:{relay.port}", secret)

    async def stop(self) -> None:
        """End every connection."""
        self.stun.close()
        await self.peer.stop()
        await self.relay.stop()

    def relay_token(self, node_id: str) -> str:
        """With which a node, or the coordinator, proves itself to the relay."""
        return relay_token(self._relay_secret, node_id)

    def of_node(self, node_id: str) -> Services:
        """What a node is told."""
        return Services(
            relay=self.relay_address,
            relay_token=self.relay_token(node_id),
            probe_key=self.probing.key_of(node_id),
            stun_port=self.stun.port,
            model=self.model,
        )

    def forbid(self, node_id: str) -> None:
        """End a removed node's ways through the relay."""
        self.relay.forbid(node_id)


def _secret(registry: Registry, name: str) -> bytes:
    """Drawn once for a registry."""
    text = registry.setting(name)
    if text is None:
        text = secrets.token_hex(SECRET_BYTES)
        registry.set_setting(name, text)
    return bytes.fromhex(text)
