"""Processes start, end, die and are cleaned up as the command line promises."""

import asyncio
import signal
import socket
import time
from pathlib import Path

import aiohttp
import psutil
import pytest

from molink.control.broker.mosquitto import find_mosquitto

STOP_WITHIN_S = 5.0

BROKER = ["mosquitto"] if find_mosquitto() is not None else []
"""Of the broker's processes; one that is not Mosquitto runs within the server."""


def program_of(process: psutil.Process) -> str:
    """The last word of the module or program that a child runs."""
    words = process.cmdline()
    name = words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name
    return name.rpartition(".")[2]


async def test_cluster_lists_stages_links_and_requests(tools, tiny_server):
    await tools.post(
        tiny_server.url, "/generate", {"prompt_token_ids": [5], "max_tokens": 3, "temperature": 0}
    )

    async def all_reported():
        cluster = await tools.get(tiny_server.url, "/cluster")
        return cluster if len(cluster["links"]) == 5 else None

    cluster = await tools.eventually(all_reported)
    assert [stage["layers"] for stage in cluster["stages"]] == [[0, 1], [1, 4], [4, 6]]
    assert {stage["pid"] for stage in cluster["stages"]} <= {
        child.pid for child in tiny_server.children()
    }
    assert cluster["epoch"] >= 1
    assert cluster["model"].endswith("tiny-llama")
    assert [(link["from"], link["to"]) for link in cluster["links"]] == [
        ("coordinator", "stage 0"),
        ("stage 0", "stage 1"),
        ("stage 1", "stage 2"),
        ("stage 2", "stage 0"),
        ("stage 2", "coordinator"),
    ]
    assert set(cluster["requests"]) == {"running", "waiting"}
    assert [(node["name"], node["state"], node["layers"]) for node in cluster["nodes"]] == [
        ("stage 0", "serving", [0, 1]),
        ("stage 1", "serving", [1, 4]),
        ("stage 2", "serving", [4, 6]),
    ]


async def test_a_client_that_goes_away_frees_its_place(tools, tiny_server):
    body = {"prompt_token_ids": [5], "max_tokens": 400, "ignore_eos": True, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(tiny_server.url + "/generate", json=body) as answer,
    ):
        await answer.content.readline()

    async def nothing_held():
        cluster = await tools.get(tiny_server.url, "/cluster")
        held = [stage["kv_tokens_used"] for stage in cluster["stages"]]
        return not any(held) and cluster["requests"] == {"running": 0, "waiting": 0}

    assert await tools.eventually(nothing_held)
    status, _ = await tools.post(
        tiny_server.url, "/generate", {"prompt_token_ids": [5], "max_tokens": 2}
    )
    assert status == 200


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_ends_every_process(tools, tiny_llama, how):
    with tools.serving(str(tiny_llama), "--nodes", "2", "--link", "1000:1") as server:
        children = server.children()
        assert sorted(map(program_of, children)) == sorted(
            ["stage_process", "stage_process", "emulator", *BROKER]
        )
        started = time.monotonic()
        assert server.stop(how) == 0
        gone, alive = psutil.wait_procs(children, timeout=STOP_WITHIN_S)
        assert not alive and len(gone) == len(children)
        assert time.monotonic() - started < STOP_WITHIN_S
        assert not server.stderr


def test_stages_do_not_outlive_a_killed_server(tools, tiny_llama):
    with tools.serving(str(tiny_llama), "--nodes", "2") as server:
        children = server.children()
        server.stop(signal.SIGKILL)
        _, alive = psutil.wait_procs(children, timeout=STOP_WITHIN_S)
        assert not alive


async def told_of_the_request(tools, server) -> dict:
    (told,) = (await tools.get(server.url, "/cluster/requests"))["requests"]
    return told


async def until_tokens(tools, server, count: int) -> dict:
    """The cluster once the answer has so many tokens."""

    async def has_them():
        cluster = await tools.get(server.url, "/cluster")
        requests = (await tools.get(server.url, "/cluster/requests"))["requests"]
        return cluster if requests and requests[0]["tokens"] >= count else None

    return await tools.eventually(has_them, within_s=60.0)


