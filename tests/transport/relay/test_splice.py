"""Joined connections carry every byte in order, half close, and never hold more than a piece."""

import asyncio
import socket

from hypothesis import given, settings
from hypothesis import strategies as st

from molink.transport.relay.splice import PIECE_BYTES, Splicer
from tests.transport.relay.nodes import WITHIN_S, until

SMALL_BUFFER = 4096
pieces = st.lists(st.binary(min_size=1, max_size=30_000), max_size=6)


def pair(buffer_bytes: int | None) -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setblocking(False)
        if buffer_bytes:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return ends


class Line:
    """left <-> (joined) <-> right."""

    def __init__(self, buffer_bytes=None):
        self.left, near = pair(buffer_bytes)
        far, self.right = pair(buffer_bytes)
        self.splicer = Splicer()
        self.joined = asyncio.create_task(self.splicer.join(near, far))
        self.loop = asyncio.get_running_loop()

    async def say(self, end, said):
        async with asyncio.timeout(WITHIN_S):
            for piece in said:
                await self.loop.sock_sendall(end, piece)
        end.shutdown(socket.SHUT_WR)

    async def hear(self, end, at_a_time):
        heard = b""
        async with asyncio.timeout(WITHIN_S):
            while piece := await self.loop.sock_recv(end, at_a_time):
                heard += piece
        return heard

    def close(self):
        self.left.close()
        self.right.close()


@settings(max_examples=60, deadline=None)
@given(there=pieces, back=pieces, at_a_time=st.integers(1000, 70_000), small=st.booleans())
def test_every_byte_arrives_in_order_whatever_the_pieces(there, back, at_a_time, small):
    async def run():
        line = Line(SMALL_BUFFER if small else None)
        heard = await asyncio.gather(
            line.hear(line.right, at_a_time),
            line.hear(line.left, at_a_time),
            line.say(line.left, there),
            line.say(line.right, back),
        )
        assert heard[:2] == [b"".join(there), b"".join(back)]
        await line.joined
        assert line.splicer.bytes_carried == len(heard[0]) + len(heard[1])
        assert line.splicer.held_bytes == line.splicer.open_count == 0
        line.close()

    asyncio.run(run())


async def test_the_other_direction_goes_on_after_a_half_close():
    line = Line()
    await line.say(line.left, [b"a question"])
    assert await line.hear(line.right, 100) == b"a question"
    assert not line.joined.done()
    await line.say(line.right, [b"an answer"])
    assert await line.hear(line.left, 100) == b"an answer"
    await line.joined
    line.close()


async def test_a_receiver_that_does_not_read_holds_its_sender_up():
    line = Line(SMALL_BUFFER)
    size, held_max = 4 * 2**20, 0
    saying = asyncio.create_task(line.say(line.left, [bytes(size)]))

    def stuck() -> bool:
        nonlocal held_max
        held_max = max(held_max, line.splicer.held_bytes)
        return line.splicer.held_bytes > 0

    await until(stuck)
    for _ in range(200):
        await asyncio.sleep(0)
        assert stuck()
    assert not saying.done()
    assert line.splicer.bytes_carried < 200_000
    assert len(await line.hear(line.right, 65536)) == size
    assert 0 < held_max <= PIECE_BYTES
    await saying
    line.close()


async def test_a_direction_that_is_stuck_does_not_stop_the_other():
    line = Line(SMALL_BUFFER)
    stuck = asyncio.create_task(line.say(line.left, [bytes(2**20)]))
    await until(lambda: line.splicer.held_bytes > 0)
    heard, _ = await asyncio.gather(
        line.hear(line.left, 65536), line.say(line.right, [b"x" * 300_000])
    )
    assert heard == b"x" * 300_000
    assert not stuck.done()
    stuck.cancel()
    line.close()
    await line.joined


async def test_what_was_said_before_an_end_went_away_still_arrives():
    line = Line()
    await line.loop.sock_sendall(line.left, b"last words")
    line.left.close()
    assert await line.hear(line.right, 100) == b"last words"
    line.right.close()
    await line.joined


async def test_cancelling_ends_both_sides():
    line = Line()
    await until(lambda: line.splicer.open_count == 1)
    line.joined.cancel()
    assert await line.hear(line.left, 10) == await line.hear(line.right, 10) == b""
    assert line.splicer.open_count == 0
    line.close()
