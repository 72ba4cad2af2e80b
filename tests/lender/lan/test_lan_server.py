"""A real server of a LAN's lenders: who is let in, what each may hold, and when it ends."""

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import pytest

from molink.engine_protocol.lender import LentKv, LentLayer
from molink.errors import LenderLostError
from molink.lender.client import LenderClient
from molink.lender.lan.handshake import GREETING, MAGIC, OPENING, Opening, connected
from molink.lender.lan.lan_lender import LanLease, lan_lender
from molink.lender.lan.lan_server import WAITING_MAX
from molink.lender.protocol import Frame, Kind, Receiver, send
from molink.wire.protocol import PROTOCOL_VERSION
from tests.lender.lan.owner import WITHIN_S, Owner, patient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone lends to a LAN")

KV, BLOCK_BYTES = LentKv((LentLayer(0, 2, 4, 4), LentLayer(1, 2, 4, 6)), "float32", "auto"), 2304


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WITHIN_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def blocks(value: int, count: int = 1) -> "np.ndarray":
    return np.full((count, BLOCK_BYTES), value, np.uint8)


def test_a_lender_is_held_taken_from_and_ended(owner: Owner) -> None:
    lease = owner.lease(8 * BLOCK_BYTES)
    client = patient(lease)
    client.hold(KV, 8)
    held = {"lease": lease.lease, "state": "held", "bytes": 8 * BLOCK_BYTES}
    assert owner.next_line() == held
    client.put([7], blocks(9))
    assert (client.take(1, [7]) == 9).all()
    client.link.close()
    owner.until_ended(lease)
    assert not owner.lenders()


def test_a_lease_is_come_for_again_by_its_next_link(owner: Owner) -> None:
    lease, incarnations = owner.lease(), set()
    for value in range(3):
        client = patient(lease)
        client.hold(KV, 8)
        client.put([0], blocks(value))
        assert (client.take(0, [0]) == value).all()
        incarnations.add(client._incarnation)
        client.link.close()
    assert len(incarnations) == 3
    for _ in range(3):
        owner.until_ended(lease)


@pytest.mark.parametrize(
    "told, why",
    [
        ({"key": "ab" * 32}, "not allowed, or its key is another"),
        ({"lease": 999_999}, "not allowed, or its key is another"),
        ({"incarnation": 5}, "started anew since the lease was given"),
    ],
)
def test_who_was_told_something_else_is_not_let_in(owner: Owner, told: dict, why: str) -> None:
    with pytest.raises(
        LenderLostError, match=rf"127\.0\.0\.1:{owner.port} lets nobody in: .*{why}"
    ):
        lan_lender(owner.lease(**told))


def test_another_protocol_is_told_its_number(owner: Owner) -> None:
    lease = owner.lease()
    with socket.create_connection((lease.host, lease.port), 10) as link:
        opening = Opening.of(lease.lease, bytes.fromhex(lease.key))
        link.sendall(opening._replace(protocol=PROTOCOL_VERSION + 1).packed())
        is_in, _, _, why = GREETING.unpack(link.recv(GREETING.size, socket.MSG_WAITALL))
        assert not is_in and f"protocol {PROTOCOL_VERSION}, and".encode() in why


@pytest.mark.parametrize("places", [0, -1, 2**31, 2**40, 9, "x", None])
def test_more_than_is_lent_is_refused_with_the_figure(owner: Owner, places: object) -> None:
    client = patient(owner.lease(8 * BLOCK_BYTES))
    why = r"9 blocks take 2\.1e-05 GB, and 1\.8e-05 GB are lent" if places == 9 else "expected"
    with pytest.raises(LenderLostError, match=why):
        client.hold(KV, places)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "kv",
    [
        LentKv((), "float32", "auto"),
        LentKv((LentLayer(0, 0, 4, 4),), "float32", "auto"),
        LentKv((LentLayer(0, 2, 4, 4),), "load", "auto"),
        LentKv((LentLayer(0, 2, 4, 4),), "float32", "int2"),
        LentKv((LentLayer(0, 2**16, 2**16, 2**16),) * 1024, "float32", "auto"),
        LentKv((LentLayer(-1, 2, 4, 4),), "float32", "auto"),
    ],
)
def test_layers_that_are_none_are_refused(owner: Owner, kv: LentKv) -> None:
    with pytest.raises(LenderLostError, match=r"lost: "):
        patient(owner.lease()).hold(kv, 1)
    assert owner.process.poll() is None


def test_of_two_stages_that_come_at_once_one_gets_the_lease(owner: Owner) -> None:
    lease, got, refused = owner.lease(), [], []

    def come() -> None:
        try:
            got.append(patient(lease))
        except LenderLostError as error:
            refused.append(str(error))

    stages = [threading.Thread(target=come) for _ in range(2)]
    for stage in stages:
        stage.start()
    for stage in stages:
        stage.join()
    assert len(got) == 1 and "in use" in refused[0]
    got[0].hold(KV, 8)
    got[0].link.close()


def test_one_that_is_revoked_is_lost_and_not_come_for_again(owner: Owner) -> None:
    lease, other = owner.lease(), owner.lease()
    client, beside = patient(lease), patient(other)
    client.hold(KV, 8)
    beside.hold(KV, 8)
    owner.tell(revoke=lease.lease)
    owner.until_ended(lease)
    eventually(lambda: client.is_lost)
    with pytest.raises(LenderLostError, match="not allowed"):
        lan_lender(lease)
    beside.put([1], blocks(3))
    assert (beside.take(0, [1]) == 3).all(), "it ends alone"
    beside.link.close()


