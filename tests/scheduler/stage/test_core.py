"""What a stage decides: in this order, with these forecasts, and what it refuses."""

import pytest

from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    Piece,
    Refuse,
    ReleaseArrived,
    RequestSubmitted,
    RunBatch,
    SendRelease,
    SendRows,
    SendTokens,
    WaitUntil,
)
from molink_scheduler.head.scheduler import HeadScheduler
from molink_scheduler.head.settings import HeadSettings, RingTerms
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.timing.round_tracker import StageStamp
from molink_scheduler.token_ids import token_bytes

DECODE, PREFILL = BatchClass.DECODE, BatchClass.PREFILL
SAMPLING = SamplingParams(max_tokens=100)


def a_core(rows_max: int = 8, *, is_tail: bool = False) -> StageCore:
    book = StageBook(BlockTable(KvLedger(64)), ModelLimits(1024, 100))
    return StageCore(StageQueue.for_steps_of(rows_max, book), is_tail)


def a_prompt(request_id: int, tokens: int) -> Batch:
    admission = Admission(request_id, tokens, tokens + 50, SAMPLING)
    span = Span(request_id, 0, tokens, samples=True)
    return Batch(request_id, PREFILL, -1, (span,), (admission,))


def a_decode(request_id: int, position: int, slot: int = 0) -> Batch:
    return Batch(99, DECODE, slot, (Span(request_id, position, position + 1, True),))


def run_all(core: StageCore, now: float, step_s: float = 0.01) -> list[RunBatch]:
    """Compute whatever waits."""
    runs = []
    while decisions := core.next_step(1e6, now):
        *_, run = decisions
        assert isinstance(run, RunBatch)
        core.computed(run, step_s, 1e6, now)
        core.finished(run, step_s, now)
        runs.append(run)
    return runs


def test_a_stage_with_nothing_to_do_waits_for_a_message():
    assert not a_core().next_step(0.0, 0.0)


def test_rows_are_named_by_the_messages_that_brought_them():
    core = a_core(rows_max=8)
    assert not core.received(BatchArrived(a_prompt(1, 12), 7), 0.0)
    assert not core.received(BatchArrived(a_prompt(2, 3), 8), 0.0)
    pieces = [run.pieces for run in run_all(core, 0.0)]
    assert pieces == [(Piece(7, 0, 8),), (Piece(7, 8, 12), Piece(8, 0, 3))]


def test_decode_goes_between_the_layers_of_a_prompt():
    core = a_core()
    core.received(BatchArrived(a_prompt(1, 2), 1), 0.0)
    run_all(core, 0.0)
    core.received(BatchArrived(a_prompt(2, 6), 2), 1.0)
    (prompt,) = core.next_step(1e6, 1.0)
    assert not core.between_layers(1.0)
    core.received(BatchArrived(a_decode(1, 2), 3), 1.1)
    (decode,) = core.between_layers(1.1)
    assert (prompt.batch.batch_class, decode.batch.batch_class) == (PREFILL, DECODE)
    assert not core.between_layers(1.1)


def test_decode_is_stamped_with_its_step_and_the_links_rate_and_prefill_is_not():
    core = a_core()
    core.received(BatchArrived(a_prompt(1, 2), 1), 0.0)
    (run,) = core.next_step(1e6, 0.0)
    assert core.computed(run, 0.02, 5e6, 0.02).batch == run.batch
    core.finished(run, 0.02, 0.02)
    core.received(BatchArrived(a_decode(1, 2), 2), 1.0)
    (run,) = core.next_step(1e6, 1.0)
    sent = core.computed(run, 0.004, 5e6, 1.004)
    assert sent.batch.stamps == (StageStamp(0.004, 5e6),)


