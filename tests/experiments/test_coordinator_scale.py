"""The experiment on a whole coordinator is run by hand; here that its agents are agents."""

import asyncio
import time
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from molink.agents_api.app import add_join_route
from molink.api.server import start_api
from molink.control.broker.embedded import EmbeddedBroker
from molink.control.certificate import own_certificate
from molink.control.client import ControlClient
from molink.control.messages.payloads import (
    NodeHealth,
    PathReport,
    PeerAddress,
    Presence,
    ProbeOrder,
    Profile,
    StageFact,
)
from molink.control.messages.topics import ASSIGNMENT, PROBE
from molink.control.registry.registry import Registry
from molink.coordinator.nodes.access import REPORT_TOPICS
from molink.coordinator.services import JoinService
from tests.control.assignments import loading, stopping
from tests.coordinator.examples import WORK
from tools.experiments.control.coordinator_scale import table
from tools.experiments.swarm.member import Member, with_invite

PEER = PeerAddress(node_id="b" * 16, public_key="k" * 40, addresses=())
ORDER = ProbeOrder(round=3, model="m", peers=(PEER,))


@asynccontextmanager
async def coordinator(folder):
    """As much of one as joining takes: its registry, its broker, its route."""
    tls, app = own_certificate(folder), web.Application()
    registry, broker = Registry.open(folder), EmbeddedBroker("127.0.0.1", 0, tls)
    await broker.start()
    add_join_route(app, JoinService(registry, broker, "127.0.0.1", tls.trust))
    runner = await start_api(app, "127.0.0.1", 0, tls.server_context())
    registry.url = f"https://127.0.0.1:{runner.addresses[0][1]}"
    known = broker.coordinator
    async with ControlClient.open(
        broker.address,
        known.username,
        known.password,
        subscriptions=[topic.of_all for topic in REPORT_TOPICS],
    ) as client:
        yield registry.make_invite(3600, 5, "", time.time()), client
    await runner.cleanup()
    await broker.stop()
    registry.close()


async def heard(messages, kind):
    """The next message of a kind."""
    async with asyncio.timeout(10):
        async for received in messages:
            if isinstance(received.message, kind):
                return received.message
    raise AssertionError("the client reads on")


async def test_a_member_joins_and_answers_commands(tmp_path):
    async with coordinator(tmp_path) as (invite, client), aiohttp.ClientSession() as session:
        member, messages = Member(7), client.messages()
        await member.join(with_invite(session, invite))
        running = asyncio.create_task(member.run())
        assert (await heard(messages, Presence)).name == "pc0007"
        assert not (await heard(messages, Profile)).steps
        await client.publish(PROBE, member.node_id, ORDER)
        assert (await heard(messages, Profile)).steps.model == "m"
        report = await heard(messages, PathReport)
        assert (report.round, [path.to for path in report.paths]) == (3, ["b" * 16])
        await client.publish(ASSIGNMENT, member.node_id, loading(WORK, revision=5))
        assert (await heard(messages, StageFact)).kind == "downloading"
        await client.publish(ASSIGNMENT, member.node_id, stopping(revision=6))
        assert (await heard(messages, StageFact)).kind == "stopped"
        member.publish_health()
        await heard(messages, NodeHealth)
        member.kill()
        assert not (await heard(messages, Presence)).online
        assert (member.probe_orders, member.assignments) == (1, 2)
        with pytest.raises((OSError, EOFError)):
            await running


def test_the_longest_stall_and_the_slowest_notice_are_shown():
    figures = dict.fromkeys(("agents", "joins_per_s", "measured_s", "placed_s", "plan_s"), 1)
    figures |= {"cpu": {"coordinator": 0.5}, "memory_mb": {"coordinator": 90.0}}
    stalls = {"stall_s": 0.02, "stall_while_placing_s": 0.25}
    lost = {"kill_s": [0.1, 0.25], "freeze_s": [4.0, None]}
    row = table(figures | stalls | lost).splitlines()[-1]
    assert row.endswith("| 50% | 90 | 250 | 0.2 | never |")
