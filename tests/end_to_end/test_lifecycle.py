"""Processes start, end, die and are cleaned up as the command line promises."""

import asyncio
import re
import signal
import socket
import time
from functools import partial
from pathlib import Path

import aiohttp
import psutil
import pytest

from molink.cli.cluster_status import ENDING
from molink.cli.serve import WHERE
from tests.end_to_end.forked import stage
from tests.end_to_end.forked.asking import fork_of

STAGES = {"stage_process", stage.__name__.rpartition(".")[2]}
"""Names of a stage's program."""

STOP_WITHIN_S = 5.0


def program_of(process: psutil.Process) -> str:
    """The last word of the module or program that a child runs."""
    words = process.cmdline()
    name = words[words.index("-m") + 1] if "-m" in words else Path(words[0]).name
    return name.rpartition(".")[2]


def all_end(server, how: int) -> None:
    """With their server, which is sent a signal."""
    children = server.children()
    started = time.monotonic()
    assert server.stop(how) == 0
    gone, alive = psutil.wait_procs(children, timeout=STOP_WITHIN_S)
    assert not alive and len(gone) == len(children)
    assert time.monotonic() - started < STOP_WITHIN_S


def test_a_stop_signal_ends_every_process(tools, tiny_llama):
    """An interrupt does, too: below, where a ring was built anew. What is said is that it starts
    and ends, how far a slow PC has loaded, and nothing else."""
    with tools.serving(str(tiny_llama), "--nodes", "2", "--link", "1000:1", forks=False) as server:
        assert sorted(map(program_of, server.children())) == [
            *("emulator", "stage_process", "stage_process")
        ]
        all_end(server, signal.SIGTERM)
        told = (
            "Starting ",
            "Who may ask: ",
            "weights: ",
            ENDING,
            *(line.partition("{")[0] for line in WHERE.splitlines()),
        )
        assert [line for line in server.stderr if not any(one in line for one in told)] == []


def test_stages_do_not_outlive_a_killed_server(tools, tiny_llama):
    """And layers alone say how many they are."""
    with tools.serving(str(tiny_llama), "--layers", "0-2,2-6") as server:
        children = server.children()
        assert sum(program_of(child) in STAGES for child in children) == 2
        computing = [psutil.Process(fork_of(child.pid)) for child in children]
        server.stop(signal.SIGKILL)
        _, alive = psutil.wait_procs([*children, *computing], timeout=STOP_WITHIN_S)
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


async def finding_on(tools, server, node: str) -> dict | None:
    """What stands out about a node."""
    found = (await tools.get(server.url, "/cluster/findings"))["findings"]
    return next((one for one in found if one["subject"] == node), None)


async def is_in_metrics(tools, server, found: dict) -> bool:
    async with aiohttp.ClientSession() as http, http.get(f"{server.url}/metrics") as response:
        labels = f'finding="{found["kind"]}",severity="{found["severity"]}"'
        return f"molink_finding{{{labels}}} 1.0" in await response.text()


