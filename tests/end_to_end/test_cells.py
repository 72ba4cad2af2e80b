"""A stage whose PC has too little memory borrows of another PC, by an operator's word."""

import asyncio
import json
from functools import partial

import psutil

from molink.models import DEMO_MODEL_DIR
from tests.end_to_end.clusters import cluster

OPTIONS = ("--min-nodes", "3", "--wait", "--dtype", "float32", "--context-tokens", "128")
LITTLE_GB = "0.0165"
"""Room for some layers of the demo model and 1,300 of the 2,048 tokens that it takes."""

LONG = [3 + i % 1900 for i in range(1500)]
SHORT = LONG[:200]

WITHIN_S = 300.0
"""Seconds until what is waited for has come, on processors that others keep busy."""

BUSY_PC = """
from molink.coordinator.cell.echo_links import EchoLink
judge = EchoLink.judge
EchoLink.judge = lambda link, seconds, now: judge(link, [2e-4 for _ in seconds], now)
"""
"""Echoes count as if the PC that tests keep busy had answered as a quiet one does."""


def answered(tools, prompt: list[int]) -> list[int]:
    (answer,) = tools.greedy_reference(DEMO_MODEL_DIR, [prompt], 30)
    return answer


async def asked(tools, made, prompt: list[int]) -> list[int]:
    body = {"prompt_token_ids": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    status, answer = await tools.post(made.url, "/generate", body)
    assert status == 200, answer
    return answer["token_ids"]


async def refused(tools, made, prompt: list[int], most: int = 2048):
    """It is let in nowhere, and the sentence says how long a request may be."""
    body = {"prompt_token_ids": prompt, "max_tokens": 30, "temperature": 0, "ignore_eos": True}
    status, answer = await tools.post(made.url, "/generate", body)
    assert status == 400 and str(most) in answer["error"]["message"], answer


async def longest(tools, made) -> int:
    """Tokens of the longest request that is let in."""
    models = await tools.get(made.url, "/v1/models")
    return models["data"][0]["max_model_len"]


async def grown(tools, made):
    """Wait until the longest request is let in: a lender may start more slowly than a ring."""

    async def has_grown():
        return await longest(tools, made) == 2048

    await tools.eventually(has_grown, within_s=WITHIN_S)


async def shrunk(tools, made):
    """Wait until what no lender will bring back is let in no more; it is refused with the figure,
    and shorter ones are answered."""

    async def has_shrunk():
        most = await longest(tools, made)
        return most if most < len(LONG) else None

    await refused(tools, made, LONG, await tools.eventually(has_shrunk, within_s=WITHIN_S))


async def decodes(tools, made) -> bool:
    requests = (await tools.get(made.url, "/cluster/requests"))["requests"]
    return any(one["tokens"] > 3 and one["state"] == "decode" for one in requests)


def lenders(agent) -> list[psutil.Process]:
    """Processes that lend to the LAN now, forks of one of the same name."""
    family = psutil.Process(agent.process.pid).children(recursive=True)
    found = [one for one in family if "molink.lender.lan" in " ".join(one.cmdline())]
    return [one for one in found if one.ppid() in {other.pid for other in found}]


def cells(made) -> dict:
    told = made.operator("cell", "list", "--json", "--url", made.url)
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


async def told(tools, made, check) -> dict:
    """What `molink cell list` tells, once it is so."""

    async def found():
        report = cells(made)
        return report if check(report) else None

    return await tools.eventually(found, within_s=WITHIN_S)


async def epochs(tools, made) -> int:
    """How often the ring went on in another epoch."""
    events = (await tools.get(made.url, "/cluster/events"))["events"]
    return [one["kind"] for one in events].count("ring_resumed")


def lend(made, name: str, ram_gb: str = "0.5"):
    for what, value in (("lend_ram_gb", ram_gb), ("lend_cpu_cores", "1")):
        changed = made.agent("set", name, what, value)
        assert changed.returncode == 0, changed.stderr


async def test_a_stage_borrows_what_its_ring_lacks_for_the_longest_request(tools, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BUSY_PC)
    environment = {"PYTHONPATH": str(tmp_path)}
    with cluster(
        tmp_path, DEMO_MODEL_DIR, *OPTIONS, "--split", "even", environment=environment
    ) as made:
        for name in ("anna", "ben"):
            made.join(name, "--memory-gb", LITTLE_GB, "--threads", "1", known_steps=True)
            lend(made, name)
        await told(tools, made, lambda report: len(report["pcs"]) == 2)
        confirmed = made.operator("cell", "confirm", "anna", "ben", "--url", made.url)
        assert confirmed.returncode == 0, confirmed.stderr
        await told(tools, made, lambda report: report["pairs"][0]["near"])
        made.join("cleo", "--memory-gb", "0.03", "--threads", "1", known_steps=True)
        made.up.line("ready")
        await grown(tools, made)
        report = cells(made)
        assert sum(pc["borrowed_bytes"] for pc in report["pcs"]) > 0, report
        assert await asked(tools, made, LONG) == answered(tools, LONG)
        await refused(tools, made, LONG + SHORT * 3)
        forgotten = made.operator("cell", "forget", "anna", "ben", "--url", made.url)
        assert forgotten.returncode == 0, forgotten.stderr
        await told(tools, made, lambda report: not any(pc["held_bytes"] for pc in report["pcs"]))
        await shrunk(tools, made)
        assert await asked(tools, made, SHORT) == answered(tools, SHORT)


async def test_a_ring_that_stands_borrows_once_its_cell_is_confirmed(tools, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BUSY_PC)
    environment = {"PYTHONPATH": str(tmp_path)}
    with cluster(
        tmp_path, DEMO_MODEL_DIR, *OPTIONS, "--split", "even", environment=environment
    ) as made:
        for name, memory_gb in (("anna", LITTLE_GB), ("ben", LITTLE_GB), ("cleo", "0.03")):
            made.join(name, "--memory-gb", memory_gb, "--threads", "1", known_steps=True)
        made.up.line("ready")
        stages = {name: one.stage_pids()[:1] for name, one in made.agents.items()}
        assert await longest(tools, made) < len(LONG) + 30
        for name in ("anna", "ben"):
            lend(made, name)
        confirmed = made.operator("cell", "confirm", "anna", "ben", "--url", made.url)
        assert confirmed.returncode == 0, confirmed.stderr
        served = asyncio.create_task(asked(tools, made, SHORT))
        await grown(tools, made)
        assert await served == answered(tools, SHORT)
        assert await asked(tools, made, LONG) == answered(tools, LONG)
        answering = asyncio.create_task(asked(tools, made, LONG))
        await tools.eventually(partial(decodes, tools, made), within_s=WITHIN_S)
        lender = next(one for agent in made.agents.values() for one in lenders(agent))
        lender.kill()
        assert await answering == answered(tools, LONG)
        assert stages == {name: one.stage_pids()[:1] for name, one in made.agents.items()}
        await told(tools, made, lambda report: any(pc["held_bytes"] for pc in report["pcs"]))
        begun = await epochs(tools, made)
        answering = asyncio.create_task(asked(tools, made, SHORT))
        for name in ("anna", "ben"):
            lend(made, name, "0")
        await told(tools, made, lambda report: not any(pc["held_bytes"] for pc in report["pcs"]))
        assert await answering == answered(tools, SHORT)
        assert await asked(tools, made, SHORT) == answered(tools, SHORT)
        assert begun and await epochs(tools, made) == begun, "what lay there came home"
