"""The coordinator's description of a link becomes something that keeps its path."""

import asyncio

from molink.control.messages.payloads import StageLink
from molink.transport.relay.receiver import Pauses, RelayReceiver
from molink.transport.relay.server import RelayServer
from molink_agent.network.links import keeper_of
from tests.transport.relay.nodes import ANNA, BERT, SECRET, EchoPort, caller_of, free_address


async def first_path(link, caller):
    found = asyncio.get_running_loop().create_future()

    async def moved(path):
        found.set_result(path)

    running = asyncio.create_task(keeper_of(link, caller, moved).run())
    async with asyncio.timeout(20):
        path = await found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return path


async def test_a_link_goes_through_the_relay_that_it_names():
    async with RelayServer(SECRET, "127.0.0.1") as relay, EchoPort() as port:
        receiver = RelayReceiver(caller_of(BERT, relay.address), Pauses(0.01, 0.05))
        receiver.open("ring", port.address)
        running = asyncio.create_task(receiver.run())
        await receiver.registered.wait()
        link = StageLink(
            to=BERT,
            public_key="k" * 40,
            addresses=(free_address(), port.address),
            port_name="ring",
            relay=relay.address,
        )
        path = await first_path(link, caller_of(ANNA, free_address()))
        assert path.kind == "relay"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