def asking(tools, server, tokens: int) -> asyncio.Task:
    body = {"prompt_token_ids": [5], "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return asyncio.create_task(tools.post(server.url, "/generate", body))


async def waiting_process(tools, server) -> int:
    """Id of the one that stands ready for the stage which is lost first."""
    stages = {one["pid"] for one in (await tools.get(server.url, "/cluster"))["stages"]}

    async def found():
        programs = [one for one in server.children() if program_of(one) in STAGES]
        return {one.pid for one in programs} - stages

    (pid,) = await tools.eventually(found)
    return pid


async def test_an_answer_goes_on_when_stages_die_or_hang_and_the_others_stay(tools, tiny_llama):
    """Middle and head are killed, the tail is stopped, in turn: the others keep their processes,
    which load once, and the KV; no token is lost or comes twice. What fills the first hole has
    waited for it. Links that are cut for half a second before end nothing."""
    options = ("--nodes", "3", "--dtype", "float32", "--link", "100:20")
    with tools.serving(str(tiny_llama), *options, waits=True) as server:
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
            psutil.Process(fork_of(before["stages"][place]["pid"])).send_signal(how)
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


@pytest.mark.parametrize("ram", ["0", "auto"])
async def test_chains_that_nobody_uses_are_hits_after_a_loss(tools, tiny_llama, ram):
    """The middle stage is killed between two turns of a chat: the next one begins with what was
    cached, and so does the one after it; no token is another one."""
    options = ("--nodes", "3", "--dtype", "float32", "--cache-ram-gb", ram)
    with tools.serving(str(tiny_llama), *options) as server:
        prompt = [5 + place % 90 for place in range(100)]
        body = {"prompt_token_ids": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        [expected] = tools.greedy_reference(tiny_llama, [prompt], 8)
        cached = []
        for turn in range(3):
            status, answer = await tools.post(server.url, "/generate", body)
            assert (status, answer["token_ids"]) == (200, expected)
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
            if turn:
                continue
            before = await tools.get(server.url, "/cluster")
            psutil.Process(before["stages"][1]["pid"]).kill()

            async def goes_on(epoch=before["epoch"]):
                cluster = await tools.get(server.url, "/cluster")
                kinds = await kinds_of_events(tools, server, ring=0)
                return cluster["epoch"] > epoch and "ring_resumed" in kinds

            await tools.eventually(goes_on, within_s=60.0)
        assert cached == [0, 96, 96]
        shown = (await tools.get(server.url, "/cluster"))["prefix_cache"]
        assert (shown["tiers"] is None) is (ram == "0")
        assert server.stop() == 0


async def test_a_standby_takes_the_place_of_a_stage_that_dies(tools, tiny_llama):
    """It holds the layers already, and KV: nothing is loaded, the process of the other stage stays,
    and only rows are sent again that the standby has not reported."""
    options = ("--layers", "0-2,2-6", "--standby", "1", "--dtype", "float32")
    with tools.serving(str(tiny_llama), *options) as server:

        async def shadowed():
            nodes = (await tools.get(server.url, "/cluster"))["nodes"]
            return next((one["covers"] for one in nodes if one["shadow"]), None)

        assert await tools.eventually(shadowed, within_s=60) == "stage 1", "it holds more"
        asked = asking(tools, server, tokens=300)
        before = await until_tokens(tools, server, 150)
        processes = {one.pid for one in server.children()}
        psutil.Process(before["stages"][1]["pid"]).kill()
        found = await tools.eventually(partial(finding_on, tools, server, "stage 1"), within_s=5.0)
        assert found["kind"] in ("stage_lost", "resumed") and "stage 1" in found["sentence"]
        assert await is_in_metrics(tools, server, found)
        status, answer = await asked
        [expected] = tools.greedy_reference(tiny_llama, [[5]], 300)
        assert (status, answer["token_ids"]) == (200, expected)
        after = (await tools.get(server.url, "/cluster"))["stages"]
        assert after[1]["node"] == "standby 0" and after[1]["pid"] in processes
        assert after[0]["pid"] == before["stages"][0]["pid"]
        events = (await tools.get(server.url, "/cluster/events"))["events"]
        [resumed] = [one["text"] for one in events if one["kind"] == "ring_resumed"]
        assert int(re.search(r"(\d+) tokens behind", resumed)[1]) < 150


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
        all_end(server, signal.SIGINT)
        said = "".join(server.stderr)
        assert "link emulator" in said and "requests are answered" in said
        assert "Traceback" not in said


def test_what_cannot_be_is_refused_in_one_sentence(tools, tiny_llama, tmp_path):
    from safetensors.torch import load_file, save_file

    (tmp_path / "empty").mkdir()
    torn = tools.save_tiny_llama(tmp_path / "torn")
    weights = load_file(torn / "model.safetensors")
    del weights["model.layers.3.mlp.up_proj.weight"]
    save_file(weights, torn / "model.safetensors", metadata={"format": "pt"})
    wrong_options = [
        (("--nodes", "7"), "6 layers"),
        (("--nodes", "2", "--layers", "0-2,4-6"), "gap"),
        (("--nodes", "2", "--layers", "0-4,3-6"), "overlap"),
        (("--nodes", "0"), "--nodes"),
        (("--link", "fast"), "--link"),
        (("--max-model-len", "100000"), "512"),
        (("--dtype", "float8"), "--dtype"),
        (("--device", "cuda:7", "--nodes", "1"), "device"),
        (("--no-such-option",), "--no-such-option"),
        *((("--draft-width-max", one), "--draft-width-max") for one in ("-1", "1000", "many")),
    ]
    cases = [(("serve", str(tiny_llama), *options), says) for options, says in wrong_options]
    cases += [(("serve", str(tmp_path / one)), one) for one in ("no-such-model", "empty")]
    cases.append((("serve", str(torn), "--nodes", "2"), "model.layers.3.mlp"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        lines = [(*line, "--port", "0") for line, _ in cases]
        *found, of_the_port = tools.refusals([*lines, ("serve", str(tiny_llama), "--port", port)])
    assert port in of_the_port
    assert [says for (_, says), said in zip(cases, found, strict=True) if says not in said] == []


def test_a_refusal_ends_the_process_with_2(tools, tmp_path):
    done = tools.run_molink("serve", str(tmp_path / "no-such-model"), forks=False)
    assert done.returncode == 2 and "no-such-model" in done.stderr
    assert done.stdout == "" and "Traceback" not in done.stderr
