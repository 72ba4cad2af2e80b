"""A member that lies, a stranger with a socket, a listener on the way: what becomes of the others?

    python -m tools.experiments.guard.lies --out DIR

One cluster of two honest agents with real stages serves four users without a pause. Each lie is
told by a new member; before and meanwhile it is watched what the users see, whether coordinator
and honest agents live, and whether one of them is taken for lost.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import click

from molink import __version__
from molink.control.broker.packets import Kind, encode, encode_text
from molink.control.messages.payloads import Device, NodeWish, Presence
from molink.control.messages.topics import HEALTH, PRESENCE, PROFILE, WISH
from molink.control.versions import own_protocols
from molink.errors import MolinkError
from tools.experiments.guard import strangers
from tools.experiments.guard.attacks import MqttByHand
from tools.experiments.guard.cluster import GuardedCluster, guarded_cluster, verdict
from tools.experiments.harness.experiment import experiment, markdown_table, show, write_report
from tools.experiments.harness.processes import MOLINK

__all__ = ["main"]

BEFORE_S = 6.0
AFTER_S = 4.0
"""Users are watched so long before a lie, and after it was told."""

LIE_S = 6.0
ESCAPES = "\x1b]0;owned\x07\x1b[2J"
RETAINED_COUNT, RETAINED_BYTES = 300, 2**20 - 1000
FILTERS = 300_000
PROFILES = 25

Lie = Callable[[GuardedCluster], Awaitable[dict[str, Any]]]


async def figures_of_another_type(cluster: GuardedCluster) -> dict[str, Any]:
    """A serving stage's report with a text, or a number that no float holds, for a figure."""
    fake = cluster.fake()
    async with fake.member():
        await fake.until_serving()
        for name in ("requests_waiting", "requests_running", "busy_s", "steps"):
            fake.stage[name] = "x"
            await asyncio.sleep(1.5)
            fake.stage[name] = 1
        whole = {"incarnation": fake.session.incarnation, "state": "serving", "uptime_s": 1.0}
        text = json.dumps(whole | {"stage": fake.stage | {"decode_step_s": 10**400}})
        for odd in (text, text.replace("1.0", "NaN"), "[" * 5000):
            await fake.say_raw(HEALTH, odd.encode())
            await asyncio.sleep(1.0)
    return {}


async def a_profile_without_devices(cluster: GuardedCluster) -> dict[str, Any]:
    """As an agent says it whose owner has taken its only device back, while it serves."""
    fake = cluster.fake()
    async with fake.member():
        await fake.until_serving()
        await fake.say(PROFILE, fake.profile(devices=()))
        await asyncio.sleep(LIE_S)
    return {}


async def numbers_that_are_none(cluster: GuardedCluster) -> dict[str, Any]:
    """A clock that is off by nothing finite: is GET /cluster still JSON?"""
    fake = cluster.fake()
    async with fake.member():
        text = (
            fake.profile().model_dump_json().replace('"clock_offset_s":0.0', '"clock_offset_s":NaN')
        )
        await fake.say_raw(PROFILE, text.encode())
        await asyncio.sleep(2.0)
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{cluster.run.url}/cluster") as response,
        ):
            body = await response.text()
    return {"odd_numbers_in_cluster": len(re.findall(r"\bNaN|Infinity\b", body))}


async def a_stage_of_one_token(cluster: GuardedCluster) -> dict[str, Any]:
    """A stage that says it holds a single token of KV."""
    fake = cluster.fake(line={"kv_tokens_capacity": 1})
    async with fake.member():
        await asyncio.sleep(2 * LIE_S)
    return {"told_to_load": len(fake.assignments)}


async def a_stage_at_no_port(cluster: GuardedCluster) -> dict[str, Any]:
    """A stage that listens at port -1; how often is it planned with again?"""
    fake = cluster.fake(line={"coordinator_port": -1})
    async with fake.member():
        await asyncio.sleep(2 * LIE_S)
    return {"told_to_load": len(fake.assignments)}


