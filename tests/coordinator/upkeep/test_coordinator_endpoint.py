"""Where the coordinator finds its own relay and its own ports."""

import asyncio
from types import SimpleNamespace

import pytest

from molink.control.identity import KeyPair
from molink.control.messages.payloads import StageLink
from molink.coordinator.services import RelayHere
from molink.coordinator.upkeep.coordinator_endpoint import CoordinatorEndpoint
from molink.serving.model_card import ModelCard
from molink.tasks import cancel
from molink.transport.link.process_links import ProcessLinks
from molink.transport.relay.protocol import COORDINATOR
from molink.transport.relay.server import RelayServer
from molink.wire.curve_keys import CurveKeys
from molink.wire.frames import FROM_COORDINATOR, Cancel
from molink_scheduler.head.settings import RingTerms

SECRET = b"s" * 32


def an_endpoint(keys: KeyPair, listen: str, public_host: str, relay: RelayHere):
    return CoordinatorEndpoint(
        keys=keys,
        card=ModelCard("m", 0, 100, 64, (), None),
        terms=RingTerms(),
        listen_host=listen,
        public_host=public_host,
        relay=relay,
        epoch=7,
    )


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
        here = RelayHere(relay, SECRET, listen, "192.0.2.1")
        endpoint = an_endpoint(KeyPair.generate(), listen, "192.0.2.1", here)
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


class Head:
    """A head that takes the coordinator's messages, in one epoch."""

    def __init__(self, own: KeyPair, coordinator: KeyPair, epoch: int):
        self.own, self.arrived = own, asyncio.Event()
        keys = CurveKeys(own.public_z85, own.secret_z85, (coordinator.public_z85,))
        loop = asyncio.get_running_loop()
        self.links = ProcessLinks.bind(
            "head",
            "127.0.0.1",
            (FROM_COORDINATOR,),
            lambda arrived: loop.call_soon_threadsafe(self.arrived.set),
            print,
            keys,
            epoch,
        )

    @property
    def ring(self):
        """As much of a ring with this head as the endpoint asks for."""
        address = f"127.0.0.1:{self.links.inbound[0].port}"
        key = self.own.public_z85
        link = StageLink(to="a" * 20, public_key=key, addresses=(address,), port_name="requests")
        terms = SimpleNamespace(ring=RingTerms(kv_tokens_capacity=100))
        return SimpleNamespace(requests_link=link, terms=terms, epoch=self.links.epoch)


async def test_the_next_epoch_leads_to_the_head_that_it_has():
    """A head that was lost listens at another port, and its ring is gone on with in the moment in
    which a path to it begins to be looked for."""
    coordinator, own = KeyPair.generate(), KeyPair.generate()
    heads = [Head(own, coordinator, epoch) for epoch in (7, 8)]
    async with RelayServer(SECRET, "127.0.0.1", 0) as relay:
        here = RelayHere(relay, SECRET, "127.0.0.1", "127.0.0.1")
        endpoint = an_endpoint(coordinator, "127.0.0.1", "127.0.0.1", here)
        await endpoint.open([Tail()])
        watching = asyncio.create_task(endpoint.watch(heads[0].ring))
        client = await endpoint.connect(heads[0].ring)
        await cancel(watching)
        heads[0].links.close()
        watching = asyncio.create_task(endpoint.watch(heads[1].ring))
        await endpoint.begin_epoch(heads[1].ring)
        client.links.send(Cancel(3))
        async with asyncio.timeout(10):
            await heads[1].arrived.wait()
        assert heads[1].arrived.is_set() and not heads[0].arrived.is_set()
        await cancel(watching)
        await endpoint.close()
        heads[1].links.close()
