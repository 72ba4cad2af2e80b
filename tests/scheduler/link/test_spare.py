"""A link that gives way: one line, an urgent link, and a shadow's that may take what is left."""

from dataclasses import dataclass, field
from random import Random

import pytest

from molink_scheduler.batch import DECODE, PREFILL, BatchClass
from molink_scheduler.link.facts import LinkMemory
from molink_scheduler.link.pacer import LinkPacer
from molink_scheduler.link.priority_queues import PriorityQueues
from molink_scheduler.link.sender import LinkSender
from molink_scheduler.link.transmission import Transfer
from molink_scheduler.link.upload_budget import UploadBudget

STEP_S, END_S = 0.0005, 4.0

CHUNKS_LATE_MAX = 2.0
"""One of the shadow's, and one of the link's own that would have left sooner without it."""


@dataclass
class SharedLine:
    """Two links over one home line, in virtual time."""

    rate: float
    cap: float | None
    with_shadow: bool
    free_at: float = 0.0
    left_at: dict[int, float] = field(default_factory=dict)
    """When the last piece of each transfer of the serving link was off the line."""
    shadow_bytes: int = 0
    shadow_off_at: float = 0.0
    """When the last chunk of the shadow's was off the line."""

    def __post_init__(self) -> None:
        budget, memory = UploadBudget(self.cap), LinkMemory(self.rate, 0.04)
        self.serving = LinkSender(PriorityQueues(), LinkPacer(memory, budget))
        self.shadow = LinkSender(PriorityQueues(), LinkPacer(memory, budget))
        self.shadow.give_way_to([self.serving])
        self.acks: list[tuple[float, LinkSender, int]] = []

    def run(self, offers: list[tuple[float, BatchClass, int]]) -> None:
        offers, now = sorted(offers, reverse=True), 0.0
        if self.with_shadow:
            self.shadow.offer(Transfer(0, PREFILL, 10**9), 0.0)
        while now < END_S:
            for at, sender, number in [ack for ack in self.acks if ack[0] <= now]:
                sender.on_ack(number, at)
            self.acks = [ack for ack in self.acks if ack[0] > now]
            while offers and offers[-1][0] <= now:
                at, batch_class, size = offers.pop()
                self.serving.offer(Transfer(len(offers), batch_class, size), now)
            for sender in (self.serving, self.shadow):
                self.send(sender, now)
            now += STEP_S

    def send(self, sender: LinkSender, now: float) -> None:
        while (leaving := sender.next_chunk(now)) is not None:
            number, chunk = leaving
            sender.on_sent(number, chunk, chunk.size_bytes, now)
            self.free_at = max(self.free_at, now) + chunk.size_bytes / self.rate
            self.acks.append((self.free_at + 0.04, sender, number))
            if sender is self.shadow:
                assert self.shadow_off_at <= now, "at most one chunk of it is on the line"
                self.shadow_off_at = self.free_at
                self.shadow_bytes += chunk.size_bytes
            elif chunk.last:
                self.left_at[chunk.transfer_id] = self.free_at


@pytest.mark.parametrize("cap_share", [None, 0.5])
@pytest.mark.parametrize("seed", range(8))
def test_a_shadow_delays_decode_and_prefill_by_no_more_than_a_chunk(seed, cap_share):
    random = Random(seed)
    rate = random.choice([2.5e6, 1.25e7])
    cap = cap_share and cap_share * rate
    offers = [(random.uniform(0, 3), DECODE, random.randint(500, 9000)) for _ in range(60)]
    offers += [(random.uniform(0, 3), PREFILL, random.randint(10_000, 200_000)) for _ in range(6)]
    alone, shared = (SharedLine(rate, cap, with_shadow) for with_shadow in (False, True))
    alone.run(offers)
    shared.run(offers)
    assert alone.left_at.keys() == shared.left_at.keys()
    chunk_s = shared.shadow.pacer.chunk_bytes / min(rate, cap or rate)
    for transfer, at in alone.left_at.items():
        assert shared.left_at[transfer] - at <= CHUNKS_LATE_MAX * chunk_s + 2 * STEP_S
    assert shared.shadow_bytes > 0.2 * (cap or rate), "it takes what is left"


def test_nothing_leaves_while_the_other_link_has_something_waiting():
    line = SharedLine(1e6, None, with_shadow=False)
    line.shadow.offer(Transfer(0, PREFILL, 1000), 0.0)
    line.serving.offer(Transfer(0, PREFILL, 1000), 0.0)
    assert line.shadow.next_chunk(0.0) is None and line.shadow.next_wake(0.0) > 0.0
    line.shadow.give_way_to(())
    assert line.shadow.next_chunk(0.0) is not None