def test_a_lender_that_stands_still_does_not_keep_its_lease(owner: Owner) -> None:
    lease = owner.lease()
    client = patient(lease)
    client.hold(KV, 8)
    (process,) = owner.lenders()
    process.suspend()
    client.link.close()
    again = patient(lease)
    again.hold(KV, 8)
    assert process.pid not in {one.pid for one in owner.lenders()}
    again.link.close()


def test_one_that_is_killed_while_it_is_handed_blocks_is_lost(owner: Owner) -> None:
    count = 2**13
    client = patient(owner.lease(count * BLOCK_BYTES))
    client.hold(KV, count)
    (process,) = owner.lenders()
    process.suspend()
    killing = threading.Timer(0.3, process.kill)
    killing.start()
    with pytest.raises(LenderLostError, match="takes nothing"):
        client.put(range(count), blocks(1, count))
    killing.join()


def test_strangers_keep_nobody_out(owner: Owner) -> None:
    lease = owner.lease()
    address = (lease.host, lease.port)
    silent = [socket.create_connection(address) for _ in range(2 * WAITING_MAX)]
    for said in (b"GET / HTTP/1.1\r\n\r\n", MAGIC + bytes(OPENING.size - 4), b"\0" * 4000):
        with socket.create_connection(address) as link:
            link.sendall(said)
    client = patient(lease)
    client.hold(KV, 8)
    client.link.close()
    silent[0].settimeout(WITHIN_S)
    assert not silent[0].recv(1), "the oldest of too many is sent away"
    for link in silent:
        link.close()


def test_an_opening_that_was_heard_and_is_played_again_holds_no_lease(owner: Owner) -> None:
    """Whoever plays it has no key for what follows, and the lease is free again."""
    lease = owner.lease()
    opening = Opening.of(lease.lease, bytes.fromhex(lease.key))
    with socket.create_connection((lease.host, lease.port), 10) as link:
        link.sendall(opening.packed())
        assert GREETING.unpack(link.recv(GREETING.size, socket.MSG_WAITALL))[0]
        link.sendall(b"\x20\0\0\0" + secrets.token_bytes(32))
        owner.until_ended(lease)
    client = patient(lease)
    client.hold(KV, 8)
    client.link.close()


@pytest.mark.parametrize(
    "line",
    [
        "no JSON",
        "[]",
        '{"allow": 1}',
        json.dumps({"allow": -1, "key": "ab" * 32, "bytes": 1}),
        json.dumps({"allow": 1, "key": "ab" * 31, "bytes": 1}),
        json.dumps({"allow": 1, "key": "ab" * 32, "bytes": -1}),
    ],
)
def test_an_order_that_is_none_changes_nothing(owner: Owner, line: str) -> None:
    assert owner.process.stdin is not None
    owner.process.stdin.write(line.encode() + b"\n")
    client = patient(owner.lease())
    client.hold(KV, 8)
    client.link.close()


@pytest.mark.parametrize("end", ["input", "killed"])
def test_all_lenders_end_with_their_server(end: str) -> None:
    owner = Owner()
    client = patient(owner.lease())
    client.hold(KV, 8)
    (process,) = owner.lenders()
    process.suspend()
    if end == "input":
        owner.close()
    else:
        os.kill(owner.process.pid, signal.SIGKILL)
        owner.process.wait()
    eventually(lambda: not psutil.pid_exists(process.pid) or process.status() == "zombie")
    eventually(lambda: client.is_lost)
    assert not psutil.pid_exists(process.pid) or process.status() == "zombie"


def test_a_lender_works_within_what_it_was_allowed(owner: Owner) -> None:
    """What it takes beside its blocks is bounded by the system."""
    client = patient(owner.lease(8 * BLOCK_BYTES))
    client.hold(KV, 8)
    (process,) = owner.lenders()
    limit, _ = process.rlimit(psutil.RLIMIT_DATA)
    assert 0 < limit < 4 * 2**30
    client.link.close()


def test_a_frame_that_no_stage_sends_ends_the_lender(owner: Owner) -> None:
    lease = owner.lease()
    link = connected(lease.host, lease.port, lease.lease, lease.key)
    send(link, Frame(Kind.ANSWER), [b"1234"])
    with pytest.raises(ConnectionError):
        Receiver(link).receive()
    link.close()


def test_nobody_listens_at_a_wrong_port(owner: Owner) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(LenderLostError, match=rf"127\.0\.0\.1:{port} is not to be reached"):
        lan_lender(replace(owner.lease(), port=port))


def test_a_lease_does_not_show_its_key() -> None:
    lease = LanLease("h", 1, 2, "ab" * 32, 3, 4)
    assert "ab" * 32 not in repr(lease)
    with pytest.raises(ValueError, match="32 bytes"):
        replace(lease, key="ab" * 31)


def test_the_client_says_where_its_lender_is(owner: Owner) -> None:
    client: LenderClient = patient(owner.lease())
    client.hold(KV, 8)
    (process,) = owner.lenders()
    process.kill()
    with pytest.raises(LenderLostError, match=rf"at 127\.0\.0\.1:{owner.port} is lost"):
        client.take(0, [0])
