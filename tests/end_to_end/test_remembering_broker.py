"""A broker of somebody else's remembers: the dead stay dead, garbage is nobody's word, and when it
has forgotten all, those who live are back at once."""

import json
import os

import aiomqtt
import pytest

from molink.control.identity import load_or_make_key
from tests.control.conftest import presence
from tests.end_to_end.clusters import cluster, free_ports, running
from tests.mosquitto import Mosquitto, installed_mosquitto

BODY = {"prompt_token_ids": [1, 5, 9], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
SAID = "molink/v1/node/{}/said/{}"
STRANGER = "a" * 16
GARBAGE = os.urandom(2**20)


@pytest.fixture
def made(tmp_path, tiny_llama):
    """Two PCs, of which one is removed, and their broker."""
    program = installed_mosquitto()
    ids = {n: load_or_make_key(tmp_path / n / "identity.json").node_id for n in ("anna", "ben")}
    nodes = {node_id: "password" for node_id in ids.values()}
    broker = Mosquitto(program, tmp_path, *free_ports(1), nodes=nodes, remembers=True)
    users = ("--broker-users", str(broker.nodes_file))
    options = ("--broker", broker.url, *users, "--wait", "--dtype", "float32")
    ports = ("--port", "--relay-port", "--agents-port")
    fixed = [
        word for name, port in zip(ports, free_ports(3), strict=True) for word in (name, str(port))
    ]
    with broker.running(), cluster(tmp_path, tiny_llama, *options, *fixed) as found:
        for name in ids:
            found.join(name, known_steps=True)
        found.up.line("ready")
        assert found.operator("node", "remove", "ben").returncode == 0
        yield found, broker, ids


async def remember(broker, *messages):
    """Have the broker keep messages."""
    async with aiomqtt.Client(
        "127.0.0.1", broker.port, username=broker.user, password=broker.password
    ) as client:
        for topic, payload in messages:
            await client.publish(topic, payload, qos=1, retain=True)


async def serves_with_anna_alone(made, tools, ids):
    """An answer comes, and nobody is listed who was not let in."""

    async def answers():
        status, _ = await tools.post(made.url, "/generate", BODY)
        return status == 200

    await tools.eventually(answers, within_s=15)
    listed = {one["id"]: one for one in json.loads(made.operator("node", "list", "--json").stdout)}
    assert STRANGER not in listed and ids["anna"] in listed
    nodes = (await tools.get(made.url, "/cluster"))["nodes"]
    assert {one["name"] for one in nodes if one["state"] == "serving"} == {"anna"}
    assert not [one for one in nodes if one["id"] in (ids["ben"], STRANGER)]


async def test_the_dead_stay_dead_and_the_living_come_back(made, tools):
    found, broker, ids = made
    ghost = presence(name="ben").model_dump_json()
    await remember(
        broker,
        *((SAID.format(ids["ben"], kind), ghost) for kind in ("presence", "health", "profile")),
        *((SAID.format(STRANGER, kind), GARBAGE) for kind in ("presence", "profile")),
        (SAID.format(STRANGER, "presence"), ghost),
        (SAID.format(ids["ben"], "fact"), GARBAGE),
    )
    found.start_again()
    found.up.line("ready")
    await serves_with_anna_alone(found, tools, ids)
    events = (await tools.get(found.url, "/cluster/events"))["events"]
    assert not [one for one in events if one["node"] in (ids["ben"], STRANGER)]
    broker.stop()
    broker.forget()
    broker.start()
    await serves_with_anna_alone(found, tools, ids)
    found.up.kill()
    broker.stop()
    broker.forget()
    broker.start()
    found.up = found.stack.enter_context(running(*found.arguments))
    found.up.line("ready")
    await serves_with_anna_alone(found, tools, ids)