async def names_that_are_ids(cluster: GuardedCluster) -> dict[str, Any]:
    """Two members that are called by each other's id: can both be removed?"""
    first, second = cluster.fake("first"), cluster.fake("second")
    first.name, second.name = second.node_id, first.node_id
    refused = 0
    for one in (first, second):
        try:
            await one.join()
        except MolinkError:
            refused += 1
    removed = sum(_removed(cluster, one.node_id) for one in (first, second))
    return {"refused": refused, "removed": removed}


def _removed(cluster: GuardedCluster, node: str) -> bool:
    words = ("node", "remove", node, "--data-dir", str(cluster.run.folder / "coordinator"))
    return (
        subprocess.run(
            [sys.executable, "-m", MOLINK, *words], capture_output=True, check=False
        ).returncode
        == 0
    )


async def control_characters(cluster: GuardedCluster) -> dict[str, Any]:
    """Escape sequences in every text that a member can give."""
    fake = cluster.fake()
    async with fake.member():
        session = fake.session
        presence = Presence.model_construct(
            name=f"attic{ESCAPES}",
            incarnation=session.incarnation,
            started_unix_s=time.time(),
            protocol=own_protocols().newest,
            version=__version__,
            online=True,
            reason=ESCAPES,
        )
        await fake.say_raw(PRESENCE, presence.model_dump_json(warnings=False).encode())
        device = Device.model_construct(
            kind="cpu", name=ESCAPES, memory_bytes=2**30, free_bytes=2**30
        )
        profile = fake.profile().model_copy(update={"devices": (device,), "nat": ESCAPES})
        await fake.say_raw(PROFILE, profile.model_dump_json(warnings=False).encode())
        await fake.say_raw(WISH, json.dumps({"wish": "pause", "reason": ESCAPES}).encode())
        await asyncio.sleep(3.0)
        words = ("node", "list", "--data-dir", str(cluster.run.folder / "coordinator"))
        listed = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-m", MOLINK, *words], capture_output=True
        )
    printed = "".join(line for _, line in cluster.run.up.lines) + "".join(cluster.log())
    return {"escapes_printed": (printed + listed.stdout.decode()).count("\x1b]")}


async def retained_without_end(cluster: GuardedCluster) -> dict[str, Any]:
    """300 retained messages of a megabyte under a member's own topics."""
    fake, before_mb = cluster.fake(), cluster.coordinator_mb()
    await fake.join()
    sent = 0
    try:
        async with MqttByHand.open(fake) as mqtt:
            for number in range(RETAINED_COUNT):
                topic = f"molink/v1/node/{fake.node_id}/said/x{number}"
                await mqtt.send(mqtt.published(topic, bytes(RETAINED_BYTES), retain=True))
                sent += 1
    except OSError:
        pass
    await asyncio.sleep(2.0)
    folder = cluster.run.folder / "coordinator"
    disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"sent": sent, "grown_mb": cluster.coordinator_mb() - before_mb, "disk_mb": disk / 1e6}


async def filters_without_end(cluster: GuardedCluster) -> dict[str, Any]:
    """A subscription to 300,000 filters."""
    fake = cluster.fake()
    await fake.join()
    one = encode_text("a") + b"\x01"
    try:
        async with MqttByHand.open(fake) as mqtt:
            await mqtt.send(encode(Kind.SUBSCRIBE, b"\0\x01" + one * FILTERS, flags=2))
            await asyncio.sleep(LIE_S)
    except OSError:
        pass
    return {}


async def profiles_without_end(cluster: GuardedCluster) -> dict[str, Any]:
    """25 profiles, each with a new address: how often must a neighbour measure?"""
    fake, neighbour = cluster.fake(memory_bytes=1), cluster.fake(memory_bytes=1)
    async with neighbour.member(), fake.member():
        await asyncio.sleep(3.0)
        before = neighbour.probe_orders
        for number in range(PROFILES):
            await fake.say(PROFILE, fake.profile(addresses=(f"127.0.0.1:{2000 + number}",)))
            await asyncio.sleep(0.5)
        await asyncio.sleep(2.0)
        return {"rounds_of_a_neighbour": neighbour.probe_orders - before}


