"""What a stage is told of its cache, and what of that cannot be."""

import pytest

from molink_scheduler.batch import PREFILL, Admission, Batch, Release, Span
from molink_scheduler.events import BatchArrived, CacheChanged, Refuse, RunBatch, SendCacheChange
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.changes import (
    DropBlocks,
    FoldBlocks,
    KeepBlocks,
    KeptBlocks,
    RetainBlocks,
)
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.request import ModelLimits, SamplingParams
from molink_scheduler.resume import Resume
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.queue import StageQueue

ONCE = SamplingParams(max_tokens=16)


@pytest.fixture
def queue():
    """Of a stage that has computed 40 tokens of request 1, and caches its blocks 3 and 4."""
    limits = ModelLimits(sequence_tokens_max=1000, vocabulary_size=1000)
    queue = StageQueue.for_steps_of(128, StageBook(BlockTable(KvLedger(8)), limits))
    arrived(queue, 1, 0, 40)
    assert changed(queue, KeepBlocks((KeptBlocks(1, 0, 3, 2),))) is None
    return queue


def arrived(queue, request_id, start, end, **admission):
    """A batch of one span came and was computed; the objection, if there is one."""
    new = (
        (Admission(request_id, end, end + 8, ONCE, **admission),) if start == 0 or admission else ()
    )
    batch = Batch(0, PREFILL, -1, (Span(request_id, start, end, False),), new)
    decided = queue.handle(BatchArrived(batch), 0.0)
    if decided and isinstance(decided[0], Refuse):
        return decided[0].reason
    _, run = queue.next_batch(0.0, 0.0)
    queue.computed(RunBatch(run.batch), 0.01, 0.0)
    return None


def changed(queue, change):
    (decided,) = queue.handle(CacheChanged(change), 0.0)
    if isinstance(decided, Refuse):
        return decided.reason
    assert decided == SendCacheChange(change)
    return None


def test_a_request_begins_with_what_is_cached(queue):
    assert arrived(queue, 2, 32, 48, cached=((3, 2),)) is None
    assert queue.book.computed_tokens() == {1: 40, 2: 48}
    assert queue.book.kv.blocks_free == 8 - 3 - 1


def test_the_cache_outlives_who_computed_it(queue):
    queue.book.released(Release(1))
    assert queue.book.kv.blocks_free == 6
    assert arrived(queue, 2, 32, 40, cached=((3, 2),)) is None
    queue.book.released(Release(2))
    assert changed(queue, DropBlocks(((3, 2),))) is None
    assert queue.book.kv.blocks_free == 8


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (KeepBlocks((KeptBlocks(1, 2, 9, 1),)), "that are not computed"),
        (KeepBlocks((KeptBlocks(7, 0, 9, 1),)), "that are not computed"),
        (KeepBlocks((KeptBlocks(1, 0, 9, 2),)), "cached twice"),
        (KeepBlocks((KeptBlocks(2, 0, 9, 2), KeptBlocks(2, 0, 11, 2))), "twice at once"),
        (KeepBlocks((KeptBlocks(1, 0, 9, 1), KeptBlocks(2, 0, 9, 2))), "to have one number"),
        (KeepBlocks((KeptBlocks(2, 0, 4, 2),)), "from 4 on are to be cached twice"),
        (DropBlocks(((3, 2),)), "not here or in use"),
        (DropBlocks(((5, 1),)), "not here or in use"),
        (DropBlocks(((0, 10**12),)), "more blocks are to be dropped"),
    ],
)
def test_changes_that_cannot_be_are_refused(queue, change, why):
    arrived(queue, 2, 0, 40)
    assert why in changed(queue, change)
    assert queue.book.kv.blocks_cached == 2


@pytest.mark.parametrize(
    ("start", "cached", "why"),
    [
        (32, ((3, 3),), "is to begin with 3"),
        (32, ((4, 2),), "not cached here"),
        (24, ((3, 2),), "cannot go on from 24"),
        (32, ((3, 10**12),), "is to begin with"),
    ],
)
def test_a_request_cannot_begin_with_what_is_not_there(queue, start, cached, why):
    assert why in arrived(queue, 2, start, start + 8, cached=cached)
    assert queue.book.kv.holders() == {1}


