"""A link takes another way while messages pass; each arrives once, and in order."""

import errno
import threading
from dataclasses import dataclass, field

import pytest
import zmq

from molink.transport.link import connections
from molink.transport.link.connections import (
    DRAIN_S,
    HANDSHAKE_S,
    Connections,
    MoveOutcome,
    PathMove,
)
from molink.transport.sockets import KEEPALIVE_IDLE_S
from molink.wire.chunks import decode_link_frame, encode_ack, encode_hello, encode_welcome
from molink_scheduler.batch import BatchClass
from tests.transport.link.two_ends import HEADER, RECEIVER, SENDER, TwoEnds, public

MOVES = 30
PATIENCE = 10_000


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_stream_survives_a_path_that_connections_back_and_forth(encrypted):
    ends = (
        TwoEnds.encrypted(public(SENDER), host="0.0.0.0") if encrypted else TwoEnds(host="0.0.0.0")
    )
    with ends:
        link = ends.opened(public(RECEIVER) if encrypted else None)
        addresses = [f"tcp://127.0.0.{number}:{ends.inbound.port}" for number in (1, 2, 3)]
        moved, counts = threading.Event(), {BatchClass.DECODE: 0, BatchClass.PREFILL: 0}

        def stream() -> None:
            """Small messages of decode between large ones of prefill, until all moves are done."""
            while not moved.is_set():
                for batch_class, size in ((BatchClass.DECODE, 500), (BatchClass.PREFILL, 100_000)):
                    if link.transfers_waiting < 20:
                        head = b"%d %d " % (batch_class, counts[batch_class])
                        ends.send(link, batch_class, head.ljust(size, b"."))
                        counts[batch_class] += 1

        sending = threading.Thread(target=stream)
        sending.start()
        for number in range(1, MOVES + 1):
            address = addresses[number % 3]
            ends.move(link, address)
            assert ends.moved() == MoveOutcome(address, moved=True)
            assert link.address == address
        moved.set()
        sending.join()
        arrived: dict[int, list[int]] = {batch_class: [] for batch_class in counts}
        for _ in range(sum(counts.values())):
            batch_class, number = map(int, ends.next_message()[1].split()[:2])
            arrived[batch_class].append(number)
        for batch_class, count in counts.items():
            assert count > 0 and arrived[batch_class] == list(range(count))
        assert ends.inbox.empty()
        assert ends.inbound.reassembly.chunks_refused == ends.inbound.frames_refused == 0


def test_a_way_that_leads_nowhere_is_given_up_and_the_old_one_never_stopped(monkeypatch):
    monkeypatch.setattr(connections, "HANDSHAKE_S", 0.3)
    with TwoEnds() as ends:
        link = ends.opened()
        ends.move(link, "tcp://127.0.0.1:1")
        for number in range(5):
            ends.send(link, BatchClass.DECODE, bytes([number]))
            assert ends.next_message() == [HEADER, bytes([number])]
        outcome = ends.moved()
        assert not outcome.moved and "nobody answers" in outcome.reason
        assert link.address == ends.address
        ends.send(link, BatchClass.DECODE, b"on")
        assert ends.next_message() == [HEADER, b"on"]


def test_what_is_no_address_fails_at_once():
    with TwoEnds() as ends:
        link = ends.opened()
        ends.move(link, "nowhere")
        assert "is no address" in ends.moved().reason


def test_of_two_connections_the_later_counts():
    with TwoEnds(host="0.0.0.0") as ends:
        link = ends.opened()
        wanted = f"tcp://127.0.0.2:{ends.inbound.port}"
        link.move_to("tcp://127.0.0.1:1", ends.outcomes.put)
        ends.move(link, wanted)
        assert "meanwhile" in ends.moved().reason
        assert ends.moved() == MoveOutcome(wanted, moved=True)
        ends.send(link, BatchClass.DECODE, b"there")
        assert ends.next_message() == [HEADER, b"there"]


def test_connections_that_were_left_are_closed():
    with TwoEnds(host="0.0.0.0") as ends:
        link = ends.opened()
        before = link.connections.socket
        ends.move(link, f"tcp://127.0.0.2:{ends.inbound.port}")
        ends.moved()
        after = link.connections.socket
        assert before.closed and not after.closed
        link.close()
        assert after.closed


