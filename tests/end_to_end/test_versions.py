"""Agents and a coordinator of different builds: whoever speaks another protocol is left out and
told to update, the others serve, and nobody rests for it.

A build of another protocol is today's with another number. One from before numbers were told says
none and compares none, on either side. Beside them the last release is tried as it was, where the
checkout has its tag, or a commit that $MOLINK_TESTS_RELEASE names.
"""

import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import aiohttp
import pytest

from molink.wire.protocol import PROTOCOL_VERSION
from tests.end_to_end.clusters import cluster, free_ports, running

BODY = {"prompt_token_ids": [1, 5, 9], "max_tokens": 8, "temperature": 0, "ignore_eos": True}

OPTIONS = ("--broker", "embedded", "--dtype", "float32")

NUMBERED = """
from molink.wire import protocol
protocol.PROTOCOL_VERSION = protocol.PROTOCOL_MIN = {number}
"""

SILENT = """
from molink.control import versions
from molink.control.messages import assignment, joining, payloads
versions.Protocols.trouble = lambda self, number: ""
for kind in (joining.JoinRequest, joining.JoinAnswer, payloads.Presence, assignment.Assignment,
             payloads.ShadowOrder, payloads.CoordinatorPresence):
    for name in kind.model_fields.keys() & {"protocol", "protocol_min"}:
        kind.model_fields[name].exclude = True
    kind.model_rebuild(force=True)
"""