@pytest.fixture
def survivor():
    """Of a stage that has offered blocks 3 to 5 of the epoch before."""
    limits = ModelLimits(sequence_tokens_max=1000, vocabulary_size=1000)
    book = StageBook(BlockTable(KvLedger(8)), limits)
    book.resume(Resume(chains_stay=True), frozenset({3, 4, 5}))
    return StageQueue.for_steps_of(128, book)


def test_what_was_offered_stays_where_the_head_says_so_once(survivor):
    assert changed(survivor, RetainBlocks(((3, 1), (5, 1)))) is None
    assert survivor.book.kv.blocks_cached == 2
    assert "said twice" in changed(survivor, RetainBlocks(((3, 1),)))


def test_nothing_stays_that_is_not_here(survivor):
    assert "are not here" in changed(survivor, RetainBlocks(((3, 1), (7, 1))))
    assert "no room" in changed(survivor, RetainBlocks(((3, 10**12),)))
    assert survivor.book.kv.blocks_cached == 0


def test_what_stays_is_said_before_anything_else_is_cached(survivor):
    arrived(survivor, 1, 0, 40)
    assert changed(survivor, KeepBlocks((KeptBlocks(1, 0, 3, 2),))) is None
    assert "too late" in changed(survivor, RetainBlocks(((3, 1),)))
    assert survivor.book.kv.blocks_cached == 2


def test_a_ring_goes_on_when_a_stage_is_told_of_blocks_that_it_does_not_hold(
    make_ring, make_request
):
    """Whoever says so, the head or the stage between: the batch is dropped as its own fault."""
    ring = make_ring(5, 3, 16 * 100, prefix_cache=True)
    for number in range(3):
        ring.submit_at(0.5 * number, make_request(number, (*range(64), 900 + number), 20))
    refused = []

    def claim():
        claimed = Admission(99, 65, 70, ONCE, cached=((7000, 4),))
        batch = Batch(10**6, PREFILL, -1, (Span(99, 64, 65, False),), (claimed,))
        refused.extend(ring.stages[1].core.received(BatchArrived(batch), ring.now))
        change = DropBlocks(((7000, 4),))
        refused.extend(ring.stages[1].core.received(CacheChanged(change), ring.now))

    ring.push(2.0, claim)
    ring.run()
    assert [type(one) for one in refused] == [Refuse, Refuse]
    assert "not cached here" in refused[0].reason and "not here" in refused[1].reason
    assert [ring.answers[one] for one in range(3)] == [
        ring.expected_answer(one) for one in range(3)
    ]
    ring.assert_nothing_left()


@pytest.mark.parametrize(
    "made",
    [
        lambda: DropBlocks(()),
        lambda: DropBlocks(((0, 0),)),
        lambda: DropBlocks(((-1, 2),)),
        lambda: DropBlocks(tuple((one, 1) for one in range(2000))),
        lambda: KeptBlocks(1, 0, 0, -1),
        lambda: Admission(1, 1, 1, ONCE, cached=((0, -1),)),
    ],
)
def test_what_no_cache_can_mean_is_no_message(made):
    with pytest.raises(ValueError, match="cache"):
        made()


CUT = SamplingParams(max_tokens=8, kv_budget=0.5)
"""Of 80 tokens 40 are kept: in the third block and those behind it nothing is what it was."""


def test_blocks_of_a_cut_request_are_shared_in_front_of_its_cut_only(queue):
    cut = Admission(2, 80, 88, CUT, cached=((3, 2),))
    assert (
        queue.handle(BatchArrived(Batch(0, PREFILL, -1, (Span(2, 32, 80, False),), (cut,))), 0.0)
        == ()
    )
    queue.computed(RunBatch(queue.next_batch(0.0, 0.0)[1].batch), 0.01, 0.0)
    kept = KeepBlocks((KeptBlocks(2, 2, 9, 1),))
    assert changed(queue, kept) == "blocks of request 2 are to be cached that it cuts"