def test_both_ends_of_an_idle_link_keep_it_alive_in_routers():
    with TwoEnds() as ends:
        for socket in (ends.opened().connections.socket, ends.inbound.socket):
            assert socket.getsockopt(zmq.TCP_KEEPALIVE) == 1
            assert socket.getsockopt(zmq.TCP_KEEPALIVE_IDLE) == KEEPALIVE_IDLE_S


@dataclass
class FakeSocket:
    """A connection whose far end answers when told to."""

    answers: list[bytes] = field(default_factory=list)
    hellos: int = 0
    closed: bool = False

    def connect(self, address: str) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def getsockopt(self, option: int) -> int:
        return 0

    def send(self, frame: bytes, flags: int) -> None:
        assert decode_link_frame(frame) == decode_link_frame(encode_hello())
        self.hellos += 1

    def recv(self, flags: int) -> bytes:
        if not self.answers:
            raise zmq.Again
        return self.answers.pop()


def a_move(socket: FakeSocket, told: list[MoveOutcome]) -> Connections:
    sockets = [FakeSocket(), socket]
    connections = Connections(lambda: sockets.pop(0), "tcp://old:1")
    connections.request_move("tcp://a:1", told.append)
    return connections


def test_nothing_is_held_back_before_the_new_way_answers():
    socket = FakeSocket()
    connections = a_move(socket, [])
    for tick in range(30):
        assert connections.advance(1000, tick / 10) == [] and not connections.is_draining
    assert 14 <= socket.hellos <= 16  # Five a second.
    socket.answers += [encode_ack(()), encode_welcome(7)]
    assert connections.advance(1000, 3.0) == [] and connections.is_draining
    (ended,) = connections.advance(0, 3.1)
    assert (
        ended.phase == "drained"
        and ended.first == 7
        and connections.socket is socket
        and connections.is_idle
    )


def test_a_way_that_stops_acknowledging_is_left_with_what_is_on_it():
    told: list[MoveOutcome] = []
    connections = a_move(FakeSocket([encode_welcome(0)]), told)
    assert connections.advance(1, 0.0) == [] and connections.move.wake_at == DRAIN_S
    (ended,) = connections.advance(1, DRAIN_S)
    ended.report()
    assert told[0].moved


def test_a_way_that_is_known_to_be_dead_is_left_at_once():
    connections = a_move(FakeSocket([encode_welcome(0)]), [])
    (ended,) = connections.advance(1000, 0.0, silent=True)
    assert ended.phase == "drained"


def test_what_somebody_asked_for_is_not_displaced_by_the_link_itself():
    told: list[MoveOutcome] = []
    connections = Connections(FakeSocket, "tcp://a:1")
    connections.reconnect()
    connections.advance(0, 0.0)
    connections.request_move("tcp://b:1", told.append)
    connections.reconnect()
    connections.advance(0, 0.1)
    connections.reconnect()
    assert connections.advance(0, 0.2) == [] and connections.move.address == "tcp://b:1"


def test_an_unanswered_move_ends_in_time():
    connections = a_move(FakeSocket(), [])
    now = 0.0
    for _ in range(PATIENCE):
        ended = connections.advance(0, now)
        if ended:
            break
        now = max(now + 1e-6, connections.move.wake_at)
    assert isinstance(ended[0], PathMove) and ended[0].phase == "failed"
    assert HANDSHAKE_S <= now <= HANDSHAKE_S + 1


def test_a_move_waits_while_no_descriptors_are_left():
    """A stranger's idle connections may have taken them all: the link goes on."""
    told: list[MoveOutcome] = []
    connections = Connections(FakeSocket, "tcp://a:1")

    def no_descriptors() -> FakeSocket:
        raise zmq.ZMQError(errno.EMFILE)

    connections.open_socket = no_descriptors
    connections.request_move("tcp://b:1", told.append)
    assert connections.advance(0, 0.0) == [] and connections.move is None
    connections.open_socket = FakeSocket
    assert connections.advance(0, 1.0) == [] and connections.move.address == "tcp://b:1"
