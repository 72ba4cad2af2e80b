"""The child process: its supervision, its files, its users."""

import asyncio
import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from molink.control.broker.mosquitto import MosquittoBroker, find_mosquitto
from molink.control.broker.mosquitto_files import MosquittoFiles
from molink.control.certificate import own_certificate
from molink.control.client import ControlClient
from molink.errors import ControlError
from tests.control.conftest import PASSWORD, until
from tests.control.raw_client import RawClient


@pytest.fixture
async def mosquitto(data_dir):
    broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, data_dir)
    await broker.start()
    yield broker
    await broker.stop()


async def test_mosquitto_is_started_again_when_it_is_killed(mosquitto):
    await mosquitto.allow("n1", PASSWORD)
    address = mosquitto.address
    async with ControlClient.open(address, "n1", PASSWORD) as node:
        for _ in range(2):
            killed = mosquitto.process_id
            os.kill(killed, signal.SIGKILL)
            await until(lambda killed=killed: mosquitto.process_id not in (killed, None))
            await mosquitto.allow("n2", PASSWORD)
            client = await RawClient.connect(address, "n2", PASSWORD)
            assert client.code == 0
            client.die()
        await until(lambda: node.connected)
    assert mosquitto.address == address


async def test_a_certificate_that_is_renewed_is_taken_at_the_coordinators_next_start(
    data_dir, tmp_path
):
    files, renewed = (own_certificate(tmp_path / name) for name in ("old", "new"))
    broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, data_dir, files)
    await broker.allow("n1", PASSWORD)
    await broker.start()
    shutil.copy(renewed.certificate, files.certificate)
    killed = broker.process_id
    os.kill(killed, signal.SIGKILL)
    await until(lambda: broker.process_id not in (killed, None))
    async with asyncio.timeout(10), ControlClient.open(broker.address, "n1", PASSWORD) as node:
        assert node.connected
    await broker.stop()


async def test_a_frozen_mosquitto_makes_allow_fail_with_a_sentence(mosquitto, monkeypatch):
    monkeypatch.setattr("molink.control.broker.mosquitto._CHANGE_TIMEOUT_S", 0.2)
    os.kill(mosquitto.process_id, signal.SIGSTOP)
    try:
        with pytest.raises(ControlError, match="does not take new users"):
            await mosquitto.allow("n1", PASSWORD)
    finally:
        os.kill(mosquitto.process_id, signal.SIGCONT)


@pytest.fixture
def full_disk(mosquitto, monkeypatch):
    """Frees room after the first attempt to write; tells how many there were."""
    write, attempts = MosquittoFiles._write, []

    def write_once_there_is_room(files, name, text):
        attempts.append(name)
        if len(attempts) == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(files, name, text)

    monkeypatch.setattr(MosquittoFiles, "_write", write_once_there_is_room)
    return attempts


async def test_a_disk_that_was_full_keeps_nobody_out(mosquitto, full_disk):
    await mosquitto.allow("n1", PASSWORD)
    assert full_disk == ["users", "users"]
    client = await RawClient.connect(mosquitto.address, "n1", PASSWORD)
    assert client.code == 0
    client.die()


async def test_a_disk_that_was_full_when_it_died_does_not_keep_it_down(mosquitto, full_disk):
    killed = mosquitto.process_id
    os.kill(killed, signal.SIGKILL)
    await until(lambda: mosquitto.process_id not in (killed, None))
    assert full_disk == ["mosquitto.conf", "mosquitto.conf", "rules", "users"]


async def test_what_nodes_say_never_reaches_the_disk(mosquitto, data_dir):
    await mosquitto.allow("n1", PASSWORD)
    node = await RawClient.connect(mosquitto.address, "n1", PASSWORD)
    for _ in range(3):
        await node.publish("molink/v1/node/n1/said/profile", "x" * 2**19, retain=True)
    node.die()
    await mosquitto.stop()
    written = {path.name: path.stat().st_size for path in (data_dir / "broker").iterdir()}
    assert set(written) == {"mosquitto.conf", "rules", "users"}
    assert sum(written.values()) < 2**14