def a_cut_request():
    """Queue of a stage that has computed 80 tokens of a request, of which 40 are kept: its first
    two blocks are whole."""
    limits = ModelLimits(sequence_tokens_max=1000, vocabulary_size=1000)
    queue = StageQueue.for_steps_of(128, StageBook(BlockTable(KvLedger(8, folds=2)), limits))
    cut = Admission(2, 80, 88, CUT)
    batch = Batch(0, PREFILL, -1, (Span(2, 0, 80, False),), (cut,))
    assert queue.handle(BatchArrived(batch), 0.0) == ()
    return queue


def test_a_request_is_folded_once_and_publishes_nothing_from_then_on():
    queue = a_cut_request()
    fold = FoldBlocks(2, 2, 1)
    assert changed(queue, fold) == "request 2 is to be folded, and is not cut or was folded"
    queue.computed(RunBatch(queue.next_batch(0.0, 0.0)[1].batch), 0.01, 0.0)
    assert changed(queue, KeepBlocks((KeptBlocks(2, 0, 9, 1),))) is None
    assert (
        changed(queue, DropBlocks(((9, 1),)))
        == "cached block 9 is to go, and is not here or in use"
    )
    assert changed(queue, fold) is None
    assert queue.book.kv.blocks_free == 8 - 5 + 1 - 1, "less the block that is the cache's alone"
    assert changed(queue, fold) == "request 2 is to be folded, and is not cut or was folded"
    kept = KeepBlocks((KeptBlocks(2, 1, 10, 1),))
    assert changed(queue, kept) == "blocks of request 2 are to be cached that it cuts"
    assert changed(queue, DropBlocks(((9, 1),))) is None
    queue.book.released(Release(2))
    assert queue.book.kv.blocks_free == 8


@pytest.mark.parametrize(
    ("fold", "why"),
    [
        (FoldBlocks(3, 2, 1), "request 3 is to be folded, and is not cut or was folded"),
        (FoldBlocks(2, 3, 2), "3 blocks of request 2 are to be folded into 2"),
        (FoldBlocks(2, 10**9, 1), "1000000000 blocks of request 2 are to be folded into 1"),
    ],
)
def test_what_cannot_be_folded(fold, why):
    queue = a_cut_request()
    queue.computed(RunBatch(queue.next_batch(0.0, 0.0)[1].batch), 0.01, 0.0)
    assert changed(queue, fold) == why


def test_more_is_not_folded_into_a_block_than_has_room():
    queue = a_cut_request()
    queue.computed(RunBatch(queue.next_batch(0.0, 0.0)[1].batch), 0.01, 0.0)
    queue.book.kv.folds = 1
    assert changed(queue, FoldBlocks(2, 2, 1)) == "2 blocks of request 2 are to be folded into 1"


def test_blocks_of_the_cache_are_folded_into_free_ones_only():
    queue = a_cut_request()
    queue.computed(RunBatch(queue.next_batch(0.0, 0.0)[1].batch), 0.01, 0.0)
    assert changed(queue, KeepBlocks((KeptBlocks(2, 0, 9, 2),))) is None
    assert arrived(queue, 4, 0, 48) is None
    refused = changed(queue, FoldBlocks(2, 2, 1))
    assert refused == "it needs 1 KV blocks to fold a request, 0 are free"


@pytest.mark.parametrize(
    ("admission", "start", "why"),
    [
        (Admission(2, 60, 68, CUT, cached=((3, 2),)), 32, "is to begin with 2 cached blocks"),
        (Admission(1, 80, 88, CUT, kept_tokens=40), 40, "40 tokens of request 1 were not kept"),
    ],
)
def test_a_cut_request_begins_with_no_more_and_is_never_kept(queue, admission, start, why):
    span = Span(admission.request_id, start, start + 1, False)
    (refusal,) = queue.handle(BatchArrived(Batch(0, PREFILL, -1, (span,), (admission,))), 0.0)
    assert why in refusal.reason
