"""The benchmark of the control plane is run by hand; here that its agents are agents."""

import asyncio
import time
from functools import partial

from click.testing import CliRunner

from molink.control.broker.embedded import EmbeddedBroker
from molink.control.client import ControlClient
from tools.experiments.control.control_scale import main
from tools.experiments.swarm.agent import Agent
from tools.experiments.swarm.agents import agent_name
from tools.experiments.swarm.broker_host import HOST, let_in
from tools.experiments.swarm.table import table
from tools.experiments.swarm.watch import Watch


async def test_an_agent_joins_says_how_it_is_and_dies():
    broker = EmbeddedBroker(HOST, 0)
    await broker.start()
    door = await asyncio.start_server(partial(let_in, broker), HOST, 0)
    known, watch, name = broker.coordinator, Watch(), agent_name(1)
    async with ControlClient.open(
        broker.address, known.username, known.password, subscriptions=["molink/v1/node/+/said/#"]
    ) as client:
        listening = asyncio.create_task(watch.listen(client))
        agent = await Agent.join(name, door.sockets[0].getsockname()[1], broker.address.port)
        watch.measuring = True
        agent.say_health()
        assert await watch.until(lambda: bool(watch.delays_s), 10)
        assert watch.present == {name}
        assert 0 <= watch.delays_s[0] < 10
        assert not watch.beats.fallen_silent(time.monotonic())
        agent.die()
        assert await watch.until(lambda: name in watch.willed_s, 10)
        assert not watch.has_missed(name)
        assert not await watch.until(lambda: False, 0.01)
        listening.cancel()
    door.close()
    await broker.stop()


def test_names_are_ids():
    names = [agent_name(number) for number in (0, 1, 12345)]
    assert len(set(names)) == 3
    assert all(len(name) == 16 for name in names)


def test_it_is_a_command():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert all(option in result.output for option in ("--agents", "--broker", "--out"))


def test_a_loss_that_was_not_noticed_is_never():
    figures = dict.fromkeys(
        ("agents", "joined", "joins_per_s", "messages_per_s", "broker_cpu", "coordinator_cpu"), 1
    ) | {"broker": "x", "broker_memory_mb": 1.0, "delay_p50_s": 0.001, "delay_p99_s": 0.002}
    lost = {"kill_will_s": [0.1, 0.25], "freeze_will_s": [1.0, None], "freeze_silence_s": [4.0]}
    row = table([figures | lost]).splitlines()[-1]
    assert row.endswith("| 1.0 | 2.0 | 0.25 | never | 4.00 |")
