"""The mirror answers what is a question, and nothing else."""

import asyncio

from aioice import stun
from hypothesis import given
from hypothesis import strategies as st

from molink.transport.stun import (
    ADDRESS_ANSWERS_PER_S_MAX,
    ANSWERS_PER_S_MAX,
    _Answers,
    parse_stun,
    serve_stun,
)

LOOPBACK = "127.0.0.1"


class Caller(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.heard: asyncio.Queue[bytes] = asyncio.Queue()

    def datagram_received(self, data, addr):
        self.heard.put_nowait(data)


async def call(port: int, *datagrams: bytes) -> tuple[bytes, int]:
    """The first answer to what was sent, and the port that it was sent from."""
    loop = asyncio.get_running_loop()
    transport, caller = await loop.create_datagram_endpoint(Caller, remote_addr=(LOOPBACK, port))
    try:
        for data in datagrams:
            transport.sendto(data)
        own_port = transport.get_extra_info("sockname")[1]
        return await asyncio.wait_for(caller.heard.get(), 10), own_port
    finally:
        transport.close()


def question() -> stun.Message:
    return stun.Message(stun.Method.BINDING, stun.Class.REQUEST)


async def test_both_ports_tell_the_caller_its_address():
    async with serve_stun(LOOPBACK, 0) as server:
        for port in (server.port, server.other_port):
            asked = question()
            said, own_port = await call(port, bytes(asked))
            answer = parse_stun(said)
            assert answer.transaction_id == asked.transaction_id
            assert answer.attributes["XOR-MAPPED-ADDRESS"] == (LOOPBACK, own_port)


async def test_the_first_port_names_the_second():
    async with serve_stun(LOOPBACK, 0) as server:
        said, _ = await call(server.port, bytes(question()))
        assert parse_stun(said).attributes["OTHER-ADDRESS"][1] == server.other_port


async def test_an_answer_is_hardly_longer_than_the_question():
    async with serve_stun(LOOPBACK, 0) as server:
        asked = bytes(question())
        said, _ = await call(server.port, asked)
        assert (len(asked), len(said)) == (20, 44)


async def test_noise_is_not_answered():
    indication = stun.Message(stun.Method.BINDING, stun.Class.INDICATION)
    answered = stun.Message(stun.Method.BINDING, stun.Class.RESPONSE)
    other = stun.Message(stun.Method.ALLOCATE, stun.Class.REQUEST)
    asked = question()
    noise = [b"", b"x" * 600, bytes(indication), bytes(answered), bytes(other)]
    async with serve_stun(LOOPBACK, 0) as server:
        said, _ = await call(server.port, *noise, bytes(asked))
        assert parse_stun(said).transaction_id == asked.transaction_id


@given(st.binary(max_size=700))
def test_nothing_that_is_sent_breaks_the_reader(data):
    assert parse_stun(data) is None or len(data) >= 20


@given(st.binary(max_size=60))
def test_nor_does_a_good_head_with_a_bad_body(body):
    head = bytes(question())
    found = parse_stun(head[:2] + len(body).to_bytes(2, "big") + head[4:] + body)
    assert found is None or found.transaction_id == head[8:20]


def test_answers_per_second_are_bounded():
    answers = _Answers()
    asking = [f"192.0.2.{number % 100}" for number in range(3 * ANSWERS_PER_S_MAX)]
    given_now = sum(answers.take(host, 5.5) for host in asking)
    assert given_now == ANSWERS_PER_S_MAX
    assert answers.take("192.0.2.1", 6.0)


def test_one_address_cannot_use_up_the_answers_of_all():
    answers = _Answers()
    flood = [answers.take("192.0.2.1", 5.5) for _ in range(3 * ANSWERS_PER_S_MAX)]
    assert sum(flood) == ADDRESS_ANSWERS_PER_S_MAX
    assert answers.take("192.0.2.2", 5.9)
