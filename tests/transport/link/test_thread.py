"""Two ends of a real link on loopback: messages arrive whole, hostile frames are dropped."""

import queue
import time
from dataclasses import dataclass, field

import pytest
import zmq

from molink.transport.link.inbound import InboundLink
from molink.transport.link.paced_link import PacedLink
from molink.transport.link.thread import LinkThread
from molink.wire.chunks import ChunkHeader
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_sim.network.paper_queue import PIECE_BYTES_MAX
from molink_sim.network.policies import POLICIES, make_queue

ARRIVES_WITHIN_S = 30.0
HEADER = b"header"


@dataclass
class Ends:
    """A receiver with its inbox, and threads for both ends."""

    context: zmq.Context = field(default_factory=zmq.Context)
    inbox: queue.SimpleQueue = field(default_factory=queue.SimpleQueue)

    def __post_init__(self):
        self.inbound = InboundLink.bind(self.context, "127.0.0.1")
        self.receiver = LinkThread([self.inbound], self.inbox.put)
        self.sender = LinkThread([], lambda frames: None)
        self.receiver.start()
        self.sender.start()

    def open(self, policy: str = "molink") -> PacedLink:
        address = f"tcp://127.0.0.1:{self.inbound.port}"
        queue_, pacer = make_queue(policy), LinkPacer()
        link = PacedLink.connect(self.context, "next", address, queue_, pacer)
        assert self.sender.open(link, ARRIVES_WITHIN_S)
        return link

    def next_message(self) -> list[bytes]:
        arrived = self.inbox.get(timeout=ARRIVES_WITHIN_S)
        if arrived.link.taken(arrived):
            self.receiver.wake()
        return [bytes(frame) for frame in arrived.frames]

    def close(self):
        self.sender.stop()
        self.receiver.stop()
        self.context.destroy(linger=0)


@pytest.fixture
def ends():
    ends = Ends()
    yield ends
    ends.close()


def buffer_of(number: int, size: int) -> bytes:
    return bytes([number]) * size


@pytest.mark.parametrize("policy", POLICIES)
def test_messages_of_any_size_arrive_whole_and_in_order_of_their_class(ends, policy):
    link = ends.open(policy)
    sent: dict[BatchClass, list[bytes]] = {BatchClass.DECODE: [], BatchClass.PREFILL: []}
    for number, size in enumerate([300_000, 5, 1_000_000, 70_000, 1, 64_000, 9_000, 200_000]):
        batch_class = BatchClass.DECODE if size < 10_000 else BatchClass.PREFILL
        sent[batch_class].append(buffer_of(number, size))
        if not link.send([HEADER, sent[batch_class][-1]], batch_class):
            ends.sender.wake()
    arrived = [ends.next_message() for _ in range(8)]
    assert all(frames[0] == HEADER for frames in arrived)
    buffers = [frames[1] for frames in arrived]
    for expected in sent.values():
        assert [buffer for buffer in buffers if buffer in expected] == expected
    assert ends.inbound.reassembly.chunks_refused == ends.inbound.frames_refused == 0


def test_what_the_paper_sends_at_once_arrives_though_no_chunk_may_be_so_long(ends):
    link, long = ends.open("paper"), buffer_of(7, PIECE_BYTES_MAX + 300_000)
    link.sender.set_next_decode_due(time.monotonic() + 3600.0)
    for buffer, batch_class in ((long, BatchClass.PREFILL), (b"late", BatchClass.DECODE)):
        if not link.send([HEADER, buffer], batch_class):
            ends.sender.wake()
    assert [ends.next_message()[1] for _ in range(2)] == [long, b"late"]
    assert ends.inbound.reassembly.chunks_refused == ends.inbound.frames_refused == 0


def test_a_message_without_a_buffer_arrives(ends):
    link = ends.open()
    link.send([HEADER], BatchClass.DECODE)
    assert ends.next_message() == [HEADER]


def test_the_link_counts_what_has_left(ends):
    link = ends.open()
    before = link.report()
    assert before.messages_sent == before.bytes_sent == 0  # Measuring the link is no traffic.
    link.send([HEADER, bytes(1000)], BatchClass.DECODE)
    ends.next_message()
    after = link.report()
    assert after.messages_sent - before.messages_sent == 1
    assert after.bytes_sent - before.bytes_sent >= 1006
    assert after.rate_mbps > 0


def test_hostile_frames_are_dropped_and_the_link_goes_on(ends):
    link = ends.open()
    while link.sender.oldest is not None:
        ends.sender.wake()
    next_number = link.sender._next_sequence
    hostile = [
        [b"noise"],
        [b"noise", b"more"],
        [ChunkHeader(next_number, 99, 5, 50, 3).encode(), b"no such transfer"],
        [ChunkHeader(next_number + 1, 98, 0, 2**60, 3).encode(), b"too large"],
        [ChunkHeader(10**6, 97, 0, 5, 3).encode(), b"years too early"],
    ]
    for frames in hostile:
        link.connections.socket.send_multipart(frames)
    link.sender._next_sequence = next_number + 1
    link.send([HEADER, b"fine"], BatchClass.DECODE)
    assert ends.next_message() == [HEADER, b"fine"]
    assert ends.inbound.frames_refused == 3
    assert ends.inbound.reassembly.chunks_refused == 1


def test_a_far_end_that_does_not_listen_is_reported():
    context: zmq.Context = zmq.Context()
    thread = LinkThread([], lambda frames: None)
    thread.start()
    link = PacedLink.connect(context, "next", "tcp://127.0.0.1:1", PriorityQueues(), LinkPacer())
    assert not thread.open(link, timeout_s=0.3)
    thread.stop()
    context.destroy(linger=0)


def test_another_sender_begins_anew_where_the_last_one_was_lost(ends):
    """In mid-message, as a stage that is switched off; chunks of both count from 0."""
    lost = ends.open()
    for number in range(3):
        lost.send([HEADER, bytes([number])], BatchClass.DECODE)
    assert [ends.next_message()[1] for _ in range(3)] == [b"\0", b"\1", b"\2"]
    ends.sender.close(lost)
    other = ends.open()
    other.send([HEADER, b"other"], BatchClass.DECODE)
    assert ends.next_message() == [HEADER, b"other"]
    assert ends.sender.outbound == [other]
