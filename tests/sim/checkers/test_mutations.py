"""Every checker fails when what it checks is broken: each test breaks one thing in the world."""

from dataclasses import replace

import pytest

from molink_scheduler.batch import BatchClass
from molink_scheduler.head.micro_batches import MicroBatches
from molink_scheduler.head.prompt_queue import PromptQueue
from molink_scheduler.head.sequence import Sequence
from molink_scheduler.kv.free_runs import FreeRuns
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.resume import Resume
from molink_scheduler.stage.queue import StageOrder
from molink_scheduler.stage.replay_log import ReplayLog
from molink_sim.checkers import CHECKERS
from molink_sim.checkers.bounded_queues import BoundedQueues
from molink_sim.checkers.bytes_conserved import BytesConserved
from molink_sim.checkers.ends_once import EndsOnce
from molink_sim.checkers.everything_finishes import EverythingFinishes
from molink_sim.checkers.kv_blocks import KvBlocksKept
from molink_sim.checkers.nothing_refused import NothingRefused
from molink_sim.checkers.tokens_in_order import TokensInOrder
from molink_sim.network.line import Line
from molink_sim.network.paced import PacedLink
from molink_sim.ring.build import _Copies
from molink_sim.ring.coordinator import Coordinator
from molink_sim.ring.stage import Stage
from molink_sim.ring.tail import Tail
from molink_sim.scenario import NodeLoss, RequestArrival
from molink_sim.swarm import check_world


def test_a_sound_world_passes(crowded):
    world, found = check_world(crowded, CHECKERS)
    assert found == []
    assert all(request.finished for request in world.coordinator.requests)


def test_a_copy_sent_twice_ends_requests_twice(mistakes, monkeypatch):
    send = _Copies.__call__

    def send_twice(self, tokens):
        send(self, tokens)
        send(self, tokens)

    monkeypatch.setattr(_Copies, "__call__", send_twice)
    assert "ended 2 times" in mistakes(EndsOnce)[0]


def test_a_copy_that_is_lost_leaves_a_request_without_an_end(mistakes, monkeypatch):
    send = _Copies.__call__
    monkeypatch.setattr(
        _Copies,
        "__call__",
        lambda self, sent: send(
            self, sent._replace(what=tuple(t for t in sent.what if t.request_id != 3))
        ),
    )
    assert "request 3 ended 0 times" in mistakes(EndsOnce)[0]
    assert "request 3 is still waiting" in mistakes(EverythingFinishes)[0]


def test_spans_that_overtake_one_another_are_out_of_order(
    mistakes, monkeypatch, crowded, plain_cost
):
    def push_in_front(self, arrived, now):
        is_decode = arrived.batch.batch_class is BatchClass.DECODE
        (self._decode if is_decode else self._prefill).appendleft(arrived)

    monkeypatch.setattr(StageOrder, "push", push_in_front)
    [ring] = crowded.rings
    head, slow, tail = ring.stages
    slow = replace(slow, cost=plain_cost(row_s=0.002))
    queueing = replace(
        crowded,
        rings=(replace(ring, stages=(head, slow, tail)),),
        arrivals=[RequestArrival(0.0, 280, 4)],
        system=replace(crowded.system, span_tokens=32),
    )
    assert "computed request 0 from" in mistakes(TokensInOrder, queueing)[0]


def test_a_token_told_twice_is_one_too_many(mistakes, monkeypatch):
    take = Coordinator.sampled
    monkeypatch.setattr(
        Coordinator, "sampled", lambda self, tokens: take(self, (tokens[0], *tokens))
    )
    assert "asked for 30" in mistakes(TokensInOrder)[0]


@pytest.mark.parametrize("checker", [TokensInOrder, NothingRefused])
def test_a_position_planned_twice_is_noticed(mistakes, monkeypatch, checker):
    take = Sequence.take_span

    def take_again(self, tokens_max):
        self.planned_tokens -= self.decoding and len(self.known) == 40
        return take(self, tokens_max)

    monkeypatch.setattr(Sequence, "take_span", take_again)
    assert mistakes(checker)


@pytest.mark.parametrize("checker", [BytesConserved, EverythingFinishes])
def test_a_message_that_a_link_swallows_is_missed(mistakes, monkeypatch, checker):
    arrived, count = PacedLink._arrived, iter(range(10**6))

    def swallow(self, what):
        arrived(self, (*what[:2], None) if next(count) == 40 else what)

    monkeypatch.setattr(PacedLink, "_arrived", swallow)
    assert mistakes(checker)


def test_a_message_that_a_link_delivers_twice_is_noticed(mistakes, monkeypatch):
    arrived = PacedLink._arrived

    def deliver_twice(self, what):
        arrived(self, what)
        if what[2] is not None:
            self.deliver(what[2])

    monkeypatch.setattr(PacedLink, "_arrived", deliver_twice)
    assert "not under way" in mistakes(BytesConserved)[0]


@pytest.mark.parametrize("more, words", [(1, "that nobody gave"), (-1, "never left")])
def test_bytes_that_a_wire_adds_or_loses_are_counted(mistakes, monkeypatch, more, words):
    carry = Line.carry

    def carry_wrong(self, size_bytes, now, batch_class, rows):
        return carry(self, size_bytes + more, now, batch_class, rows)

    monkeypatch.setattr(Line, "carry", carry_wrong)
    assert words in mistakes(BytesConserved)[0]


