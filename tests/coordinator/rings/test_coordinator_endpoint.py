"""Where the coordinator finds its own relay and its own ports."""

import pytest

from molink.control.identity import KeyPair
from molink.coordinator.rings.coordinator_endpoint import CoordinatorEndpoint
from molink.coordinator.services import RelayHere
from molink.serving.service import ModelCard
from molink.transport.relay.protocol import COORDINATOR
from molink.transport.relay.server import RelayServer
from molink_scheduler.head.settings import RingTerms

SECRET = b"s" * 32


class Tail:
    """As much of a stage as the endpoint asks for."""

    def __init__(self):
        self.node = self
        self.public_key = KeyPair.generate().public_z85


@pytest.mark.parametrize("listen, reached", [("0.0.0.0", "127.0.0.1"), ("127.0.0.2", "127.0.0.2")])
async def test_a_tail_reaches_the_coordinator_through_its_relay_wherever_it_listens(
    listen, reached
):
    async with RelayServer(SECRET, listen, 0) as relay:
        endpoint = CoordinatorEndpoint(
            keys=KeyPair.generate(),
            card=ModelCard("m", 0, 100, 64, (), None),
            terms=RingTerms(),
            listen_host=listen,
            public_host="192.0.2.1",
            relay=RelayHere(relay, SECRET, listen, "192.0.2.1"),
            epoch=7,
        )
        opened = await endpoint.open([Tail()])
        assert opened.ring == endpoint.terms
        (address,) = opened.coordinator.addresses
        assert address.startswith("192.0.2.1:")
        assert opened.coordinator.port_name == "sampled-7"
        assert opened.coordinator.relay == f"192.0.2.1:{relay.port}"
        caller = endpoint.relay.caller
        assert caller.address == f"{reached}:{relay.port}"
        (await caller.dial(COORDINATOR, "sampled-7")).close()
        await endpoint.close()