async def another_start_of_a_member(cluster: GuardedCluster) -> dict[str, Any]:
    """A member that says it was started in the year 33658, and two that share a key."""
    fake = cluster.fake()
    async with fake.member():
        presence = fake.session.presence(online=True).model_copy(update={"started_unix_s": 1e12})
        await fake.say_raw(PRESENCE, presence.model_dump_json().encode())
        await asyncio.sleep(2.0)
        await fake.say(WISH, NodeWish(wish="leave"))
        await asyncio.sleep(1.0)
    return {}


LIES: tuple[Lie, ...] = (
    figures_of_another_type,
    a_profile_without_devices,
    numbers_that_are_none,
    a_stage_of_one_token,
    a_stage_at_no_port,
    names_that_are_ids,
    control_characters,
    another_start_of_a_member,
    retained_without_end,
    filters_without_end,
    strangers.slow_readers,
    profiles_without_end,
    strangers.a_web_page,
    strangers.long_bodies,
    strangers.plans_at_once,
    strangers.secrets_in_argv,
    strangers.a_listener,
    strangers.a_join_without_invite,
)


@experiment
@click.option("--only", "names", multiple=True, help="Of lies; without it all.")
def main(out: Path, names: tuple[str, ...]) -> None:
    """Tell every lie to a cluster that serves."""
    chosen = [lie for lie in LIES if not names or lie.__name__ in names]
    rows = asyncio.run(_rows(chosen))
    write_report(out, "lies", {"rows": rows}, "guard-lies-embedded")
    show(table(rows))


async def _rows(lies: list[Lie]) -> list[dict[str, Any]]:
    rows = []
    async with guarded_cluster() as cluster:
        with_uses = (
            "invite",
            "--uses",
            "100",
            "--data-dir",
            str(cluster.run.folder / "coordinator"),
        )
        cluster.run.invite = _printed(*with_uses).split()[-1]
        for lie in lies:
            rows.append(await _row(cluster, lie))
            click.echo(json.dumps(rows[-1]), err=True)
            if not rows[-1]["alive"]:
                break
    return rows


def _printed(*words: str) -> str:
    command = [sys.executable, "-m", MOLINK, *words]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout


async def _row(cluster: GuardedCluster, lie: Lie) -> dict[str, Any]:
    cluster.start_watch()
    await cluster.window()
    await asyncio.sleep(BEFORE_S)
    before = await cluster.window()
    found: dict[str, Any] = {}
    try:
        found = await lie(cluster)
    except (MolinkError, OSError, EOFError, aiohttp.ClientError) as error:
        found = {"ended_with": f"{type(error).__name__}: {error}"[:300]}
    await asyncio.sleep(AFTER_S)
    during = await cluster.window()
    row = {"lie": lie.__name__, "found": found} | await verdict(cluster, before, during)
    if cluster.alive:
        row["serves_after_s"] = await cluster.recovered()
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """One row for each lie."""
    head = (
        "lie",
        "coordinator",
        "honest lost",
        "broken off / refused",
        "p99 gap before / during, ms",
        "found",
    )
    return markdown_table(head, [_cells(row) for row in rows])


def _cells(row: dict[str, Any]) -> list[str]:
    found = ", ".join(
        f"{name.replace('_', ' ')} {_text(value)}" for name, value in row["found"].items()
    )
    return [
        row["lie"].replace("_", " "),
        "lives" if row["alive"] else "ENDED",
        ", ".join(row["honest_lost"]) or "nobody",
        f"{sum(row['failures'].values())} / {sum(row['refused'].values())}",
        f"{row['gap_p99_before_ms']:.0f} / {row['gap_p99_during_ms']:.0f}",
        found,
    ]


def _text(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
