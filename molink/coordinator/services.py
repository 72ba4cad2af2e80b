"""Services of a coordinator for its nodes beside the broker: admission, relay, STUN, measurements.

The relay runs in this process, or on a rented server with a better line. To the first the
coordinator adds its ports directly. At the second it registers like a node, and its ports are
reached through that registration. Nodes see no difference: they are sent an address and a token,
which is made from the secret that the coordinator shares with its relay.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from molink.config.settings import UpSettings
from molink.control.addresses import ServerTrust
from molink.control.broker.broker import Broker
from molink.control.identity import KeyPair
from molink.control.messages.base import ModelSize
from molink.control.messages.joining import JoinAnswer, OpenedRequest, open_request
from molink.control.messages.payloads import Services
from molink.control.messages.sealing import seal
from molink.control.registry.database import NodeRecord
from molink.control.registry.registry import Registry
from molink.control.versions import own_protocols
from molink.coordinator.nodes.access import Suspensions
from molink.coordinator.nodes.node_book import NodeBook
from molink.coordinator.nodes.probing import Probing
from molink.errors import ControlError
from molink.tasks import background_tasks
from molink.transport.peer.protocol import PEER_PORT_NAME
from molink.transport.peer.service import PeerService
from molink.transport.relay.client import RelayCaller, RelayReceiver
from molink.transport.relay.protocol import COORDINATOR, read_secret, relay_token
from molink.transport.relay.server import RelayServer
from molink.transport.stun import serve_stun

RELAY_SECRET, PROBE_SECRET = "relay secret", "probe secret"
"""Settings of the registry: nodes' tokens stay good over a restart."""

SECRET_BYTES = 32

log = logging.getLogger(__name__)


def own_host(listen_host: str) -> str:
    """Host at which this process reaches what listens at `listen_host`."""
    return "127.0.0.1" if listen_host == "0.0.0.0" else listen_host


@dataclass(frozen=True, slots=True)
class RelayHere:
    """Relay in this process, which forwards the coordinator's ports by itself."""

    server: RelayServer
    secret: bytes
    listen_host: str
    public_host: str
    trouble: str = ""
    """Always empty: this relay lives as long as the coordinator."""

    @property
    def address(self) -> str:
        """host:port where nodes reach the relay."""
        return f"{self.public_host}:{self.server.port}"

    @property
    def caller(self) -> RelayCaller:
        """Dials nodes over loopback where the relay listens there: a public name often leads
        nowhere from inside."""
        return _caller(f"{own_host(self.listen_host)}:{self.server.port}", self.secret)

    def forward(self, port_name: str, address: str) -> None:
        """Lead dials to this port of the coordinator to `host:port`."""
        self.server.forward(COORDINATOR, port_name, address)

    def forward_no_more(self, port_name: str) -> None:
        """Refuse dials to come."""
        self.server.forward_no_more(COORDINATOR, port_name)

    def forbid(self, node_id: str) -> None:
        """End a removed node's connections, and let it in no more."""
        self.server.forbid(node_id)


@dataclass(frozen=True, slots=True)
class RelayElsewhere:
    """`molink relay` on another machine, where the coordinator is registered as a node is."""

    address: str
    """host:port where nodes reach the relay."""
    secret: bytes
    caller: RelayCaller
    """Dials nodes."""
    receiver: RelayReceiver

    @property
    def trouble(self) -> str:
        """Why we are not registered there; empty when we are."""
        return self.receiver.trouble

    def forward(self, port_name: str, address: str) -> None:
        """Lead dials to this port of the coordinator to `host:port`."""
        self.receiver.open(port_name, address)

    def forward_no_more(self, port_name: str) -> None:
        """Refuse dials to come."""
        self.receiver.close(port_name)

    def forbid(self, node_id: str) -> None:
        """The relay cannot know: a removed node may still dial there, but the nodes that it reaches
        do not let it in."""


CoordinatorRelay = RelayHere | RelayElsewhere


@asynccontextmanager
async def open_relay(
    settings: UpSettings, own_secret: bytes, is_member: Callable[[str], bool]
) -> AsyncIterator[CoordinatorRelay]:
    """Open the relay that `--relay` asks for: one elsewhere may also start later. Raises UserError
    when a port is taken or the secret cannot be read."""
    if settings.relay:
        secret = read_secret(settings.relay_secret_file)
        caller = _caller(settings.relay, secret)
        receiver = RelayReceiver(caller)
        async with background_tasks() as tasks:
            tasks.create_task(receiver.run())
            yield RelayElsewhere(settings.relay, secret, caller, receiver)
        return
    async with RelayServer(
        own_secret,
        settings.host,
        settings.relay_port,
        lambda node_id: node_id == COORDINATOR or is_member(node_id),
    ) as server:
        yield RelayHere(server, own_secret, settings.host, settings.public_host)


