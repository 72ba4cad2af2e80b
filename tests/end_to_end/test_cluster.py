"""Agents join with an invite, form a ring, and answer as one model would, whoever leaves."""

import asyncio
import json
import shutil

import aiohttp
import psutil
import pytest

from molink.control.identity import load_or_make_key
from tests.certificates import Authority
from tests.end_to_end.clusters import cluster, free_ports, running
from tests.mosquitto import Mosquitto, installed_mosquitto

PROMPTS = [[1, 5, 9], [1, 20, 21, 22, 23, 24], [1] + [7, 8] * 20, [1, 90]]
MAX_TOKENS = 24
LONG_TOKENS = 300

SMALL_GB = "0.000172"
"""About three layers of the tiny model with the KV of a user: no PC can hold it alone."""


def body(prompt, tokens=MAX_TOKENS):
    return {
        "prompt_token_ids": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


async def nodes_of(tools, made):
    report = await tools.get(made.url, "/cluster")
    return {node["name"]: node for node in report["nodes"]}


async def states_of(tools, made):
    return {name: node["state"] for name, node in (await nodes_of(tools, made)).items()}


async def answers(tools, made, prompts=PROMPTS, tokens=MAX_TOKENS):
    posts = [tools.post(made.url, "/generate", body(prompt, tokens)) for prompt in prompts]
    found = await asyncio.gather(*posts)
    assert [status for status, _ in found] == [200] * len(prompts), found
    return [answer["token_ids"] for _, answer in found]


@pytest.fixture(scope="module")
def three(tmp_path_factory, tiny_llama):
    """Three small PCs in one ring; the first times a layer by itself."""
    options = ("--min-nodes", "3", "--wait", "--dtype", "float32")
    folder = tmp_path_factory.mktemp("three")
    with cluster(folder, tiny_llama, *options) as made:
        for name in ("anna", "ben", "cleo"):
            own = ("--memory-gb", SMALL_GB, "--threads", "1")
            made.join(name, *own, known_steps=name != "anna")
        made.up.line("ready")
        yield made


async def test_a_ring_of_agents_answers_as_the_whole_model_does(three, tools, tiny_llama):
    expected = tools.greedy_reference(tiny_llama, PROMPTS, MAX_TOKENS)
    assert await answers(tools, three) == expected


async def test_cluster_tells_of_every_node(three, tools):
    nodes = await nodes_of(tools, three)
    assert set(nodes) == {"anna", "ben", "cleo"}
    held = sorted(node["layers"] for node in nodes.values() if node["layers"])
    assert held[0][0] == 0 and held[-1][1] == 6 and len(held) >= 2
    for node in nodes.values():
        assert node["state"] in ("serving", "standby")
        assert node["device"] == "cpu"
        steps = node["profile"]["steps"]
        assert steps["decode_fixed_s"] + steps["decode_row_s"] > 0
    serving = [node for node in nodes.values() if node["state"] == "serving"]
    assert all(set(node["paths"].values()) == {"direct"} for node in serving)


def test_an_owner_sees_what_the_pc_does(three):
    told = json.loads(three.agent("status", "anna", "--json").stdout)
    assert told["name"] == "anna"
    assert told["state"] in ("serving", "standby")
    assert "anna" in three.agent("status", "anna").stdout


def test_an_operator_sees_who_has_joined(three):
    listed = json.loads(three.operator("node", "list", "--json").stdout)
    assert {node["name"] for node in listed} == {"anna", "ben", "cleo"}


async def test_an_answer_goes_on_when_a_stage_of_a_pc_dies(three, tools, tiny_llama):
    """The other PCs keep their processes, and the relinked ring says so."""
    asked = asyncio.create_task(answers(tools, three, [PROMPTS[0]], LONG_TOKENS))

    async def some_tokens_are_there():
        told = (await tools.get(three.url, "/cluster/requests"))["requests"]
        return any(one["finish_reason"] is None and one["tokens"] > 20 for one in told)

    await tools.eventually(some_tokens_are_there, within_s=60)
    before = {name: agent.stage_pids()[:1] for name, agent in three.agents.items()}
    lost = next(name for name, pids in before.items() if pids)
    psutil.Process(before[lost][0]).kill()
    assert await asked == tools.greedy_reference(tiny_llama, [PROMPTS[0]], LONG_TOKENS)
    after = {name: agent.stage_pids()[:1] for name, agent in three.agents.items()}
    assert {name for name in before if before[name] != after[name]} == {lost}
    events = (await tools.get(three.url, "/cluster/events"))["events"]
    assert [one["kind"] for one in events].count("ring_resumed") == 1


async def test_an_answer_survives_a_pc_that_is_switched_off(three, tools, tiny_llama):
    """A fourth PC joins, a member dies in the middle of an answer, and not a token is lost."""
    three.join("dan", "--memory-gb", SMALL_GB, "--threads", "1", known_steps=True)

    async def dan_is_ready():
        return (await states_of(tools, three)).get("dan") in ("standby", "serving")

    await tools.eventually(dan_is_ready, within_s=60)
    expected = tools.greedy_reference(tiny_llama, [PROMPTS[1]], LONG_TOKENS)

    async def answered_once_a_ring_serves():
        """With dan the ring may be worth changing just now."""
        while (await tools.get(three.url, "/cluster"))["unready_reason"]:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        return await answers(tools, three, [PROMPTS[1]], LONG_TOKENS)

    asked = asyncio.create_task(answered_once_a_ring_serves())

    async def someone_computes():
        report = await tools.get(three.url, "/cluster")
        return report.get("requests", {}).get("running") and [
            node["name"] for node in report["nodes"] if node["layers"]
        ]

    members = await tools.eventually(someone_computes, within_s=60)
    three.agents[members[0]].kill()
    assert await asked == expected
    assert (await states_of(tools, three))[members[0]] == "lost"


async def test_a_copied_data_directory_ends_the_older_agent(three, tools):
    states = await states_of(tools, three)
    name = next(name for name, state in states.items() if state != "lost")
    copy = three.folder / "copy"
    shutil.copytree(three.data_dir(name), copy, ignore=shutil.ignore_patterns("*.sock", "*.lock"))
    with running("agent", "run", "--data-dir", str(copy)):
        assert three.agents[name].ended() == 2
    assert "Another agent" in "\n".join(three.agents[name].lines)


@pytest.fixture(scope="module")
def one(tmp_path_factory, tiny_llama):
    """One PC over somebody else's broker, and that broker, which lets in the PC by its id."""
    program = installed_mosquitto()
    folder = tmp_path_factory.mktemp("one")
    anna = load_or_make_key(folder / "anna" / "identity.json").node_id
    broker = Mosquitto(program, folder, *free_ports(1), nodes={anna: "annas-password"})
    users = ("--broker-users", str(broker.nodes_file))
    options = ("--broker", broker.url, *users, "--wait", "--dtype", "float32")
    with broker.running(), cluster(folder, tiny_llama, *options) as made:
        made.join("anna", known_steps=True)
        made.up.line("ready")
        yield made, broker


def test_a_pc_without_a_user_at_somebody_elses_broker_is_told_what_to_ask_for(one, tmp_path):
    made, _ = one
    with running("agent", "join", made.invite, "--data-dir", str(tmp_path)) as joining:
        assert joining.ended() == 2
    told = joining.lines[-1]
    assert load_or_make_key(tmp_path / "identity.json").node_id in told
    assert "ask whoever runs it to add" in told


async def test_answers_go_on_while_somebody_elses_broker_is_started_anew(one, tools, tiny_llama):
    made, broker = one
    expected = tools.greedy_reference(tiny_llama, [PROMPTS[1]], LONG_TOKENS)
    asked = asyncio.create_task(answers(tools, made, [PROMPTS[1]], LONG_TOKENS))

    async def computes():
        return (await tools.get(made.url, "/cluster"))["requests"]["running"]

    await tools.eventually(computes)
    broker.kill()
    broker.start()
    assert await asked == expected

    async def is_back():
        return json.loads(made.agent("status", "anna", "--json").stdout)["connected"]

    await tools.eventually(is_back)
    assert await answers(tools, made) == tools.greedy_reference(tiny_llama, PROMPTS, MAX_TOKENS)
    report = await tools.get(made.url, "/cluster")
    assert [ring["ring"] for ring in report["rings"]] == [0], "the ring has served all the time"
    assert (await states_of(tools, made)) == {"anna": "serving"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory, tiny_llama):
    """Two PCs with the operator's certificate; nobody may connect to one
    of them."""
    folder = tmp_path_factory.mktemp("pair")
    tls = Authority.make(folder / "tls").sign_for("127.0.0.1")
    port, broker_port, relay_port, agents_port = (str(port) for port in free_ports(4))
    options = (
        *("--min-nodes", "2", "--wait", "--dtype", "float32"),
        *("--tls-cert", tls.certificate, "--tls-key", tls.key, "--tls-ca", tls.ca),
        *("--port", port, "--broker-port", broker_port, "--relay-port", relay_port),
        *("--agents-port", agents_port),
    )
    with cluster(folder, tiny_llama, *options) as made:
        memory = ("--memory-gb", "0.000268", "--threads", "1")
        made.join("open", *memory, known_steps=True)
        made.join("closed", *memory, "--relay-only", known_steps=True)
        made.up.line("ready")
        yield made


async def test_links_that_cannot_be_direct_go_through_the_relay(pair, tools, tiny_llama):
    nodes = await nodes_of(tools, pair)
    assert nodes["open"]["paths"]["next"] == "relay"
    assert nodes["closed"]["paths"]["next"] == "direct"
    expected = tools.greedy_reference(tiny_llama, PROMPTS, MAX_TOKENS)
    assert await answers(tools, pair) == expected


async def test_a_coordinator_that_was_killed_takes_its_ring_over(pair, tools):
    """With it its broker and its relay die, and all that was retained there. The stages stay, and
    answers under way are read by their ids."""
    bodies = {
        "greedy": body([1, 5, 9], LONG_TOKENS),
        "seeded": body([1, 7, 8], LONG_TOKENS) | {"temperature": 1.0, "seed": 3},
    }
    posts = [tools.post(pair.url, "/generate", one) for one in bodies.values()]
    undisturbed = dict(zip(bodies, await asyncio.gather(*posts), strict=True))
    pids = {agent.stage_pids()[0] for agent in pair.agents.values()}
    async with aiohttp.ClientSession() as session:
        url = f"{pair.url}/generate"
        streams = [tools.first_events(session, url, bodies[one], one, 20) for one in bodies]
        seen = dict(zip(bodies, await asyncio.gather(*streams), strict=True))
        for name in bodies:  # What is asked for is written first: a kill loses the last moment.
            assert "status" in await tools.get(pair.url, f"/generate/{seen[name][0]['id']}")
        pair.start_again()
    pair.up.line("ready")
    after = {agent.stage_pids()[0] for agent in pair.agents.values()}
    assert pids == after, [one.lines for one in (pair.up, *pair.agents.values())]
    for name, events in seen.items():

        async def has_ended(answer_id=events[0]["id"]):
            answer = await tools.get(pair.url, f"/generate/{answer_id}")
            return answer if answer["status"] != "in_progress" else None

        answer = await tools.eventually(has_ended)
        _, expected = undisturbed[name]
        streamed = [token for event in events for token in event["token_ids"]]
        assert 0 < len(streamed) < LONG_TOKENS, "the coordinator was killed in mid-stream"
        assert streamed == expected["token_ids"][: len(streamed)]
        assert answer["token_ids"] == expected["token_ids"]
        assert answer["status"] == "incomplete" and answer["finish_reason"] == "length"
    found = await tools.get(pair.url, "/cluster/events")
    assert "ring_resumed" in [event["kind"] for event in found["events"]]


async def test_a_coordinator_that_was_killed_serves_new_requests(pair, tools, tiny_llama):
    expected = tools.greedy_reference(tiny_llama, PROMPTS, MAX_TOKENS)
    assert await answers(tools, pair) == expected


async def test_a_paused_pc_is_drained_and_taken_back(pair, tools):
    assert pair.agent("drain", "closed").returncode == 0
    assert (await states_of(tools, pair))["closed"] == "paused"

    async def says_what_is_missing():
        status, refused = await tools.post(pair.url, "/generate", body([1, 2]))
        assert status == 503
        return "more are needed" in refused["error"]["message"]

    await tools.eventually(says_what_is_missing)
    assert pair.agent("resume", "closed").returncode == 0

    async def serves():
        return (await tools.get(pair.url, "/health")).get("status") == "ok"

    await tools.eventually(serves, within_s=60)


async def test_limits_are_changed_live(pair, tools):
    assert pair.agent("set", "open", "upload_mbps", "50").returncode == 0

    async def is_told():
        return (await nodes_of(tools, pair))["open"]["profile"]["upload_cap_mbps"] == 50

    await tools.eventually(is_told)
    wrong = pair.agent("set", "open", "uplod_mbps", "50")
    assert wrong.returncode == 2
    assert "upload_mbps" in wrong.stderr


def test_an_invite_that_is_revoked_or_damaged_lets_nobody_in(pair, tmp_path):
    made = pair.operator("invite", "--name", "short").stdout.split()[-1]
    assert pair.operator("invite", "revoke", "short").returncode == 0
    for text, word in ((made, "withdrawn"), (made[:-5], "invite"), (made[:-1] + "!", "invite")):
        with running("agent", "join", text, "--data-dir", str(tmp_path / "x")) as joining:
            assert joining.ended() == 2
        assert word in joining.lines[-1]


async def test_a_removed_node_is_gone_at_once(pair, tools):
    removed = pair.operator("node", "remove", "open")
    assert removed.returncode == 0
    assert pair.agents["open"].ended() == 2

    async def is_gone():
        return "open" not in await states_of(tools, pair)

    await tools.eventually(is_gone)


def test_a_pc_that_leaves_ends_its_agent(pair):
    assert pair.agent("leave", "closed").returncode == 0
    assert pair.agents["closed"].ended() == 0


@pytest.fixture(scope="module")
def one_pc(tmp_path_factory, tiny_llama):
    """A PC that lends two devices, neither of which can hold the model, and to which nobody may
    connect."""
    options = ("--min-nodes", "2", "--wait", "--dtype", "float32")
    folder = tmp_path_factory.mktemp("one-pc")
    with cluster(folder, tiny_llama, *options) as made:
        both = ("--memory-gb", "0.000537", "--threads", "2", "--relay-only")
        made.join("twin", *both, known_steps=True, device="cpu,cpu")
        made.up.line("ready")
        yield made


async def test_two_devices_of_one_pc_are_a_ring(one_pc, tools, tiny_llama):
    expected = tools.greedy_reference(tiny_llama, PROMPTS, MAX_TOKENS)
    assert await answers(tools, one_pc) == expected
    nodes = await nodes_of(tools, one_pc)
    first, second = nodes["twin"], nodes["twin (2)"]
    assert first["pc"] == second["pc"] == first["id"]
    assert sorted(node["layers"] for node in nodes.values())[1][1] == 6
    assert {node["paths"]["next"] for node in nodes.values()} == {"direct"}
    told = json.loads(one_pc.agent("status", "twin", "--json").stdout)
    assert [device["device"] for device in told["devices"]] == ["cpu", "cpu:1"]
    listed = json.loads(one_pc.operator("node", "list", "--json").stdout)
    assert [(node["name"], node["pc"]) for node in listed] == [
        ("twin", None),
        ("twin (2)", first["id"]),
    ]


async def test_what_an_owner_says_holds_for_all_devices(one_pc, tools):
    assert one_pc.agent("drain", "twin").returncode == 0
    assert set((await states_of(tools, one_pc)).values()) == {"paused"}
    assert one_pc.agent("leave", "twin").returncode == 0
    assert one_pc.agents["twin"].ended() == 0
    assert not list(one_pc.data_dir("twin").rglob("membership.json"))