async def test_a_message_without_end_ends_only_its_own_connection(mosquitto):
    await mosquitto.allow("n1", PASSWORD)
    node = await RawClient.connect(mosquitto.address, "n1", PASSWORD)
    node.writer.write(b"\x30\xff\xff\xff\x7f" + b"x" * 2**16)
    await node.closed()
    assert (await RawClient.connect(mosquitto.address, "n1", PASSWORD)).code == 0


async def test_many_changes_at_once_cost_few_reloads(mosquitto, monkeypatch):
    reloads = []
    reload = mosquitto._process.reload

    async def counted():
        reloads.append(None)
        return await reload()

    monkeypatch.setattr(mosquitto._process, "reload", counted)
    await asyncio.gather(*(mosquitto.allow(f"x{number}", PASSWORD) for number in range(40)))
    assert 1 <= len(reloads) <= 3
    client = await RawClient.connect(mosquitto.address, "x39", PASSWORD)
    assert client.code == 0
    client.die()


async def test_whoever_is_allowed_while_it_starts_can_connect(data_dir):
    broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, data_dir)
    starting = asyncio.create_task(broker.start())
    await asyncio.sleep(0)
    await asyncio.gather(starting, broker.allow("n1", PASSWORD))
    client = await RawClient.connect(broker.address, "n1", PASSWORD)
    assert client.code == 0
    client.die()
    await broker.stop()


async def test_a_foreign_client_id_is_still_ignored_after_a_reload(mosquitto):
    await mosquitto.allow("n1", PASSWORD)
    await mosquitto.allow("n2", PASSWORD)
    victim = await RawClient.connect(mosquitto.address, "n2", PASSWORD)
    attacker = await RawClient.connect(mosquitto.address, "n1", PASSWORD, client_id="n2")
    assert attacker.code == 0
    assert await victim.received() == []
    victim.die()
    attacker.die()


def status_of(process_id):
    return Path(f"/proc/{process_id}/status").read_text()


def open_files_of(process_id):
    lines = Path(f"/proc/{process_id}/limits").read_text().splitlines()
    (line,) = (one for one in lines if one.startswith("Max open files"))
    return int(line.split()[3])


async def test_it_does_not_run_as_root(mosquitto):
    status = status_of(mosquitto.process_id)
    (uids,) = (line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
    assert "0" not in uids


@pytest.fixture
def few_files():
    """A shell's usual limit, of this process and the children that it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_it_may_have_many_connections(few_files, broker, kind):
    process_id = broker.process_id if kind == "mosquitto" else os.getpid()
    assert open_files_of(process_id) > 1024


def test_its_files_are_for_nobody_else(data_dir):
    async def write():
        broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, data_dir)
        await broker.allow("n1", PASSWORD)
        await broker.start()
        await broker.stop()

    asyncio.run(write())
    folder = data_dir / "broker"
    assert folder.stat().st_mode & 0o777 == 0o700
    for name in ("mosquitto.conf", "users", "rules"):
        assert (folder / name).stat().st_mode & 0o777 == 0o600
    assert PASSWORD not in (folder / "users").read_text()


KEEPS_A_BROKER = """
import asyncio, sys
from pathlib import Path
from molink.control.broker.mosquitto import MosquittoBroker, find_mosquitto

async def main():
    broker = MosquittoBroker(find_mosquitto(), "127.0.0.1", 0, Path(sys.argv[1]))
    await broker.start()
    print(broker.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


def test_mosquitto_does_not_outlive_a_parent_that_is_killed(data_dir):
    parent = subprocess.Popen(
        [sys.executable, "-c", KEEPS_A_BROKER, str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    with parent:
        watched = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        readable, _, _ = select.select([watched], [], [], 10)
        os.close(watched)
    assert readable