def _caller(address: str, secret: bytes) -> RelayCaller:
    return RelayCaller(address, COORDINATOR, relay_token(secret, COORDINATOR))


@dataclass(frozen=True, slots=True)
class NodeServices:
    """Services of a coordinator for its nodes. Made by `open`."""

    relay: CoordinatorRelay
    probing: Probing
    stun_port: int
    model: ModelSize
    """Size of the model that is served."""

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        settings: UpSettings,
        registry: Registry,
        book: NodeBook,
        model: ModelSize,
        config: Mapping[str, Any],
    ) -> AsyncIterator["NodeServices"]:
        """Running while the block does. Raises UserError when the relay cannot be had."""
        probing = Probing(model.name, config, _secret(registry, PROBE_SECRET))
        async with AsyncExitStack() as stack:
            relay = await stack.enter_async_context(
                open_relay(
                    settings,
                    _secret(registry, RELAY_SECRET),
                    lambda node_id: registry.member(node_id) is not None,
                )
            )
            peer = PeerService(
                probing.key_of(COORDINATOR),
                "127.0.0.1",
                allow_download=True,
                on_rate=lambda node_id, rate: book.note_rate(node_id, rate * 8 / 1e6),
            )
            await peer.start()
            stack.push_async_callback(peer.stop)
            relay.forward(PEER_PORT_NAME, peer.address)
            stun = await stack.enter_async_context(serve_stun(settings.host, 0))
            yield cls(relay, probing, stun.port, model)

    def of_node(self, node_id: str) -> Services:
        """What a node is sent of them: addresses and its own keys."""
        return Services(
            relay=self.relay.address,
            relay_token=relay_token(self.relay.secret, node_id),
            probe_key=self.probing.key_of(node_id),
            stun_port=self.stun_port,
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


@dataclass(slots=True)
class JoinService:
    """Service that admits nodes."""

    registry: Registry
    broker: Broker
    broker_host: str
    """Where agents find the broker; empty: at the host of the URL by which they came."""
    agents_tls: ServerTrust
    """What agents accept the certificate of their port by."""
    model: ModelSize | None = None
    """Size of the model that is served."""
    suspensions: Suspensions = field(default_factory=Suspensions)
    """Nodes that are not let in now, though they are members."""
    _admitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Each waits for the disk, in a thread, and holds the registry meanwhile: one at a time, or the
    event loop would wait for all of them when it asks the registry itself."""

    async def join(self, sealed: bytes) -> bytes:
        """The answer to a request, sealed for its sender.

        Raises JoinRefusedError with a sentence for the node's owner, ControlError for what is no
        request, of a node that is suspended, or when the broker does not answer.
        """
        async with self._admitting:
            admitted = await asyncio.to_thread(self._admit, sealed)
        own, opened, member = admitted
        if member.node_id in self.suspensions:
            raise ControlError("This node has said far too much: it is let in again after a while.")
        speaks = own_protocols()
        credentials = await self.broker.allow(member.node_id, member.password)
        answer = JoinAnswer(
            challenge=opened.request.challenge,
            node_id=member.node_id,
            broker_host=self.broker_host,
            broker_port=self.broker.address.port,
            broker_tls=self.broker.trust,
            agents_tls=self.agents_tls,
            username=credentials.username,
            password=credentials.password,
            weights_token=member.weights_token,
            time_unix_s=time.time(),
            coordinator_public_key=own.public_z85,
            model=self.model,
            protocol=speaks.newest,
            protocol_min=speaks.oldest,
        )
        return seal(answer, own, opened.key)

    def _admit(self, sealed: bytes) -> tuple[KeyPair, OpenedRequest, NodeRecord]:
        own = self.registry.coordinator
        opened = open_request(sealed, own)
        asked = opened.request
        admitted = self.registry.admit(opened.key, asked, time.time(), opened.pc_key)
        if admitted.is_new and (trouble := own_protocols().trouble(asked.protocol)):
            log.warning("%s (MoLink %s) has joined. %s", asked.name, asked.version, trouble)
        return own, opened, admitted.node
