"""The real sender over a bottleneck in virtual time, driven as the live link drives it."""

import heapq
import itertools
import math
import random
from collections import deque
from dataclasses import dataclass, field

from molink_scheduler.batch import DECODE, PREFILL
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.transmission import Transfer
from molink_scheduler.link.upload_budget import UploadBudget

MBPS = 1e6 / 8
FOREIGN_PACKET_BYTES = 6000
BULK_BYTES = 256 * 1024
"""Of one span; another waits as soon as none does."""


@dataclass
class FakeLink:
    """The real sender, and a FIFO bottleneck with a fixed delay both ways."""

    steps: list[tuple[float, float]]
    """(from second, Mbps), ascending."""
    one_way_s: float
    memory: LinkMemory | None = None
    budget: UploadBudget = field(default_factory=lambda: UploadBudget(None))
    demand: list[tuple[float, float]] = field(default_factory=lambda: [(0.0, math.inf)])
    """When there is bulk to send."""
    urgent_every_s: float = math.inf
    urgent_bytes: int = 10_000
    foreign: tuple[float, float, int] = (math.inf, math.inf, 0)
    """(from, to, bytes): a rival that keeps so many bytes in the queue, as cubic does."""
    sender: LinkSender = field(init=False)

    def __post_init__(self):
        self.sender = LinkSender(PriorityQueues(), LinkPacer(self.memory, self.budget))
        self.now = 0.0
        self.events: list = []
        self.ids, self.transfers = itertools.count(), itertools.count()
        self.queue: deque = deque()
        self.queued_bytes = 0
        self.busy = False
        self.urgent_since: dict[int, float] = {}
        self.wake_at = math.inf
        self.log: list[tuple[float, float, float]] = []  # now, estimate, queue in seconds
        self.delivered: list[tuple[float, int]] = []
        self.sends: list[tuple[float, int]] = []
        self.urgent_delays: list[tuple[float, float]] = []

    def at(self, when, action):
        heapq.heappush(self.events, (when, next(self.ids), action))

    def run(self, until):
        for start, _ in [*self.demand, (self.foreign[0], 0)]:
            if start < until:
                self.at(start, self.start_foreign if start == self.foreign[0] else lambda: None)
        if self.urgent_every_s < until:
            self.at(self.urgent_every_s, self.urgent_due)
        for tick in range(int(until * 50)):
            self.at(tick / 50, self.note)
        while self.events and self.events[0][0] <= until:
            self.now, _, action = heapq.heappop(self.events)
            action()
            self.pump()
        return self

    def note(self):
        self.log.append((self.now, self.estimate_mbps(), self.queue_s()))

    @property
    def pacer(self):
        return self.sender.pacer

    def estimate_mbps(self):
        return self.pacer.estimator.rate_bytes_per_s / MBPS

    def rate(self, when):
        return [mbps for start, mbps in self.steps if start <= when][-1] * MBPS

    def finish(self, size):
        when = self.now
        for start in [start for start, _ in self.steps if start > self.now]:
            if size <= (start - when) * self.rate(when):
                break
            size -= (start - when) * self.rate(when)
            when = start
        return when + size / self.rate(when)

    def queue_s(self):
        return self.queued_bytes / self.rate(self.now)

    def urgent_due(self):
        self.urgent_since[self.offer(DECODE, self.urgent_bytes)] = self.now
        self.at(self.now + self.urgent_every_s, self.urgent_due)

    def wants_bulk(self):
        return any(start <= self.now < end for start, end in self.demand)

    def offer(self, batch_class, size):
        transfer_id = next(self.transfers)
        self.sender.offer(Transfer(transfer_id, batch_class, size), self.now)
        return transfer_id

    def pump(self):
        while True:
            if self.wants_bulk() and not self.sender.queue.waiting_count(PREFILL):
                self.offer(PREFILL, BULK_BYTES)
            if (leaving := self.sender.next_chunk(self.now)) is None:
                break
            self.send(*leaving)
        wake = self.sender.next_wake(self.now)
        if wake is not None and (wake < self.wake_at or self.wake_at <= self.now):
            self.wake_at = wake
            self.at(wake + 1e-6, lambda: None)

    def send(self, sequence, chunk):
        self.sender.on_sent(sequence, chunk, chunk.size_bytes, self.now)
        self.sends.append((self.now, chunk.size_bytes))
        due = self.urgent_since.pop(chunk.transfer_id, None) if chunk.last else None
        self.enqueue((sequence, chunk.size_bytes, due))

    def enqueue(self, packet):
        self.queue.append(packet)
        self.queued_bytes += packet[1]
        if not self.busy:
            self.serve()

    def serve(self):
        self.busy = bool(self.queue)
        if self.busy:
            self.at(self.finish(self.queue[0][1]), self.served)

    def served(self):
        packet = self.queue.popleft()
        self.queued_bytes -= packet[1]
        sequence, size, due = packet
        if sequence is not None:
            self.at(self.now + self.one_way_s, lambda: self.arrived(sequence, size, due))
        elif self.now < self.foreign[1]:
            self.queue.append(packet)
            self.queued_bytes += size
        self.serve()

    def start_foreign(self):
        for _ in range(self.foreign[2] // FOREIGN_PACKET_BYTES):
            self.enqueue((None, FOREIGN_PACKET_BYTES, None))

    def arrived(self, sequence, size, due):
        self.delivered.append((self.now, size))
        if due is not None:
            self.urgent_delays.append((self.now, self.now - due))
        self.at(self.now + self.one_way_s, lambda: self.sender.on_ack(sequence, self.now))

    def estimates(self, start, end):
        return [mbps for when, mbps, _ in self.log if start <= when < end]

    def queues_ms(self, start, end):
        return [1e3 * queue for when, _, queue in self.log if start <= when < end]

    def goodput_mbps(self, start, end):
        return sum(size for when, size in self.delivered if start <= when < end) / (
            (end - start) * MBPS
        )

    def converged_at(self, change, end, truth):
        """Since when the estimate stays within 20 % of the truth."""
        wrong = [
            when
            for when, mbps, _ in self.log
            if change <= when < end and abs(mbps - truth) > 0.2 * truth
        ]
        return (max(wrong) if wrong else change) - change


@dataclass
class ComputingFarEnd(FakeLink):
    """Its acknowledgements leave up to 20 ms late, and now and then none leaves for 50 ms."""

    seed: int = 0

    def __post_init__(self):
        super().__post_init__()
        self.random = random.Random(self.seed)
        self.acknowledged_at = 0.0
        self.stall_at = self.random.expovariate(1.0)

    def arrived(self, sequence, size, due):
        self.delivered.append((self.now, size))
        if due is not None:
            self.urgent_delays.append((self.now, self.now - due))
        at = self.now + self.one_way_s
        while at > self.stall_at + 0.05:
            self.stall_at += 0.05 + self.random.expovariate(1.0)
        if at >= self.stall_at:
            at = self.stall_at + 0.05
        self.acknowledged_at = max(self.acknowledged_at, at + self.random.uniform(0, 0.02))
        self.at(self.acknowledged_at, lambda: self.sender.on_ack(sequence, self.now))