def test_results_are_due_one_smoothed_step_after_the_decode_that_is_due():
    core = a_core()
    core.received(BatchArrived(a_prompt(1, 2), 1), 0.0)
    run_all(core, 0.0)
    for position in range(45):
        now = 1.0 + 0.1 * position
        core.received(BatchArrived(a_decode(1, 2 + position), 2), now)
        (run,) = core.next_step(1e6, now)
        sent = core.computed(run, 0.01, 1e6, now)
        core.finished(run, 0.01, now)
    assert run.result_due_at == pytest.approx(now + 0.01, abs=1e-4)
    assert sent == SendRows(sent.batch, pytest.approx(now + 0.1 + 0.01, abs=1e-3))


def test_the_tail_sends_tokens():
    core = a_core(is_tail=True)
    core.received(BatchArrived(a_prompt(1, 2), 1), 0.0)
    (run,) = core.next_step(1e6, 0.0)
    assert core.computed(run, 0.02, 1e6, 0.02) == SendTokens(run.batch)


def test_what_a_book_objects_to_is_refused_and_the_rest_goes_on():
    core = a_core()
    (refusal,) = core.received(BatchArrived(a_decode(5, 3), 1), 0.0)
    assert refusal == Refuse("request 5 was never admitted")
    core.received(BatchArrived(a_prompt(1, 2), 2), 0.0)
    (refusal,) = core.received(ReleaseArrived(Release(1)), 0.0)
    assert isinstance(refusal, Refuse)
    assert [run.pieces for run in run_all(core, 0.0)] == [(Piece(2, 0, 2),)]
    assert core.received(ReleaseArrived(Release(1)), 0.0) == (SendRelease(Release(1)),)


def test_messages_for_the_other_end_of_the_ring_are_refused():
    request = Request(1, token_bytes((1, 2)), SAMPLING)
    for event in (RequestSubmitted(request), BatchReturned(DECODE, 0, (), ())):
        (refusal,) = a_core().received(event, 0.0)
        assert isinstance(refusal, Refuse)
    head = StageCore(HeadScheduler(HeadSettings(RingTerms(64, micro_batch_count=1))), is_tail=False)
    for event in (BatchArrived(a_prompt(1, 2)), ReleaseArrived(Release(1))):
        (refusal,) = head.received(event, 0.0)
        assert isinstance(refusal, Refuse)


def test_a_head_releases_before_it_computes(nothing_grows):
    """Two requests outgrow the ring: the newest gives its blocks back before the next batch."""
    head = HeadScheduler(HeadSettings(RingTerms(64, micro_batch_count=1)))
    head.prompts.forecast = nothing_grows
    core = StageCore(head, is_tail=True)
    for request_id in (1, 2):
        request = Request(request_id, token_bytes(range(16)), SamplingParams(max_tokens=40))
        core.received(RequestSubmitted(request), 0.0)
    kinds: list[list[str]] = []
    for step in range(120):
        now = 0.1 * step
        decisions = core.next_step(0.0, now)
        kinds.append([type(one).__name__ for one in decisions])
        if decisions and isinstance(decisions[-1], RunBatch):
            run = decisions[-1]
            tokens = [head_token(span.request_id) for span in run.batch.spans if span.samples]
            core.finished(run, 0.01, now)
            returned = BatchReturned(
                run.batch.batch_class, run.batch.micro_batch, run.batch.spans, tuple(tokens)
            )
            core.received(returned, now)
    assert ["SendRelease", "RunBatch"] in kinds


def head_token(request_id: int):
    from molink_scheduler.events import SampledToken

    return SampledToken(request_id, 3, finished=False)


def test_prefill_that_would_stand_before_decode_waits_for_it_for_a_moment():
    core = a_core(rows_max=64)
    core.received(BatchArrived(a_prompt(1, 2), 1), 0.0)
    run_all(core, 0.0, step_s=0.5)
    for position in range(4):
        core.received(BatchArrived(a_decode(1, 2 + position), 2), 1.0 + position)
        run_all(core, 1.0 + position)
    core.received(BatchArrived(a_prompt(2, 40), 3), 4.95)
    (wait,) = core.next_step(1e6, 4.95)
    assert isinstance(wait, WaitUntil) and 4.95 < wait.at < 5.0
    (run,) = core.next_step(1e6, wait.at)
    assert isinstance(run, RunBatch)