def test_releases_that_are_not_passed_on_leak_blocks(mistakes, monkeypatch, crowded):
    monkeypatch.setattr(Stage, "_release", lambda self, release: None)
    few = replace(crowded, arrivals=crowded.arrivals[:2])
    assert "ring 0 stage 1 keeps blocks" in mistakes(KvBlocksKept, few)[0]


def test_a_head_that_forgets_to_free_is_caught(mistakes, monkeypatch, crowded):
    monkeypatch.setattr(KvLedger, "release", lambda self, request_id: None)
    few = replace(crowded, arrivals=crowded.arrivals[:2])
    assert "counts" in mistakes(KvBlocksKept, few)[0]


def test_a_head_that_does_not_count_overfills_the_stages(mistakes, monkeypatch):
    monkeypatch.setattr(KvLedger, "grow", lambda self, request_id, tokens: None)
    assert "too few blocks" in mistakes(KvBlocksKept)[0]


def test_a_block_given_to_two_is_noticed(mistakes, monkeypatch):
    monkeypatch.setattr(FreeRuns, "take", lambda self, run: None)
    assert "gave block" in mistakes(KvBlocksKept)[0]


def test_two_micro_batches_in_one_place_are_noticed(mistakes, monkeypatch):
    monkeypatch.setattr(MicroBatches, "free_slot", lambda self: 0)
    assert "two micro-batches in place 0" in mistakes(BoundedQueues)[0]


def test_too_many_micro_batches_are_noticed(mistakes, monkeypatch, crowded):
    monkeypatch.setattr(
        MicroBatches, "free_slot", lambda self: max(self._under_way, default=-1) + 1
    )
    monkeypatch.setattr(MicroBatches, "share", lambda self, running_count, ready_count: 1)
    two = replace(crowded, system=replace(crowded.system, micro_batches=2))
    assert "3 micro-batches circled on ring 0, at most 2" in mistakes(BoundedQueues, two)[0]


def test_a_head_that_sends_prefill_without_end_is_noticed(
    mistakes, monkeypatch, crowded, plain_ring
):
    uncounted = property(lambda self: 0, lambda self, tokens: None)
    monkeypatch.setattr(PromptQueue, "_tokens_in_flight", uncounted)
    ring = plain_ring(2, 1, 0.01, row_bytes=512, kv_tokens=8000)
    flood = replace(crowded, rings=(ring,), arrivals=[RequestArrival(0.0, 3000, 2)])
    assert "prompt tokens were under way" in mistakes(BoundedQueues, flood)[0]


def test_a_tail_that_never_forgets_is_noticed(mistakes, monkeypatch):
    monkeypatch.setattr(Tail, "forget", lambda self, request_id: None)
    assert "still watches" in mistakes(EverythingFinishes)[0]


def test_a_request_that_fails_on_a_sound_ring_is_noticed(mistakes, monkeypatch):
    leave = Coordinator._finish

    def fail(self, outcome):
        leave(self, outcome)
        outcome.finished, outcome.failed = False, True

    monkeypatch.setattr(Coordinator, "_finish", fail)
    assert "although no node was gone" in mistakes(EverythingFinishes)[0]


@pytest.fixture
def losing(crowded):
    """The crowded world with its middle stage replaced when all is under way."""
    return replace(crowded, faults=(NodeLoss(0, 1, 2.0, 3.0),))


def test_a_world_that_loses_a_stage_is_sound(losing):
    world, found = check_world(losing, CHECKERS)
    assert found == [] and world.rings[0].epoch == 1


def test_a_survivor_that_forgets_what_it_held_is_noticed(mistakes, monkeypatch, losing):
    monkeypatch.setattr(Resume, "missing", lambda self, computed, has_rows: ())
    joined = TokensInOrder.joined

    def held_less(self, place, resume):
        self._computed[place] = dict.fromkeys(self._computed[place], 1)
        joined(self, place, resume)

    monkeypatch.setattr(TokensInOrder, "joined", held_less)
    assert "it lacks" in mistakes(TokensInOrder, losing)[0]


def test_a_token_that_nobody_drew_is_noticed_when_the_ring_goes_on(mistakes, monkeypatch, losing):
    keep = Coordinator.go_on

    def go_on(self, ring, epoch, listed, missing):
        for request in self.requests:
            if request.token_times_s and not request.finished:
                request.token_times_s.append(self.clock.now)
        keep(self, ring, epoch, listed, missing)

    monkeypatch.setattr(Coordinator, "go_on", go_on)
    assert "goes on with" in mistakes(TokensInOrder, losing)[0]


def test_rows_that_are_not_sent_again_are_missed(mistakes, monkeypatch, losing):
    monkeypatch.setattr(ReplayLog, "batches", lambda self, batch, admission, rows_max: iter(()))
    assert "were not kept" in mistakes(NothingRefused, losing)[0]


def test_rows_that_are_logged_for_nobody_are_noticed(mistakes, monkeypatch, losing):
    monkeypatch.setattr(ReplayLog, "forget", lambda self, request_id: None)
    assert "logs rows of nobody" in mistakes(EverythingFinishes, losing)[0]
