"""Every policy on a link in virtual time: bytes conserved, decode soon, prefill never starved."""

from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from molink_scheduler.batch import BatchClass
from molink_scheduler.link.facts import CHUNK_BYTES_MAX, chunk_bytes_at
from molink_scheduler.link.priority_queues import (
    PriorityQueues,
    StarvationLimits,
    just_in_time,
    quantum,
)
from molink_scheduler.link.transmission import (
    Chunk,
    LinkView,
    Transfer,
    TransmissionQueue,
)
from molink_sim.network.policies import POLICIES, fixed_quantum, make_queue

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
RULES = {
    "molink": (quantum, quantum),
    "just_in_time": (just_in_time, quantum),
    "quantum": (fixed_quantum, fixed_quantum),
}
LINK = LinkView(2.5e6, 20_000)

every_policy = pytest.mark.parametrize("policy", POLICIES)
priority_policies = pytest.mark.parametrize("policy", RULES)


@dataclass
class FakeLink:
    """Carries one chunk after another at a constant rate, and notes when each departed."""

    queue: TransmissionQueue
    view: LinkView = LINK
    arrivals: list[tuple[float, Transfer]] = field(default_factory=list)
    now: float = 0.0
    departed: list[tuple[float, Chunk]] = field(default_factory=list)
    offered: list[Transfer] = field(default_factory=list)

    def run(self, until: float = float("inf")) -> list[tuple[float, Chunk]]:
        self.arrivals.sort(key=lambda arrival: arrival[0])
        while self.now < until:
            self.offer_arrived()
            chunk = self.queue.next_chunk(self.now, self.view)
            if chunk is not None:
                self.departed.append((self.now, chunk))
                self.now += chunk.size_bytes / self.view.rate_bytes_per_s
            elif self.arrivals:
                self.now = self.arrivals[0][0]
            else:
                break
        return self.departed

    def offer_arrived(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.now:
            _, transfer = self.arrivals.pop(0)
            self.queue.offer(transfer)
            self.offered.append(transfer)


transfers = st.lists(
    st.tuples(
        st.floats(0, 0.5),
        st.sampled_from(BatchClass),
        st.one_of(st.integers(1, 300), st.integers(1, 400_000)),
    ),
    max_size=25,
).map(lambda rows: [(at, Transfer(i, cls, size)) for i, (at, cls, size) in enumerate(sorted(rows))])
dues = st.one_of(st.none(), st.floats(0, 1))


@every_policy
@given(transfers, dues)
def test_bytes_are_conserved_and_in_order(policy, arrivals, due):
    link = FakeLink(
        make_queue(policy), LinkView(2.5e6, 20_000, next_decode_due_at=due), list(arrivals)
    )
    sent: dict[int, int] = defaultdict(int)
    for _, chunk in link.run():
        assert chunk.size_bytes >= 1 and chunk.offset == sent[chunk.transfer_id]
        sent[chunk.transfer_id] += chunk.size_bytes
        size = arrivals[chunk.transfer_id][1].size_bytes
        assert chunk.last == (sent[chunk.transfer_id] == size)
    assert sent == {transfer.transfer_id: transfer.size_bytes for _, transfer in arrivals}


@every_policy
@given(transfers)
def test_each_class_completes_in_order_of_offer(policy, arrivals):
    link = FakeLink(make_queue(policy), arrivals=list(arrivals))
    completed = [chunk for _, chunk in link.run() if chunk.last]
    for batch_class in BatchClass:
        assert [c.transfer_id for c in completed if c.batch_class is batch_class] == [
            t.transfer_id for t in link.offered if t.batch_class is batch_class
        ]


@every_policy
@given(st.data())
def test_the_counters_agree_with_what_was_offered_and_sent(policy, data):
    queue = make_queue(policy)
    left: dict[int, list] = {}
    for number in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["offer", "next"])):
            case "offer":
                batch_class = data.draw(st.sampled_from(BatchClass))
                left[number] = [batch_class, data.draw(st.integers(1, 60_000))]
                queue.offer(Transfer(number, *left[number]))
            case "next":
                chunk = queue.next_chunk(number, LINK)
                assert (chunk is None) == (not left)
                if chunk is not None:
                    left[chunk.transfer_id][1] -= chunk.size_bytes
                    assert chunk.last == (left[chunk.transfer_id][1] == 0)
                    if chunk.last:
                        del left[chunk.transfer_id]
        for batch_class in BatchClass:
            sizes = [size for cls, size in left.values() if cls is batch_class]
            assert queue.waiting_count(batch_class) == len(sizes)
            assert queue.queued_bytes(batch_class) == sum(sizes)


