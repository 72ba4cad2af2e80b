"""What a stage tells of its latest prompts and steps: exact on its own clock, and bounded."""

from molink.stage.health import recent_work
from molink.stage.health.engine_health import recent_sketches
from molink.stage.health.recent_work import REPORTED_S, RecentWork
from molink.stage_protocol.health import (
    PIECES_MAX,
    PROMPTS_MAX,
    REASON_CHARS_MAX,
    REFUSED_MAX,
    SKETCH_NUMBERS_MAX,
    SKETCHES_MAX,
)
from molink_scheduler.batch import Admission, Batch, BatchClass, Span
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    RequestCancelled,
    RequestSubmitted,
)
from molink_scheduler.request import Request, SamplingParams
from molink_scheduler.token_ids import token_bytes


def submit(request_id):
    return RequestSubmitted(Request(request_id, token_bytes((1, 2)), SamplingParams(max_tokens=1)))


def prefill(*spans):
    return Batch(1, BatchClass.PREFILL, -1, spans)


def decode(rows=1):
    return Batch(1, BatchClass.DECODE, 0, tuple(Span(n, 5, 6, True) for n in range(rows)))


def test_a_head_tells_how_long_a_prompt_waited_and_how_far_it_is():
    work = RecentWork(is_head=True)
    work.received(submit(7), 10.0)
    assert work.prompts(11.0) == ()
    work.begins(prefill(Span(7, 0, 32, False)), 14.0)
    work.begins(prefill(Span(7, 32, 50, True)), 15.0)
    assert work.prompts(15.5) == ((7, 50, 4.0),)
    assert work.prompts(15.0 + REPORTED_S + 0.1) == ()


def test_decode_and_other_stages_tell_no_prompts():
    head, tail = RecentWork(True), RecentWork(False)
    head.begins(decode(), 1.0)
    tail.begins(prefill(Span(7, 0, 32, False)), 1.0)
    assert head.prompts(1.0) == tail.prompts(1.0) == ()


def test_only_so_many_prompts_are_kept_and_the_latest_are_told():
    work = RecentWork(is_head=True)
    for number in range(PROMPTS_MAX + 5):
        work.begins(prefill(Span(number, 0, 1, True)), 1.0)
    told = [request_id for request_id, _, _ in work.prompts(1.0)]
    assert told == list(range(5, PROMPTS_MAX + 5))


def test_waits_of_requests_that_never_begin_are_forgotten(monkeypatch):
    monkeypatch.setattr(recent_work, "WAITING_MAX", 2)
    work = RecentWork(is_head=True)
    for number, at in ((1, 1.0), (2, 2.0), (3, 3.0)):
        work.received(submit(number), at)
    work.received(RequestCancelled(2), 4.0)
    work.begins(prefill(*(Span(number, 0, 1, True) for number in (1, 2, 3))), 5.0)
    assert [waited for _, _, waited in work.prompts(5.0)] == [0.0, 0.0, 2.0]


def test_who_is_new_in_a_batch_bears_its_wait_when_it_leaves_the_head():
    head, middle = RecentWork(True), RecentWork(False)
    admission = Admission(7, 2, 1, SamplingParams(max_tokens=1))
    batch = Batch(1, BatchClass.PREFILL, -1, (Span(7, 0, 2, True),), (admission,))
    head.received(submit(7), 10.0)
    head.begins(batch, 14.0)
    (waited,) = head.with_waits(batch).admissions
    assert waited.waited_s == 4.0
    assert middle.with_waits(batch) is batch and head.with_waits(decode()).admissions == ()


def test_a_head_tells_when_each_piece_of_a_prompt_went():
    work = RecentWork(is_head=True)
    work.received(submit(7), 10.0)
    work.begins(prefill(Span(7, 0, 32, False)), 11.0)
    work.begins(prefill(Span(7, 32, 50, True)), 13.0)
    assert work.pieces(13.0) == ((7, 0, 32, 1.0), (7, 32, 50, 3.0))
    assert work.pieces(11.0 + REPORTED_S + 0.1) == ((7, 32, 50, 3.0),)
    for number in range(2 * PIECES_MAX):
        work.begins(prefill(Span(number, 0, 1, True)), 14.0)
    assert len(work.pieces(14.0)) == PIECES_MAX


def circling(slot):
    return Batch(1, BatchClass.DECODE, slot, (Span(1, 5, 6, True),))


def returned(slot):
    return BatchReturned(BatchClass.DECODE, slot, (), ())


def test_micro_batches_count_while_they_are_here_and_the_head_knows_those_under_way():
    head, tail = RecentWork(True), RecentWork(False)
    for work in (head, tail):
        assert work.micro_batches(10.0)[0] == 0.0
    head.begins(circling(0), 10.0)
    head.ended(circling(0), 10.5)
    tail.received(BatchArrived(circling(0)), 11.0)
    tail.received(BatchArrived(circling(1)), 12.0)
    assert head.micro_batches(14.0) == (0.125, 1.0)
    assert tail.micro_batches(14.0) == (1.25, None)
    tail.ended(circling(0), 15.0)
    head.received(returned(0), 15.0)
    assert tail.micro_batches(16.0) == (1.5, None)
    assert head.micro_batches(16.0) == (0.0, 0.5)


def test_a_micro_batch_that_never_leaves_is_counted_until_its_slot_is_taken_again():
    tail = RecentWork(False)
    tail.micro_batches(0.0)
    for at in (1.0, 2.0, 3.0):
        tail.received(BatchArrived(circling(0)), at)
    assert tail.micro_batches(4.0) == (0.75, None)


def test_slots_that_no_ring_has_are_not_kept():
    tail = RecentWork(False)
    tail.micro_batches(0.0)
    for slot in (-1, 64, 2**40):
        tail.received(BatchArrived(circling(slot)), 1.0)
    assert tail.micro_batches(2.0) == (0.0, None)


def test_sketches_are_told_where_there_are_any_the_newest_as_far_as_there_is_room():
    numbers = (1.5,) * (SKETCH_NUMBERS_MAX // 3)
    done = [(10.0, number, 8, numbers) for number in range(5)] + [(1.0, 9, 8, numbers)]
    assert [one[0] for one in recent_sketches(done, 10.0 + REPORTED_S)] == [0, 1, 2]
    assert recent_sketches(done, 20.0) == ()
    many = [(1.0, at, 8, (1.0,)) for at in range(99)]
    assert len(recent_sketches(many, 1.0)) == SKETCHES_MAX
    assert recent_sketches(reversed(many), 1.0)[0] == (98, 8, (1.0,))
    assert recent_sketches((), 1.0) == ()


def test_refused_requests_are_told_for_some_seconds_and_not_at_length():
    work = RecentWork(is_head=True)
    work.refused(1, "x" * 1000, 10.0)
    work.refused(2, "no", 11.0)
    assert work.refusals(11.0) == ((1, "x" * REASON_CHARS_MAX), (2, "no"))
    assert work.refusals(10.5 + REPORTED_S) == ((2, "no"),)
    for number in range(3 * REFUSED_MAX):
        work.refused(number, "no", 12.0)
    assert len(work.refusals(12.0)) == REFUSED_MAX
