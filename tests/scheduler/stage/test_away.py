"""What a stage is told of cached blocks below its device's memory, and what of that cannot be."""

import pytest

from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.events import (
    BatchArrived,
    BlocksRead,
    CacheChanged,
    FetchArrived,
    Refuse,
    SendFetched,
)
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.changes import (
    DropBlocks,
    FetchBlocks,
    Fetched,
    KeepBlocks,
    KeptBlocks,
    LowerBlocks,
)
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.tiers import DEVICE, FILE, HOST, CacheTiers
from molink_scheduler.request import ModelLimits, SamplingParams
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.queue import StageQueue


@pytest.fixture
def queue():
    """Of a stage with room for two blocks in host memory and one in the file. It caches blocks 3 to
    6 of a request that has gone on; 3 and 4 are used by nobody else."""
    limits = ModelLimits(sequence_tokens_max=1000, vocabulary_size=1000)
    book = StageBook(BlockTable(KvLedger(8), CacheTiers(2, 1)), limits)
    queue = StageQueue.for_steps_of(128, book)
    for request_id, number in ((1, 3), (2, 5)):
        new = Admission(request_id, 40, 48, SamplingParams(max_tokens=8))
        batch = Batch(0, PREFILL, -1, (Span(request_id, 0, 40, False),), (new,))
        assert not queue.handle(BatchArrived(batch), 0.0)
        _, run = queue.next_batch(0.0, 0.0)
        queue.computed(run, 0.01, 0.0)
        changed(queue, KeepBlocks((KeptBlocks(request_id, 0, number, 2),)))
    queue.book.released(Release(1))
    return queue


def places(book):
    return [book.table.place_of(number) for number in (3, 4)]


def changed(queue, change):
    (decided,) = queue.handle(CacheChanged(change), 0.0)
    return decided.reason if isinstance(decided, Refuse) else None


def test_blocks_go_down_and_come_back(queue):
    book = queue.book
    free = book.kv.blocks_free
    assert changed(queue, LowerBlocks(HOST, ((3, 2),))) is None
    assert changed(queue, LowerBlocks(FILE, ((4, 1),))) is None
    assert (book.kv.blocks_free, places(book)) == (free + 2, [HOST, FILE])
    assert changed(queue, FetchBlocks(5, ((3, 2),))) is None
    assert (book.kv.blocks_free, places(book)) == (free, [DEVICE, DEVICE])
    assert "in use" in changed(queue, LowerBlocks(HOST, ((3, 1),)))
    assert queue.handle(BlocksRead(Fetched(5, 2)), 0.0) == ()
    assert queue.handle(FetchArrived(Fetched(5, 1)), 0.0) == (SendFetched(Fetched(5, 1)),)
    assert changed(queue, DropBlocks(((3, 2),))) is None


def test_the_stage_before_may_answer_first(queue):
    changed(queue, LowerBlocks(HOST, ((3, 2),)))
    changed(queue, FetchBlocks(0, ((3, 2),)))
    assert queue.handle(FetchArrived(Fetched(0, 2)), 0.0) == ()
    assert queue.handle(BlocksRead(Fetched(0, 0)), 0.0) == (SendFetched(Fetched(0, 0)),)


def test_a_fetch_that_is_given_up_is_answered_all_the_same(queue):
    """Its blocks are free before the stage's own reader, or the stage before, has answered."""
    book = queue.book
    free = book.kv.blocks_free
    changed(queue, LowerBlocks(HOST, ((3, 2),)))
    changed(queue, FetchBlocks(5, ((3, 2),)))
    assert changed(queue, DropBlocks(((3, 2),))) is None
    assert book.kv.blocks_free == free + 2
    assert "not here or in use" in changed(queue, DropBlocks(((3, 2),)))
    assert queue.handle(BlocksRead(Fetched(5, 2)), 0.0) == ()
    assert queue.handle(FetchArrived(Fetched(5, 2)), 0.0) == (SendFetched(Fetched(5, 2)),)
    assert book.kv.blocks_free == free + 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (LowerBlocks(HOST, ((5, 1),)), "not here or in use"),
        (LowerBlocks(HOST, ((9, 1),)), "not here or in use"),
        (LowerBlocks(FILE, ((3, 2),)), "than there is room for"),
        (LowerBlocks(HOST, ((3, 1), (3, 1))), "named twice"),
        (FetchBlocks(0, ((3, 1),)), "that are not away"),
        (LowerBlocks(HOST, ((0, 10**12),)), "than are cached"),
    ],
)
def test_moves_that_cannot_be_are_refused(queue, change, why):
    before = queue.book.kv.blocks_cached
    assert why in changed(queue, change)
    assert queue.book.kv.blocks_cached == before


def test_a_number_that_is_away_is_given_to_no_other_block(queue):
    changed(queue, LowerBlocks(HOST, ((3, 2),)))
    assert "from 4 on are to be cached twice" in changed(
        queue, KeepBlocks((KeptBlocks(2, 1, 4, 1),))
    )


@pytest.mark.parametrize("fetched", [Fetched(1, 1), Fetched(0, 3)])
def test_answers_to_what_was_not_asked_are_refused(queue, fetched):
    changed(queue, LowerBlocks(HOST, ((3, 2),)))
    changed(queue, FetchBlocks(0, ((3, 2),)))
    (refused,) = queue.handle(FetchArrived(fetched), 0.0)
    assert isinstance(refused, Refuse)


def test_what_is_away_does_not_come_back_without_room(queue):
    changed(queue, LowerBlocks(HOST, ((3, 2),)))
    queue.book.kv.grow(9, 16 * queue.book.kv.blocks_free)
    assert "are free" in changed(queue, FetchBlocks(0, ((3, 2),)))