def build(folder: Path, number: int, *, tells: bool = True) -> dict[str, str]:
    """Environment in which `molink` and its stages speak another protocol."""
    place = folder / f"build-{number}-{tells}"
    place.mkdir(exist_ok=True)
    changes = NUMBERED.format(number=number) + ("" if tells else SILENT)
    (place / "sitecustomize.py").write_text(changes)
    here = (place, Path(__file__).parents[2], *os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return {"PYTHONPATH": os.pathsep.join(map(str, here))}


def older(folder: Path) -> dict[str, str]:
    """The last build that told no number."""
    return build(folder, PROTOCOL_VERSION - 1, tells=False)


def release(folder: Path) -> tuple[int, dict[str, str]]:
    """The protocol of the last release, and the environment in which it runs."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> bytes:
        done = subprocess.run(["git", *words], cwd=root, capture_output=True)
        return done.stdout if done.returncode == 0 else b""

    tag = os.environ.get("MOLINK_TESTS_RELEASE") or (
        git("describe", "--tags", "--abbrev=0", "--match", "v[0-9]*").decode().strip()
    )
    tree = git("archive", tag, "molink", "agent", "scheduler", "sim") if tag else b""
    if not tree:
        pytest.skip("this checkout has no tag of a release")
    place = folder / "release"
    with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
        archive.extractall(place, filter="data")
    texts = [path.read_text() for path in (place / "molink/wire").glob("*.py")]
    (number,) = re.findall(r"^PROTOCOL_VERSION = (\d+)$", "\n".join(texts), re.MULTILINE)
    rooms = (place, *(place / name for name in ("agent", "scheduler", "sim")))
    path = os.pathsep.join(map(str, rooms))
    return int(number), {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def join(made, *names: str, environment: dict[str, str] | None = None):
    own = {} if environment is None else {"environment": environment, "forks": False}
    for name in names:
        made.join(name, "--threads", "1", known_steps=True, **own)


async def nodes(tools, made):
    report = await tools.get(made.url, "/cluster")
    return {node["name"]: node for node in report["nodes"]}


async def states(tools, made):
    return {name: node["state"] for name, node in (await nodes(tools, made)).items()}


async def until_here(tools, made, name):
    """One that imports comes later than those that are forked."""

    async def is_here():
        return name in await nodes(tools, made)

    await tools.eventually(is_here, within_s=120)


async def reason(made) -> str:
    """Why users are not served; empty: they are."""
    async with aiohttp.ClientSession() as session, session.get(f"{made.url}/health") as answer:
        return "" if answer.status == 200 else await answer.text()


async def check_serves(tools, made, tiny_llama):
    (expected,) = tools.greedy_reference(tiny_llama, [BODY["prompt_token_ids"]], 8)
    status, answer = await tools.post(made.url, "/generate", BODY)
    assert (status, answer["token_ids"]) == (200, expected)


async def check_nobody_rests(tools, made):
    events = (await tools.get(made.url, "/cluster/events"))["events"]
    kinds = {event["kind"] for event in events}
    assert "ring_ended" not in kinds, events
    assert not any(
        "rests" in (node["reason"] or "") for node in (await nodes(tools, made)).values()
    )


async def test_a_ring_with_a_shadow_and_audits_serves_without_the_one_that_is_older(
    tools, tiny_llama, tmp_path
):
    options = (*OPTIONS, "--min-nodes", "3", "--standby", "1", "--audit-share", "1")
    with cluster(tmp_path, tiny_llama, *options) as made:
        join(made, "old", environment=older(tmp_path))
        await until_here(tools, made, "old")
        join(made, "anna", "ben", "cleo")
        made.up.line_with("requests are answered")

        async def settled():
            found = await states(tools, made)
            today = sorted(found[name] for name in ("anna", "ben", "cleo"))
            return found if today == ["serving", "serving", "standby"] else None

        found = await tools.eventually(settled, within_s=120)
        assert found["old"] == "outdated"
        for _ in range(3):
            await check_serves(tools, made, tiny_llama)
        await check_nobody_rests(tools, made)
        listed = made.operator("node", "list").stdout
        assert listed.count("outdated") == 1 and listed.count("update MoLink on that PC") == 1
        made.agents["old"].line_with(": It speaks")
        assert "update MoLink on that PC" in made.agent("status", "old").stdout


async def test_a_cluster_of_older_agents_says_so_and_serves_once_they_are_updated(
    tools, tiny_llama, tmp_path
):
    with cluster(tmp_path, tiny_llama, *OPTIONS, "--min-nodes", "2") as made:
        join(made, "anna", "ben", environment=older(tmp_path))

        async def told():
            why = await reason(made)
            return "2 PCs" in why and "update MoLink on that PC" in why

        assert await tools.eventually(told, within_s=60)
        assert await states(tools, made) == {"anna": "outdated", "ben": "outdated"}
        for name in ("anna", "ben"):
            made.agents[name].line_with("update MoLink")
            made.agents[name].kill()
            place = ("--data-dir", str(made.data_dir(name)))
            made.agents[name] = made.stack.enter_context(
                running("agent", "run", *place, forks=True)
            )
        made.up.line_with("requests are answered")
        await check_serves(tools, made, tiny_llama)
        assert set((await states(tools, made)).values()) == {"serving"}
        await check_nobody_rests(tools, made)
        assert "update" not in made.agent("status", "anna").stdout


@pytest.mark.parametrize("tells", [False, True])
async def test_newer_agents_tell_of_a_coordinator_that_is_older(tools, tiny_llama, tmp_path, tells):
    before = build(tmp_path, PROTOCOL_VERSION - 1, tells=tells)
    with cluster(tmp_path, tiny_llama, *OPTIONS, environment=before) as made:
        join(made, "anna", "ben")
        for name in ("anna", "ben"):
            made.agents[name].line_with("outdated: It speaks")
            assert "outdated" in made.agent("status", name).stdout

        async def known():
            found = await nodes(tools, made)
            return found if len(found) == 2 and all(n["reason"] for n in found.values()) else None

        found = await tools.eventually(known, within_s=60)
        for node in found.values():
            assert node["state"] == ("outdated" if tells else "paused")
            assert "update MoLink on the coordinator's machine" in node["reason"]
        await check_nobody_rests(tools, made)
        why = await reason(made)
        assert why and ("update MoLink" in why) is tells


async def test_a_relay_of_another_version_carries_a_ring(tools, tiny_llama, tmp_path):
    (port,) = free_ports(1)
    secret = tmp_path / "relay.secret"
    secret.write_text("5" * 64)
    secret.chmod(0o600)
    place = ("--host", "127.0.0.1", "--port", str(port), "--secret-file", str(secret))
    with running("relay", *place, environment=older(tmp_path)) as relay:
        relay.line("ready relay")
        options = (*OPTIONS, "--min-nodes", "2", "--relay", f"127.0.0.1:{port}")
        with cluster(tmp_path, tiny_llama, *options, "--relay-secret-file", str(secret)) as made:
            for name in ("anna", "ben"):
                memory = ("--memory-gb", "0.000268", "--threads", "1")
                made.join(name, *memory, "--relay-only", known_steps=True)
            made.up.line_with("requests are answered")
            await check_serves(tools, made, tiny_llama)
            paths = [node["paths"].get("next") for node in (await nodes(tools, made)).values()]
            assert "relay" in paths
            await check_nobody_rests(tools, made)


async def test_an_agent_of_the_last_release_beside_one_of_today(tools, tiny_llama, tmp_path):
    number, before = release(tmp_path)
    with cluster(tmp_path, tiny_llama, *OPTIONS) as made:
        join(made, "old", environment=before)
        await until_here(tools, made, "old")
        join(made, "anna")
        made.up.line_with("requests are answered")
        await check_serves(tools, made, tiny_llama)
        found = await nodes(tools, made)
        assert (found["old"]["state"] == "outdated") is (number != PROTOCOL_VERSION)
        if number != PROTOCOL_VERSION:
            assert "update MoLink on that PC" in found["old"]["reason"]
            made.agents["old"].line_with("update MoLink on that PC")
        await check_nobody_rests(tools, made)


async def test_a_coordinator_of_the_last_release_with_an_agent_of_today(
    tools, tiny_llama, tmp_path
):
    number, before = release(tmp_path)
    with cluster(tmp_path, tiny_llama, *OPTIONS, environment=before) as made:
        join(made, "anna")
        if number == PROTOCOL_VERSION:
            made.up.line_with("requests are answered")
            await check_serves(tools, made, tiny_llama)
        else:
            made.agents["anna"].line_with("outdated: It speaks")
            made.up.line_with("update MoLink on the coordinator's machine")
            assert await reason(made)
        await check_nobody_rests(tools, made)
