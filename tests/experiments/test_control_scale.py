"""The experiment on brokers is run by hand; here that its agents are agents."""

import asyncio
import time
from functools import partial

from molink.control.broker.embedded import EmbeddedBroker
from tools.experiments.control.control_scale import table, watching_swarm
from tools.experiments.swarm.broker_host import HOST, Hosted, let_in
from tools.experiments.swarm.member import Member, at_port


async def test_a_member_is_let_in_publishes_its_health_and_is_killed():
    broker = EmbeddedBroker(HOST, 0)
    await broker.start()
    admission = await asyncio.start_server(partial(let_in, broker), HOST, 0)
    known, member = broker.coordinator, Member(1)
    ports = broker.address.port, admission.sockets[0].getsockname()[1]
    async with watching_swarm(Hosted(*ports, known.username, known.password, 0)) as watch:
        await member.join(at_port(ports[1], ports[0]))
        watch.measuring = True
        member.publish_health()
        assert await watch.until(lambda: bool(watch.delays_s), 10)
        assert watch.present == {member.node_id}
        assert 0 <= watch.delays_s[0] < 10
        assert not watch.beats.fallen_silent(time.monotonic())
        member.kill()
        assert await watch.until(lambda: member.node_id in watch.willed_s, 10)
        assert not watch.has_missed(member.node_id)
        assert not await watch.until(lambda: False, 0.01)
    admission.close()
    await broker.stop()


def test_a_loss_that_was_not_noticed_is_never():
    figures = dict.fromkeys(
        ("agents", "joined", "joins_per_s", "messages_per_s", "broker_cpu", "coordinator_cpu"), 1
    ) | {"broker_memory_mb": 1.0, "delay_p50_s": 0.001, "delay_p99_s": 0.002}
    lost = {"kill_will_s": [0.1, 0.25], "freeze_will_s": [1.0, None], "freeze_silence_s": [4.0]}
    row = table([figures | lost]).splitlines()[-1]
    assert row.endswith("| 1.0 | 2.0 | 0.25 | never | 4.00 |")
