"""What somebody tries who is no member, or only reads: with sockets, as a web page, on the way."""

import asyncio
import secrets
import time
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import psutil

from molink import __version__
from molink.control.broker.packets import Kind, encode
from molink.control.identity import KeyPair, key_from_z85
from molink.control.messages.joining import request_to_join
from molink.control.messages.sealing import seal
from molink_agent.weights.block_client import open_client
from tools.experiments.guard.attacks import MqttByHand, Proxy, posts
from tools.experiments.guard.cluster import GuardedCluster

__all__ = [
    "a_join_without_invite",
    "a_listener",
    "a_web_page",
    "long_bodies",
    "plans_at_once",
    "secrets_in_argv",
    "slow_readers",
]

SLOW_READERS, SLOW_BYTES_PER_S = 4, 4300
PLANS = 40


async def slow_readers(cluster: GuardedCluster) -> dict[str, Any]:
    """A member that fetches weights at 4.3 KB/s on four connections, and one that wants a block."""
    slow, other = cluster.fake(), cluster.fake()
    await slow.join()
    await other.join()

    async def read_slowly() -> None:
        async with open_client(slow.membership.weights) as client:
            manifest = await client.manifest()
            entry = max(manifest.files, key=lambda file: file.size)
            url = f"{client.url}/files/{entry.name}"
            async with client._session.get(url) as response:
                async for _ in response.content.iter_chunked(SLOW_BYTES_PER_S):
                    await asyncio.sleep(1.0)

    readers = [asyncio.create_task(read_slowly()) for _ in range(SLOW_READERS)]
    await asyncio.sleep(2.0)
    began_s = time.monotonic()
    async with open_client(other.membership.weights) as client:
        manifest = await client.manifest()
        async for _ in client.blocks(manifest.file("config.json"), 0, 0, manifest.block_bytes):
            pass
    waited_s = time.monotonic() - began_s
    for reader in readers:
        reader.cancel()
    await asyncio.gather(*readers, return_exceptions=True)
    return {"honest_waited_s": waited_s}


async def a_web_page(cluster: GuardedCluster) -> dict[str, Any]:
    """Requests as a page in the operator's browser can make them; by a rebound name, too."""
    url, body = f"{cluster.run.url}/generate", b'{"prompt_token_ids": [1], "max_tokens": 1}'
    tries = {
        "other_host": {"Host": "attacker.example", "Content-Type": "application/json"},
        "other_origin": {"Origin": "http://attacker.example", "Content-Type": "application/json"},
        "plain_text": {"Content-Type": "text/plain"},
    }
    found: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session:
        for name, headers in tries.items():
            async with session.post(url, data=body, headers=headers) as response:
                found[name] = response.status
    return found


async def long_bodies(cluster: GuardedCluster) -> dict[str, Any]:
    """A few bodies of 8 MiB, of nested and of endless JSON."""
    nested = b'{"a":' + b"[" * 2**20 + b"]" * 2**20 + b"}"
    wide = b'{"a":[' + b"[]," * (2**23 // 3) + b"[]]}"
    url = f"{cluster.run.url}/generate"
    return {"nested": await posts(url, nested, 2), "wide": await posts(url, wide, 2)}


async def plans_at_once(cluster: GuardedCluster) -> dict[str, Any]:
    """40 times GET /plan at once: processes at most, beside those that were there."""
    up = psutil.Process(cluster.run.up.pid)
    before, most = len(up.children(True)), 0

    async def count() -> None:
        nonlocal most
        while True:
            most = max(most, len(up.children(True)) - before)
            await asyncio.sleep(0.05)

    counting = asyncio.create_task(count())
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> int:
            async with session.get(f"{cluster.run.url}/plan") as response:
                await response.read()
                return response.status

        statuses = await asyncio.gather(*(one() for _ in range(PLANS)))
    counting.cancel()
    return {"processes_most": most, "statuses": sorted(set(statuses))}


async def secrets_in_argv(cluster: GuardedCluster) -> dict[str, Any]:
    """What every user of a PC can read of an agent that runs there."""
    lines = [psutil.Process(agent.pid).cmdline() for agent in cluster.run.agents]
    return {"invites_in_argv": sum(word.startswith("molink1-") for line in lines for word in line)}


async def a_listener(cluster: GuardedCluster) -> dict[str, Any]:
    """Everything between a member and its coordinator, join to weights, read on the way."""
    fake = cluster.fake()
    await fake.join()
    place, broker = urlsplit(fake.membership.url), fake.membership.broker
    assert place.hostname and place.port
    https, mqtt = Proxy(place.hostname, place.port), Proxy(broker.host, broker.port)
    async with https.listening() as agents_port, mqtt.listening() as broker_port:
        answer = fake.membership.answer.model_copy(update={"broker_port": broker_port})
        url = f"{place.scheme}://127.0.0.1:{agents_port}"
        fake.membership = fake.membership.model_copy(update={"answer": answer, "url": url})
        async with open_client(fake.membership.weights) as client:
            await client.manifest()
        async with MqttByHand.open(fake) as by_hand:
            await by_hand.send(encode(Kind.PINGREQ))
            await asyncio.sleep(1.0)
    secret = (answer.password, answer.weights_token, answer.coordinator_public_key, fake.node_id)
    heard = bytes(https.heard + mqtt.heard)
    names = ("broker_password", "weights_token", "coordinator_key", "node_id")
    found = {name: one.encode() in heard for name, one in zip(names, secret, strict=True)}
    return {"bytes_heard": len(heard)} | found


async def a_join_without_invite(cluster: GuardedCluster) -> dict[str, Any]:
    """Requests to join with what is not an invite: none, a made-up one, and 64 KB of nothing."""
    member = cluster.fake()
    await member.join()
    key = key_from_z85(member.membership.answer.coordinator_public_key)
    request = request_to_join(None, "mallory", __version__, time.time())
    made_up = request.model_copy(
        update={"invite_id": secrets.token_hex(8), "invite_secret": secrets.token_hex(16)}
    )
    found: dict[str, Any] = {}
    bodies = {
        "none": seal(request, KeyPair.generate(), key),
        "made_up": seal(made_up, KeyPair.generate(), key),
        "nonsense": b"x" * 2**16,
        "too_long": b"x" * 2**20,
    }
    async with aiohttp.ClientSession() as session:
        for name, body in bodies.items():
            url = f"{member.membership.url}/agents/join"
            async with session.post(url, data=body, ssl=False) as response:
                found[name] = response.status
    return found
