"""Two homes that reach a server and not each other: each in a network namespace of its own.

The server's namespace has a line to each home and passes no packets on, as two home routers would
not. What runs there are the commands and classes that run in reality.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.transport.relay.nodes import ANNA, BERT, SECRET, WITHIN_S

ANNA_AT, BERT_AT = "198.18.240.2", "198.18.241.2"
RELAY_FOR_ANNA, RELAY_FOR_BERT = "198.18.240.1", "198.18.241.1"
RELAY_PORT, LINK_PORT = 7000, 7100

RECEIVER = """
import asyncio, sys, zmq, zmq.asyncio
from molink.transport.relay.client import RelayReceiver
from molink.transport.relay.client import RelayCaller

async def main(relay, node_id, token, port):
    socket = zmq.asyncio.Context().socket(zmq.DEALER)
    socket.bind(f"tcp://0.0.0.0:{port}")
    receiver = RelayReceiver(RelayCaller(relay, node_id, token))
    receiver.open("ring", f"127.0.0.1:{port}")
    running = asyncio.create_task(receiver.run())
    await receiver.registered.wait()
    print("registered", flush=True)
    while True:
        await socket.send(await socket.recv())

asyncio.run(main(*sys.argv[1:]))
"""

SENDER = """
import asyncio, json, sys, zmq, zmq.asyncio
from molink.transport.paths.keeper import LinkEnd, PathKeeper
from molink.transport.relay.client import RelayCaller

async def main(relay, node_id, token, to, direct):
    paths = asyncio.Queue()
    caller = RelayCaller(relay, node_id, token)
    keeper = PathKeeper(LinkEnd(to, "ring", [direct]), caller, paths.put)
    running = asyncio.create_task(keeper.run())
    path = await paths.get()
    socket = zmq.asyncio.Context().socket(zmq.DEALER)
    socket.connect(f"tcp://{path.address}")
    for number in range(50):
        await socket.send(b"%d" % number + bytes(16384))
    back = [int((await socket.recv()).rstrip(bytes(1))) for _ in range(50)]
    print(json.dumps({"kind": path.kind, "back": back}), flush=True)
    sys.exit(0)

asyncio.run(main(*sys.argv[1:]))
"""


def token(node_id: str) -> str:
    from molink.transport.relay.protocol import relay_token

    return relay_token(SECRET, node_id)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@pytest.fixture
def homes():
    """Names of the namespaces of the server, Anna and Bert."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the program ip: install iproute2")
    number = os.getpid()
    names = [f"molink-r{number}", f"molink-a{number}", f"molink-b{number}"]
    try:
        try:
            for name in names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine makes no namespaces: {error.stderr.decode().strip()}")
        server, *_ = names
        for home, there, here in (
            (names[1], ANNA_AT, RELAY_FOR_ANNA),
            (names[2], BERT_AT, RELAY_FOR_BERT),
        ):
            inside, outside = f"i{home[7:]}"[:15], f"o{home[7:]}"[:15]
            ip(
                "link",
                "add",
                outside,
                "netns",
                server,
                "type",
                "veth",
                "peer",
                "name",
                inside,
                "netns",
                home,
            )
            for name, device, address in ((server, outside, here), (home, inside, there)):
                ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
                ip("-n", name, "link", "set", device, "up")
            ip("-n", home, "route", "add", "default", "via", here)
        no_forwarding = "echo 0 > /proc/sys/net/ipv4/ip_forward"
        ip("netns", "exec", server, "sh", "-c", no_forwarding)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


async def start(home: str, *command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *("ip", "netns", "exec", home, sys.executable, *command),
        stdout=asyncio.subprocess.PIPE,
    )


async def line_of(process: asyncio.subprocess.Process) -> str:
    async with asyncio.timeout(WITHIN_S):
        return (await process.stdout.readline()).decode().strip()


async def test_homes_that_cannot_reach_each_other_are_linked(homes, tmp_path):
    server, anna, bert = homes
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "secret").chmod(0o600)
    processes = []
    try:
        command = ("-m", "molink.cli.main", "relay", "--port", str(RELAY_PORT))
        relay = await start(server, *command, "--secret-file", str(tmp_path / "secret"))
        processes.append(relay)
        assert await line_of(relay) == f"ready relay 0.0.0.0:{RELAY_PORT}"
        where = f"{RELAY_FOR_BERT}:{RELAY_PORT}"
        receiver = await start(bert, "-c", RECEIVER, where, BERT, token(BERT), str(LINK_PORT))
        processes.append(receiver)
        assert await line_of(receiver) == "registered"
        where = f"{RELAY_FOR_ANNA}:{RELAY_PORT}"
        direct = f"{BERT_AT}:{LINK_PORT}"
        sender = await start(anna, "-c", SENDER, where, ANNA, token(ANNA), BERT, direct)
        processes.append(sender)
        seen = json.loads(await line_of(sender))
    finally:
        for process in processes:
            if process.returncode is None:
                process.terminate()
            await process.wait()
    assert seen == {"kind": "relay", "back": list(range(50))}
