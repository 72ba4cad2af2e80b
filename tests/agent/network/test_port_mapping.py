"""Ports at the router: kept mapped, removed at the end, and whatever fails is only a sentence."""

import asyncio
import threading
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from molink_agent.network.port_mapping import MappingPeriods, PortMapper
from tests.transport.relay.nodes import until

QUICKLY = MappingPeriods(answer_s=5, renew_s=0.01, removal_s=5)
SELDOM = MappingPeriods(answer_s=5, renew_s=600, removal_s=5)


@dataclass
class Router:
    """A gateway whose answers are set."""

    public: str = "8.8.4.4"
    ports: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)
    trouble: Exception | None = None

    def discover(self):
        self.asked.append("discover")
        if self.trouble:
            raise self.trouble
        return self.public

    def map(self, port, lease_s):
        self.asked.append(f"map {port}")
        self.ports[port] = lease_s
        return port + 1

    def unmap(self, port):
        self.asked.append(f"unmap {port}")
        del self.ports[port]


@asynccontextmanager
async def mapping(*routers, periods=SELDOM, ports=(7000,)):
    mapper = PortMapper([lambda router=router: router for router in routers], periods)
    mapper.want("stage", ports)
    running = asyncio.create_task(mapper.run())
    yield mapper
    running.cancel()
    (ended,) = await asyncio.gather(running, return_exceptions=True)
    assert isinstance(ended, asyncio.CancelledError)


async def test_ports_are_mapped_as_they_are_wanted_and_removed_at_the_end():
    router = Router()
    async with mapping(router, ports=(7000, 7001)) as mapper:
        await until(lambda: mapper.mapped == {7000: "8.8.4.4:7001", 7001: "8.8.4.4:7002"})
        assert router.ports == {7000: 3600, 7001: 3600}
        assert mapper.changed.is_set()
        await until(lambda: mapper.trouble == "")
        mapper.want("stage", [7001, 7005])
        await until(lambda: set(mapper.mapped) == {7001, 7005})
        assert set(router.ports) == {7001, 7005}
    assert router.ports == {}


async def test_leases_are_renewed():
    router = Router()
    async with mapping(router, periods=QUICKLY):
        await until(lambda: router.asked.count("map 7000") >= 3)


async def test_the_first_router_of_use_is_taken():
    silent, private, good = Router(trouble=OSError("no answer")), Router("192.168.0.2"), Router()
    async with mapping(silent, private, good) as mapper:
        await until(lambda: 7000 in mapper.mapped)
    assert "map 7000" in good.asked and "map 7000" not in private.asked


@pytest.mark.parametrize(
    ("router", "why"),
    [
        (Router(trouble=OSError("no UPnP router answers")), "no UPnP router answers"),
        (Router(trouble=Exception("Success")), "Success"),
        (Router("10.0.0.1"), "another router behind it"),
        (Router("100.64.3.4"), "another router behind it"),
        (Router(""), "says that its address is ''"),
    ],
)
async def test_a_router_that_is_of_no_use_is_a_sentence(router, why):
    async with mapping(router) as mapper:
        await until(lambda: why in mapper.trouble)
        assert mapper.mapped == {}


async def test_no_router_of_any_kind():
    async with mapping() as mapper:
        await until(lambda: "no kind of router" in mapper.trouble)


async def test_a_router_that_goes_away_takes_its_addresses_along():
    router = Router()
    async with mapping(router, periods=QUICKLY) as mapper:
        await until(lambda: bool(mapper.mapped))
        router.trouble = OSError("gone")
        await until(lambda: not mapper.mapped and "gone" in mapper.trouble)
        router.trouble = None
        await until(lambda: bool(mapper.mapped))


async def test_a_router_that_never_answers_holds_nothing_up():
    """Neither the agent nor its end; and it is not asked again while it thinks."""
    hold = threading.Event()

    @dataclass
    class Stuck(Router):
        def discover(self):
            self.asked.append("discover")
            hold.wait()
            raise OSError("too late")

    router = Stuck()
    periods = MappingPeriods(answer_s=0.02, renew_s=0.01, removal_s=0.1)
    async with mapping(router, periods=periods) as mapper:
        await until(lambda: "older question" in mapper.trouble)
        assert router.asked == ["discover"]
    hold.set()