async def kinds_of_events(tools, server, ring: int) -> list[str]:
    events = (await tools.get(server.url, "/cluster/events"))["events"]
    return [one["kind"] for one in events if one["ring"] == ring]


def asking(tools, server, tokens: int) -> asyncio.Task:
    body = {"prompt_token_ids": [5], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return asyncio.create_task(tools.post(server.url, "/generate", body))


async def waiting_process(tools, server) -> int:
    """Id of the one that stands ready for the stage which is lost first."""
    stages = {one["pid"] for one in (await tools.get(server.url, "/cluster"))["stages"]}

    async def found():
        programs = [one for one in server.children() if program_of(one) == "stage_process"]
        return {one.pid for one in programs} - stages

    (pid,) = await tools.eventually(found)
    return pid


async def test_an_answer_goes_on_when_stages_die_or_hang_and_the_others_stay(tools, tiny_llama):
    """Middle and head are killed, the tail is stopped, in turn: the others keep their processes,
    which load once, and the KV; no token is lost or comes twice. What fills the first hole has
    waited for it. Links that are cut for half a second before end nothing."""
    options = ("--nodes", "3", "--dtype", "float32", "--link", "100:20")
    with tools.serving(str(tiny_llama), *options) as server:
        waiting = await waiting_process(tools, server)
        asked = asking(tools, server, tokens=80)
        await until_tokens(tools, server, 2)
        lines = [c for c in server.children() if "molink.transport.emulator" in c.cmdline()]
        for how in (signal.SIGSTOP, signal.SIGCONT):
            for line in lines:
                line.send_signal(how)
            await asyncio.sleep(0.5)
        harms = (1, signal.SIGKILL), (0, signal.SIGKILL), (2, signal.SIGSTOP)
        for count, (place, how) in enumerate(harms):
            before = await until_tokens(tools, server, 5 + 20 * count)
            psutil.Process(before["stages"][place]["pid"]).send_signal(how)
            after = await until_tokens(tools, server, 15 + 20 * count)
            assert count or after["stages"][place]["pid"] == waiting
            pids = [[one["pid"] for one in cluster["stages"]] for cluster in (before, after)]
            stayed = [one == other for one, other in zip(*pids, strict=True)]
            assert stayed == [index != place for index in range(3)]
            assert after["epoch"] > before["epoch"]
        status, answer = await asked
        [expected] = tools.greedy_reference(tiny_llama, [[5]], 80)
        assert (status, answer["token_ids"]) == (200, expected)
        told = await told_of_the_request(tools, server)
        assert [one["ring"] for one in told["attempts"]] == [0, 0, 0, 0]
        assert sum(one["tokens"] for one in told["attempts"]) == told["tokens"] == 80
        kinds = await kinds_of_events(tools, server, ring=0)
        assert kinds.count("ring_resumed") == kinds.count("stage_lost") == 3
        assert "stage_silent" in kinds
        assert not {"ring_ended", "request_moved"} & set(kinds)
        assert server.stop() == 0
        said = "".join(server.stderr)
        assert said.count("with the KV of 1 requests") == 3 and "Traceback" not in said


async def test_a_standby_takes_the_place_of_a_stage_that_dies(tools, tiny_llama):
    """It holds the layers already: nothing is loaded, and the process of the other stage stays."""
    options = ("--nodes", "2", "--standby", "1", "--dtype", "float32")
    with tools.serving(str(tiny_llama), *options) as server:

        async def covered():
            nodes = (await tools.get(server.url, "/cluster"))["nodes"]
            return next((one["covers"] for one in nodes if one["covers"]), None)

        lost = await tools.eventually(covered)
        asked = asking(tools, server, tokens=400)
        before = await until_tokens(tools, server, 5)
        place = [one["node"] for one in before["stages"]].index(lost)
        processes = {one.pid for one in server.children()}
        psutil.Process(before["stages"][place]["pid"]).kill()
        status, answer = await asked
        [expected] = tools.greedy_reference(tiny_llama, [[5]], 400)
        assert (status, answer["token_ids"]) == (200, expected)
        after = (await tools.get(server.url, "/cluster"))["stages"]
        assert after[place]["node"] == "standby 0" and after[place]["pid"] in processes
        assert after[1 - place]["pid"] == before["stages"][1 - place]["pid"]
        assert (await kinds_of_events(tools, server, ring=0)).count("ring_resumed") == 1


async def test_an_answer_goes_on_when_the_link_emulator_dies(tools, tiny_llama):
    """In the ring that replaces the lost one, and no token is lost or comes twice."""
    options = ("--nodes", "2", "--dtype", "float32", "--link", "10:50")
    with tools.serving(str(tiny_llama), *options) as server:
        asked = asking(tools, server, tokens=60)
        before = await until_tokens(tools, server, 5)
        emulator = next(c for c in server.children() if "molink.transport.emulator" in c.cmdline())
        emulator.kill()
        status, answer = await asked
        after = await tools.get(server.url, "/cluster")
        [expected] = tools.greedy_reference(tiny_llama, [[5]], 60)
        assert (status, answer["token_ids"]) == (200, expected)
        assert after["epoch"] > before["epoch"] and after["unready_reason"] is None
        told = await told_of_the_request(tools, server)
        first, second = told["attempts"]
        assert first["tokens"] + second["tokens"] == told["tokens"] == 60
        assert first["moved_because"] and told["finish_reason"] == "length"
        kinds = await kinds_of_events(tools, server, first["ring"])
        assert {"ring_serving", "request_moved", "ring_ended"} <= set(kinds)
        assert server.stop() == 0
        said = "".join(server.stderr)
        assert "link emulator" in said and "requests are answered" in said
        assert "Traceback" not in said


def test_layers_alone_say_how_many_nodes(tools, tiny_llama):
    with tools.serving(str(tiny_llama), "--layers", "0-2,2-6") as server:
        programs = [program_of(child) for child in server.children()]
        assert programs.count("stage_process") == 2


def refused(tools, *arguments: str) -> str:
    """The one sentence with which a command line is refused."""
    done = tools.run_molink(*arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()
    return done.stderr


@pytest.mark.parametrize(
    "options, says",
    [
        (("--nodes", "7"), "6 layers"),
        (("--nodes", "2", "--layers", "0-3,4-6"), "gap"),
        (("--nodes", "2", "--layers", "0-4,3-6"), "overlap"),
        (("--nodes", "0"), "--nodes"),
        (("--link", "fast"), "--link"),
        (("--max-model-len", "100000"), "512"),
        (("--dtype", "float8"), "--dtype"),
        (("--device", "cuda:7", "--nodes", "1"), "device"),
        (("--no-such-option",), "--no-such-option"),
    ],
)
def test_options_that_cannot_be_are_refused(tools, tiny_llama, options, says):
    assert says in refused(tools, "serve", str(tiny_llama), "--port", "0", *options)


def test_a_model_that_is_not_there_is_refused(tools, tmp_path):
    assert "no-such-model" in refused(tools, "serve", str(tmp_path / "no-such-model"))
    (tmp_path / "empty").mkdir()
    assert "empty" in refused(tools, "serve", str(tmp_path / "empty"))


def test_a_shard_without_a_tensor_is_refused(tools, tmp_path):
    from safetensors.torch import load_file, save_file

    model = tools.save_tiny_llama(tmp_path / "torn")
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    says = refused(tools, "serve", str(model), "--nodes", "2", "--port", "0")
    assert "model.layers.3.mlp" in says


def test_a_port_in_use_is_refused_before_anything_loads(tools, tiny_llama):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert port in refused(tools, "serve", str(tiny_llama), "--port", port)
