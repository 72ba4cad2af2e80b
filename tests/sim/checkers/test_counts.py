"""Checkers that are told, event by event, of what no small world comes to."""

from dataclasses import replace

from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.events import BatchArrived, BatchReturned, Piece, RunBatch
from molink_scheduler.request import SamplingParams
from molink_scheduler.resume import Resume
from molink_sim.checkers.bounded_queues import MESSAGES_WAITING_MAX, BoundedQueues
from molink_sim.checkers.prefill_served import DECODES_MAX, PrefillServed
from molink_sim.checkers.survivors_stay import SurvivorsStay

DECODE = RunBatch(Batch(0, BatchClass.DECODE, 0, (Span(1, 9, 10, samples=True),)))


def prefill(start=0, end=8):
    admissions = () if start else (Admission(2, 64, 80, SamplingParams(16)),)
    batch = Batch(1, BatchClass.PREFILL, -1, (Span(2, start, end, samples=False),), admissions)
    return RunBatch(batch, pieces=(Piece(1, start, end),))


def told(checker, crowded, places):
    found = checker(crowded)
    found.ring_started(places[0].life)
    return found


def test_messages_without_end_on_a_link_are_noticed(crowded, places):
    checker = told(BoundedQueues, crowded, places)
    for _ in range(MESSAGES_WAITING_MAX):
        checker.offered(places[0], DECODE, BatchClass.DECODE, 100)
    assert not checker.mistakes
    checker.offered(places[0], DECODE, BatchClass.DECODE, 100)
    assert "messages wait" in checker.mistakes[0]


def test_decode_without_end_before_prefill_that_has_arrived_is_noticed(crowded, places):
    checker = told(PrefillServed, crowded, places)
    checker.taken(places[1], BatchArrived(prefill().batch))
    for _ in range(DECODES_MAX):
        checker.started(places[1], DECODE)
    assert not checker.mistakes
    checker.started(places[1], DECODE)
    assert "passed prefill at ring 0 stage 1" in checker.mistakes[0]


def test_decode_may_go_on_where_no_prefill_waits(crowded, places):
    checker = told(PrefillServed, crowded, places)
    checker.taken(places[1], BatchArrived(prefill().batch))
    checker.started(places[1], prefill())
    for _ in range(2 * DECODES_MAX):
        checker.started(places[1], DECODE)
        checker.started(places[0], DECODE)
    assert not checker.mistakes


def test_a_prompt_that_the_head_leaves_half_done_is_noticed(crowded, places):
    checker = told(PrefillServed, crowded, places)
    half = prefill()
    checker.started(places[0], half)
    for _ in range(2 * DECODES_MAX):
        checker.started(places[0], DECODE)
    assert not checker.mistakes, "as long as it is under way nobody can tell"
    checker.taken(places[0], BatchReturned(BatchClass.PREFILL, -1, half.batch.spans, ()))
    for _ in range(DECODES_MAX + 1):
        checker.started(places[0], DECODE)
    assert "passed prefill at ring 0 stage 0" in checker.mistakes[0]


def test_decode_without_end_on_a_link_is_noticed(crowded, places):
    checker = told(PrefillServed, crowded, places)
    checker.offered(places[0], prefill(), BatchClass.PREFILL, 4000)
    checker.carried(places[0], BatchClass.PREFILL, 1000)
    for _ in range(30):
        checker.carried(places[0], BatchClass.DECODE, 100)
    assert not checker.mistakes
    checker.carried(places[0], BatchClass.DECODE, 100)
    assert "on the link of ring 0 stage 0" in checker.mistakes[0]


def test_a_neighbour_is_fed_only_where_it_took_layers_before_its_own(crowded, places):
    checker = told(SurvivorsStay, crowded, places)
    checker.lost(places[0])
    checker.grew(places[1], is_behind=False)
    checker.joined(places[1], Resume(held=()))
    checker.started(places[1], RunBatch(replace(prefill().batch, replay=True)))
    checker.went_on(places[0].life)
    assert not checker.mistakes
    checker.grew(places[1], is_behind=True)
    checker.joined(places[1], Resume(held=()))
    assert checker.mistakes == ["ring 0 stage 1 was loaded again"]


def test_a_survivor_that_loads_or_is_fed_again_is_noticed(crowded, places):
    checker = told(SurvivorsStay, crowded, places)
    checker.lost(places[1])
    for place in places:
        checker.joined(place, Resume(held=() if place is places[1] else None))
    replayed = RunBatch(replace(prefill().batch, replay=True))
    checker.started(places[1], replayed)
    checker.went_on(places[0].life)
    assert not checker.mistakes
    checker.started(places[0], replayed)
    checker.joined(places[1], Resume(held=()))
    assert checker.mistakes == [
        "ring 0 stage 0 was fed again and had lost nothing",
        "ring 0 stage 1 was loaded again",
    ]
