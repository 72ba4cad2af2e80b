"""The kind of router, by how two ports of one server see us."""

import asyncio
from dataclasses import dataclass

import pytest
from aioice import stun
from hypothesis import given
from hypothesis import strategies as st

from molink.transport.stun import parse_stun, serve_stun
from molink_agent.network.nat import NatKind, ask_stun, nat_kind

LOOPBACK = "127.0.0.1"
INSIDE = ("192.168.1.5", 5000)
OUTSIDE = ("203.0.113.7", 61_000)
ELSEWHERE = ("203.0.113.7", 61_001)

ADDRESSES = st.one_of(st.none(), st.tuples(st.sampled_from(["10.0.0.1", "1.2.3.4"]), st.just(9)))


@dataclass
class FakeMirror(asyncio.DatagramProtocol):
    """A STUN server that claims to see everybody at one address."""

    sees: tuple[str, int]
    other_port: int = 0
    refuses: bool = False

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        asked = parse_stun(data)
        attributes = {"XOR-MAPPED-ADDRESS": self.sees}
        if self.other_port:
            attributes["OTHER-ADDRESS"] = (LOOPBACK, self.other_port)
        kind = stun.Class.ERROR if self.refuses else stun.Class.RESPONSE
        answer = stun.Message(stun.Method.BINDING, kind, asked.transaction_id, attributes)
        self.transport.sendto(bytes(answer), addr)


async def mirror(mirrored: FakeMirror):
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: mirrored, (LOOPBACK, 0))
    return transport, transport.get_extra_info("sockname")[1]


@pytest.mark.parametrize(
    "inside, first, second, kind",
    [
        (INSIDE, INSIDE, INSIDE, NatKind.OPEN),
        (INSIDE, INSIDE, None, NatKind.OPEN),
        (INSIDE, OUTSIDE, OUTSIDE, NatKind.CONE),
        (INSIDE, OUTSIDE, ELSEWHERE, NatKind.SYMMETRIC),
        (INSIDE, OUTSIDE, None, NatKind.UNKNOWN),
        (INSIDE, None, None, NatKind.BLOCKED),
        (None, None, None, NatKind.UNKNOWN),
    ],
)
def test_kinds(inside, first, second, kind):
    assert nat_kind(inside, first, second) is kind


@given(ADDRESSES, ADDRESSES, ADDRESSES)
def test_only_our_own_address_is_open(inside, first, second):
    kind = nat_kind(inside, first, second)
    assert (kind is NatKind.OPEN) <= (inside is not None and first == inside)


async def test_without_a_router_it_is_open():
    async with serve_stun(LOOPBACK, 0) as server:
        answer = await ask_stun(LOOPBACK, server.port)
    assert answer.kind is NatKind.OPEN
    assert answer.outside == answer.inside


@pytest.mark.parametrize("second, kind", [(OUTSIDE, NatKind.CONE), (ELSEWHERE, NatKind.SYMMETRIC)])
async def test_routers_are_told_apart(second, kind):
    other, other_port = await mirror(FakeMirror(second))
    first, port = await mirror(FakeMirror(OUTSIDE, other_port))
    try:
        answer = await ask_stun(LOOPBACK, port)
    finally:
        first.close()
        other.close()
    assert (answer.kind, answer.outside) == (kind, OUTSIDE)


async def test_silence_is_a_firewall():
    loop = asyncio.get_running_loop()
    deaf, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, (LOOPBACK, 0))
    try:
        answer = await ask_stun(LOOPBACK, deaf.get_extra_info("sockname")[1], retransmissions=0)
    finally:
        deaf.close()
    assert answer.kind is NatKind.BLOCKED


async def test_a_server_that_refuses_tells_nothing():
    refusing, port = await mirror(FakeMirror(OUTSIDE, refuses=True))
    try:
        assert (await ask_stun(LOOPBACK, port)).kind is NatKind.BLOCKED
    finally:
        refusing.close()


async def test_a_name_that_nobody_knows_is_unknown():
    assert (await ask_stun("no.such.host.invalid", 3478)).kind is NatKind.UNKNOWN
