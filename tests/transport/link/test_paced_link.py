"""When things happened, as a link believes, however late its thread gets the processor."""

from dataclasses import dataclass, field

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from molink.errors import LinkFullError
from molink.transport.link import chunk_stream
from molink.transport.link.connections import Connections
from molink.transport.link.paced_link import PacedLink
from molink.wire.chunks import ChunkHeader, LinkHello, decode_link_frame, encode_ack
from molink_scheduler.batch import BatchClass
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.upload_budget import UploadBudget

ROUND_TRIP_S = 0.060


@dataclass
class Processor:
    """A clock, and a thread that may be away from its core for a while before a call returns."""

    now: float = 0.0
    away_s: list[float] = field(default_factory=list)

    def preempt(self) -> None:
        self.now += self.away_s.pop(0) if self.away_s else 0.0


@dataclass
class Wire:
    """A socket whose chunks are acknowledged one round trip after they left."""

    processor: Processor
    acks: list[tuple[float, bytes]] = field(default_factory=list)

    def connect(self, address: str) -> None:
        pass

    def getsockopt(self, option: int) -> int:
        return 0

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        self.processor.preempt()
        header = decode_link_frame(frames[0])
        if isinstance(header, LinkHello):
            return
        assert isinstance(header, ChunkHeader)
        ack = encode_ack((header.sequence,))
        self.acks.append((self.processor.now + ROUND_TRIP_S, ack))

    def get(self, option: int) -> int:
        self.processor.preempt()
        return zmq.POLLIN if self.acks and self.acks[0][0] <= self.processor.now else 0

    def recv(self, flags: int) -> bytes:
        self.processor.preempt()
        if not self.acks or self.acks[0][0] > self.processor.now:
            raise zmq.Again
        return self.acks.pop(0)[1]


def link_over(wire: Wire, pacer: LinkPacer, clock=None) -> PacedLink:
    sender = LinkSender(PriorityQueues(), pacer)
    return PacedLink(
        "next",
        Connections(lambda: wire, "tcp://far:1"),
        sender,
        clock or (lambda: wire.processor.now),
    )


@given(st.lists(st.floats(0.0, 0.05), max_size=40))
def test_no_round_trip_is_shorter_than_the_link(away_s):
    processor = Processor(away_s=away_s)
    wire = Wire(processor)
    pacer = LinkPacer()
    link = link_over(wire, pacer)
    for _ in range(20):
        link.send((b"header", bytes(100)), BatchClass.DECODE)
        processor.now += ROUND_TRIP_S / 3
        link.pump()
    longest_on_the_wire_s = 200 / pacer.estimator.rate_bytes_per_s
    assert pacer.estimator.base_rtt_s >= ROUND_TRIP_S - longest_on_the_wire_s


def test_a_thread_that_was_away_takes_an_acknowledgement_for_late_and_not_for_early():
    processor = Processor()
    pacer = LinkPacer()
    link = link_over(Wire(processor), pacer)
    link.send((b"header", b""), BatchClass.DECODE)
    processor.now += 0.05
    processor.away_s = [0.03]
    link.pump()
    assert pacer.in_flight_bytes == 0
    assert pacer.estimator.base_rtt_s == pytest.approx(0.08, abs=0.001)


def test_a_thread_that_is_away_before_it_asks_when_to_wake_is_still_woken():
    """A cap lets more go in a moment; by the time that the thread asks, it already has."""
    processor = Processor()
    pacer = LinkPacer(budget=UploadBudget(1e5))
    readings = [0.0] * 3
    link = link_over(Wire(processor), pacer, lambda: readings.pop(0) if readings else 0.0)
    link.send((b"header", bytes(50_000)), BatchClass.PREFILL)
    readings[:] = [0.1, 5.0, 5.0]  # Whoever reads the clock once more finds the cap open.
    processor.now = 0.1
    assert link.pump() is not None


def test_a_link_whose_far_end_takes_nothing_refuses_more(monkeypatch):
    """4,096 cancellations during a silence once ended the head."""
    monkeypatch.setattr(chunk_stream, "TRANSFERS_WAITING_MAX", 50)
    link = link_over(Wire(Processor(away_s=[])), LinkPacer())
    with pytest.raises(LinkFullError, match="50 messages wait for it"):
        for _ in range(1000):
            link.send([b"header", bytes(10_000)], BatchClass.DECODE)
    assert link.transfers_waiting == 50
