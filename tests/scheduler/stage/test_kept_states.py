"""A stage refuses orders about snapshots of states that it cannot carry out."""

from dataclasses import replace

import pytest

from molink_scheduler.batch import PREFILL, Admission, Batch, KeptState, Span
from molink_scheduler.events import BatchArrived, CacheChanged, Refuse
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.changes import KeepBlocks, KeptBlocks
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.request import ModelLimits, SamplingParams
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.kept_states import KeptStates
from molink_scheduler.stage.queue import StageQueue, cut_rows, join_batches

SAMPLING = SamplingParams(max_tokens=1)
FIRST = Batch(
    0,
    PREFILL,
    -1,
    (Span(1, 0, 64, False),),
    (Admission(1, 80, 90, SAMPLING),),
    snapshots=(KeptState(1, 64, 1),),
)
SECOND = Batch(
    2,
    PREFILL,
    -1,
    (Span(2, 64, 80, True),),
    (Admission(2, 80, 90, SAMPLING, cached=((7, 4),), snapshot=1),),
)


@pytest.fixture
def queue():
    ledger = KvLedger(100, state_slots=4)
    return StageQueue.for_steps_of(
        256, StageBook(BlockTable(ledger), ModelLimits(200, 100), KeptStates(2)), 64
    )


def refused(queue, batch):
    (refusal,) = queue.handle(BatchArrived(batch), 0.0)
    assert isinstance(refusal, Refuse)
    return refusal.reason


def computed(queue, batch):
    assert not queue.handle(BatchArrived(batch), 0.0)
    _, run = queue.next_batch(0.0, 0.0)
    queue.computed(run, 0.1, 0.1)
    return run.batch


def begun(queue):
    computed(queue, FIRST)
    queue.handle(CacheChanged(KeepBlocks((KeptBlocks(1, 0, 7, 4),))), 0.1)


def test_a_request_begins_with_states_that_were_kept(queue):
    begun(queue)
    assert computed(queue, SECOND) == SECOND


@pytest.mark.parametrize("snapshot", [None, 0, 5])
def test_a_request_does_not_begin_with_others(queue, snapshot):
    begun(queue)
    wrong = replace(SECOND.admissions[0], snapshot=snapshot)
    assert "states that were not kept" in refused(queue, replace(SECOND, admissions=(wrong,)))


def test_states_alone_are_no_beginning(queue):
    begun(queue)
    wrong = Admission(2, 80, 90, SAMPLING, snapshot=1)
    batch = replace(SECOND, spans=(Span(2, 0, 64, False),), admissions=(wrong,))
    assert "begin with states and no cached blocks" in refused(queue, batch)


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        ((KeptState(1, 64, 2),), "no room for a snapshot"),
        ((KeptState(1, 48, 1),), "where no span ends"),
        ((KeptState(9, 64, 1),), "where no span ends"),
        ((KeptState(1, 64, 0), KeptState(1, 64, 1)), "where no span ends"),
    ],
)
def test_states_are_kept_where_a_span_ends_and_there_is_room(queue, kept, why):
    assert why in refused(queue, replace(FIRST, snapshots=kept))


def test_a_step_ends_where_states_are_kept(queue):
    queue.handle(BatchArrived(FIRST, 1), 0.0)
    queue.handle(BatchArrived(Batch(1, PREFILL, -1, (Span(1, 64, 80, True),)), 2), 0.0)
    steps = [queue.next_batch(0.0, 0.0)[1].batch for _ in range(2)]
    assert [step.spans[0].end for step in steps] == [64, 80]
    assert [len(step.snapshots) for step in steps] == [1, 0]


def test_the_piece_that_ends_there_keeps_them():
    first, last = cut_rows(FIRST, 0, 32), cut_rows(FIRST, 32, 64)
    assert (first.snapshots, last.snapshots) == ((), FIRST.snapshots)
    assert join_batches([first, last]) == FIRST