@priority_policies
@given(transfers, dues)
def test_a_decode_at_the_head_of_its_queue_waits_for_one_prefill_chunk_at_most(
    policy, arrivals, due
):
    link = FakeLink(
        make_queue(policy), LinkView(2.5e6, 20_000, next_decode_due_at=due), list(arrivals)
    )
    departed = link.run()
    offered_at = {transfer.transfer_id: at for at, transfer in arrivals}
    head_since = 0.0  # When the decode that went before it left the link free.
    for index, (at, chunk) in enumerate(departed):
        if chunk.batch_class is DECODE:
            waits_since = max(head_since, offered_at[chunk.transfer_id])
            ends = [when + c.size_bytes / LINK.rate_bytes_per_s for when, c in departed[:index]]
            in_front = [end for end in ends if end > waits_since + 1e-9]
            assert len(in_front) <= 1
            head_since = at + chunk.size_bytes / LINK.rate_bytes_per_s


@priority_policies
@given(st.integers(1, 10**9), st.floats(0, 5))
def test_behind_a_prefill_of_any_size_decode_is_the_very_next_chunk(policy, prefill_bytes, now):
    queue = make_queue(policy)
    queue.offer(Transfer(1, PREFILL, prefill_bytes))
    queue.next_chunk(now, LinkView(2.5e6, 20_000, next_decode_due_at=now + 0.05))
    queue.offer(Transfer(2, DECODE, 9216))
    late = now + 10.0  # However long that chunk took.
    assert queue.next_chunk(late, LINK) == Chunk(2, 0, 9216, True, DECODE)


@priority_policies
@given(st.integers(1, 200_000), st.sampled_from([6e5, 2.5e6, 1.25e7, 1.25e8]))
def test_prefill_advances_when_decode_fills_the_link(policy, decode_bytes, rate):
    limits = StarvationLimits(decisions_max=30, decode_bytes_max=300_000, wait_s_max=0.05)
    queue = PriorityQueues(*RULES[policy], limits)
    queue.offer(Transfer(0, PREFILL, 10**9))
    now, turns, passed, passed_bytes, since = 0.0, 0, 0, 0, 0.0
    offered = 0
    while offered < 400:
        if not queue.waiting_count(DECODE):
            offered += 1
            queue.offer(Transfer(offered, DECODE, decode_bytes))
        chunk = queue.next_chunk(
            now, LinkView(rate, chunk_bytes_at(rate), next_decode_due_at=now + 1.0)
        )
        if chunk.batch_class is DECODE:
            passed, passed_bytes = passed + chunk.last, passed_bytes + chunk.size_bytes
            assert passed < limits.decisions_max
            assert passed_bytes < limits.decode_bytes_max + decode_bytes
            assert now - since < limits.wait_s_max + decode_bytes / rate
        else:
            assert chunk.size_bytes <= min(CHUNK_BYTES_MAX, max(4096, 0.008 * rate, 16384))
            assert now - since <= limits.wait_s_max + decode_bytes / rate + 1e-9
            turns, passed, passed_bytes = turns + 1, 0, 0
        now += chunk.size_bytes / rate
        since = now if chunk.batch_class is PREFILL else since
    assert turns >= 400 // limits.decisions_max


@every_policy
def test_an_id_may_wait_once_and_come_again_later(policy):
    queue = make_queue(policy)
    queue.offer(Transfer(7, PREFILL, 100_000))
    queue.next_chunk(0.0, LINK)
    with pytest.raises(ValueError, match="already waiting"):
        queue.offer(Transfer(7, DECODE, 10))
    while not queue.next_chunk(0.0, LINK).last:
        pass
    queue.offer(Transfer(7, DECODE, 10))
    assert queue.next_chunk(0.0, LINK) == Chunk(7, 0, 10, True, DECODE)


def ends_ms(policy: str, due: float | None = None) -> tuple[float, float]:
    """When a span of 128 tokens and a decode of six rows, offered at 10 ms, have left."""
    arrivals = [(0.0, Transfer(1, PREFILL, 196_608)), (0.01, Transfer(2, DECODE, 9_216))]
    link = FakeLink(make_queue(policy), LinkView(2.5e6, 20_000, next_decode_due_at=due), arrivals)
    ends = {c.transfer_id: 1e3 * (at + c.size_bytes / 2.5e6) for at, c in link.run()}
    return round(ends[1], 1), round(ends[2], 1)


def test_the_timeline_of_the_documentation():
    assert ends_ms("molink") == (82.3, 19.7)
    assert ends_ms("quantum") == (82.3, 16.8)
    assert ends_ms("fifo") == (78.6, 82.3)
    assert ends_ms("fair") == (82.3, 23.3)


def test_just_in_time_is_as_good_as_its_forecast():
    assert ends_ms("just_in_time", due=0.010) == (82.3, 13.7)
    assert ends_ms("just_in_time", due=0.080) == (78.6, 82.3)
    assert ends_ms("just_in_time", due=None) == ends_ms("molink")


def test_an_unknown_policy_is_refused_with_the_list():
    with pytest.raises(ValueError, match="molink, just_in_time, paper, quantum, fifo, fair"):
        make_queue("lifo")


def test_an_empty_transfer_is_refused():
    with pytest.raises(ValueError, match="transfer"):
        Transfer(1, DECODE, 0)


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_rate_is_refused(rate):
    with pytest.raises(ValueError, match="rate"):
        LinkView(rate, 4096)
