"""What the agent makes of its stage's words about a path."""

import asyncio
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path as FilePath

import pytest

from molink.control.messages.assignment import Join
from molink.control.messages.payloads import Services, StageLink
from molink.stage_protocol.messages import MovePath, PathMoved
from molink.transport.paths.choose import Path
from molink.transport.paths.reach import Reach
from molink.transport.relay.client import Pauses, RelayCaller, RelayReceiver
from molink.transport.relay.protocol import relay_token
from molink.transport.relay.server import RelayServer
from molink_agent.daemon import routes as routes_module
from molink_agent.daemon.routes import (
    ListenAddress,
    RelayedRoutes,
    _Route,
    keeper_of,
)
from molink_agent.data_files import AgentOptions
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.network.port_mapping import PortMapper
from molink_agent.network.shared_line import LocalPorts, SharedUplink
from molink_scheduler.head.settings import RingTerms
from tests.coordinator.examples import WORK
from tests.transport.relay.nodes import (
    ANNA,
    BERT,
    SECRET,
    EchoPort,
    caller_of,
    free_address,
    until,
)

RELAYED = Path("relay", "127.0.0.1:9")
NEAR = Path("direct", "127.0.0.1:7")


NEARBY = Reach.of(["203.0.113.9"], [("192.168.1.7", "255.255.255.0")])


def nearby():
    return NEARBY


def this_pc():
    return Reach.of(["127.0.0.1"], [])


@dataclass
class FakeKeeper:
    path: Path = RELAYED
    failures: list[Path] = field(default_factory=list)

    def failed(self, path: Path) -> None:
        self.failures.append(path)


@pytest.fixture
def route():
    return _Route(FakeKeeper(), None)


@pytest.fixture
def routes(route):
    limits, uplink = LimitsFile(FilePath("nowhere")), SharedUplink(lambda: None, lambda: None)
    listen_address = ListenAddress(AgentOptions(), limits)
    routes = RelayedRoutes("node", listen_address, LocalPorts(), uplink, PortMapper(), nearby)
    routes._routes["next"] = route
    return routes


def test_a_path_on_which_nothing_is_acknowledged_has_failed(routes, route):
    routes.path_moved(PathMoved("next", "tcp://10.0.0.1:7", False, "nothing is acknowledged"))
    assert route.keeper.failures == [route.keeper.path]


def test_a_move_that_went_well_changes_nothing(routes, route):
    route.moving_to = "tcp://127.0.0.1:9"
    routes.path_moved(PathMoved("next", "tcp://127.0.0.1:9", True, ""))
    assert route.keeper.failures == [] and route.moving_to == ""


def test_what_is_said_of_a_path_that_is_being_left_does_not_count_against_the_next(routes, route):
    route.moving_to = "tcp://127.0.0.1:9"
    routes.path_moved(PathMoved("next", "tcp://10.0.0.1:7", False, "another way was asked for"))
    assert route.keeper.failures == []
    routes.path_moved(PathMoved("next", "tcp://127.0.0.1:9", False, "nobody answers"))
    assert route.keeper.failures == [route.keeper.path]


def test_of_a_link_that_is_not_there_nothing_is_made(routes):
    before = dict(routes.paths)
    routes.path_moved(PathMoved("coordinator", "tcp://a:1", False, "nobody answers"))
    assert routes.paths == before


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


async def test_no_link_leads_to_this_pc_s_own_services_or_to_another_relay(routes):
    routes.caller = RelayCaller("8.8.4.4:8002", "node", "token")
    link = StageLink(
        to="n",
        public_key="k" * 40,
        addresses=("127.0.0.1:22", "192.168.1.9:7000", "169.254.169.254:80", "8.8.8.8:7000"),
        port_name="ring",
        relay="127.0.0.1:8000",
    )
    reach = await routes.reach()
    followed = routes._permitted(link, reach)
    assert followed.addresses == ("192.168.1.9:7000", "8.8.8.8:7000") and followed.relay == ""
    same = link.model_copy(update={"relay": "8.8.4.4:8002"})
    assert routes._permitted(same, reach).relay == "8.8.4.4:8002"


@pytest.mark.parametrize("relay", ["127.0.0.1:631", "10.9.8.7:8002", "169.254.169.254:80"])
async def test_no_relay_is_where_none_can_be(routes, relay):
    await routes.use(Services(relay=relay, relay_token="token"))
    assert routes.caller is None


async def test_a_relay_whose_name_is_not_found_at_first_is_tried_again(routes, monkeypatch):
    found = iter([[], [], [ip_address("8.8.4.4")]])
    monkeypatch.setattr("molink.transport.paths.reach._looked_up", lambda host: next(found, []))
    routes.pauses = Pauses(0.0, 0.0)
    routes.open_port("peer", 7000)
    await routes.use(Services(relay=f"localhost:{free_address().rpartition(':')[2]}"))
    assert routes.caller is None
    async with asyncio.timeout(20):
        await routes._retrying
    assert routes.caller.address.startswith("localhost:")
    assert routes._receiver._ports == {"peer": "127.0.0.1:7000"}
    await routes.close()


async def test_services_that_a_new_coordinator_offers_bring_us_back_to_its_relay(routes):
    """Its relay was away as long as it was, and neighbours call us through it."""
    routes.pauses, routes.find_reach = Pauses(3600.0, 3600.0), this_pc
    address = free_address()
    routes.node_id = BERT
    services = Services(relay=address, relay_token=relay_token(SECRET, BERT))
    await routes.use(services)
    await until(lambda: routes._receiver.trouble != "")
    async with RelayServer(SECRET, "127.0.0.1", int(address.rpartition(":")[2])):
        await routes.use(services)
        async with asyncio.timeout(20):
            await routes._receiver.registered.wait()
        assert routes._receiver.trouble == ""
    del routes._routes["next"]
    await routes.close()


@dataclass
class QuickKeeper:
    """Finds a path at once."""

    moved: object
    path: Path = NEAR
    trouble: str = ""

    async def run(self) -> None:
        await self.moved(self.path)
        await asyncio.Event().wait()


async def test_a_stage_is_told_which_ways_lead_through_the_relay(routes, monkeypatch):
    def keeper_of(link, caller, moved):
        return QuickKeeper(moved, RELAYED)

    monkeypatch.setattr(routes_module, "keeper_of", keeper_of)
    del routes._routes["next"]
    moves: list[MovePath] = []
    link = StageLink(to=BERT, public_key="k" * 40, addresses=(), port_name="ring")
    given = Join(work=WORK, terms=RingTerms(64), next_link=link, coordinator_link=None)
    command = await routes.join_command(1, given, moves.append)
    assert (command.next_address, command.next_relayed) == ("tcp://127.0.0.1:9", True)
    for path in (NEAR, RELAYED):
        await routes._routes["next"].keeper.moved(path)
    near, relayed = (f"tcp://{path.address}" for path in (NEAR, RELAYED))
    assert moves == [MovePath("next", near, False), MovePath("next", relayed, True)]
    await routes.leave()


async def test_the_way_to_a_shadow_is_beside_those_that_the_ring_needs(routes, monkeypatch):
    monkeypatch.setattr(routes_module, "keeper_of", lambda link, caller, moved: QuickKeeper(moved))
    before, moves = dict(routes.paths), []
    link = StageLink(to=BERT, public_key="k" * 40, addresses=(), port_name="ring")
    for _ in range(2):
        found = await routes.shadow_address(link, lambda *move: moves.append(move))
        assert found == ("tcp://127.0.0.1:7", "k" * 40)
    assert routes.paths == before and moves == []
    del routes._routes["next"]
    await routes.leave()
