"""A log of a stage is bounded, and its values and states come back as they were."""

import base64
import json
import zlib
from random import Random

import pytest

from molink_scheduler.batch import Admission, Batch, BatchClass, Release, Span
from molink_scheduler.drafting.asks import AskDrafts, Draft, DraftAsk, Drafted
from molink_scheduler.events import (
    BatchArrived,
    BatchReturned,
    CacheCleared,
    CodecChosen,
    Piece,
    Refuse,
    ReleaseArrived,
    RequestCancelled,
    RequestSubmitted,
    RunBatch,
    SampledToken,
    SendRelease,
    SendRows,
    SendTokens,
    WaitUntil,
)
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.kv.prefix_tree import PrefixTree
from molink_scheduler.recording import event_log
from molink_scheduler.recording.event_log import EventLog, RecordedCore
from molink_scheduler.recording.values import decode
from molink_scheduler.recording.writing import CACHED_BLOCKS_MAX, encode
from molink_scheduler.request import ModelLimits, Request, SamplingParams
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.core import StageCore
from molink_scheduler.stage.queue import StageQueue
from molink_scheduler.timing.round_tracker import StageStamp
from molink_scheduler.token_ids import token_bytes
from tests.scheduler.seeded_drafter import SeededDrafter, SeededTail

SAMPLING = SamplingParams(max_tokens=4, stop=("a", "b"), logprobs=3)
SPAN = Span(3, 0, 40, samples=True)
ADMISSION = Admission(3, 40, 50, SAMPLING, tuple(range(40)), (1, 2))
BATCH = Batch(7, BatchClass.PREFILL, -1, (SPAN,), (ADMISSION,), "int8", (StageStamp(0.1, 5e6),))
RELEASE = Release(3)

VALUES = [
    RequestSubmitted(Request(3, token_bytes(range(40)), SAMPLING, (5,))),
    RequestCancelled(3),
    CodecChosen("int8"),
    CacheCleared(),
    BatchReturned(BatchClass.DECODE, 1, (SPAN,), (SampledToken(3, 9, True),), BATCH.stamps),
    BatchArrived(BATCH, 12),
    ReleaseArrived(RELEASE),
    AskDrafts((DraftAsk(3, 38, (4, 5), SAMPLING, 2, 3, (8, 9)),)),
    Drafted((Draft(3, 40, (6, 7)),)),
    (SendRelease(RELEASE), RunBatch(BATCH, (), (Piece(12, 0, 40),), 1.5)),
    [WaitUntil(2.25)],
    Refuse('it "cannot" be\n'),
    SendRows(BATCH, None),
    SendTokens(BATCH),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_it_was(value):
    assert decode(json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize(
    "raw",
    [
        {"Popen": {"args": ["true"]}},
        {"Batch": {"batch_id": 1}},
        {"Span": [1, 2, 3, True]},
        {"again": 4},
        {"BatchClass": 9},
        {"tuple of ids": "1 x"},
        {"bytes": "00ff"},
        {"bytes": base64.b64encode(zlib.compress(bytes(2**25))).decode()},
        {"bytes": base64.b64encode(zlib.compress(bytes(99))[:9]).decode()},
        {"array": ["Q", base64.b64encode(zlib.compress(b"short")).decode()]},
        {},
    ],
)
def test_what_is_no_value_of_a_log_is_refused(raw):
    with pytest.raises((ValueError, StopIteration)):
        decode(raw)


def test_another_class_is_not_written():
    with pytest.raises(TypeError, match="object is no value"):
        encode([object()])


def a_core() -> StageCore:
    book = StageBook(BlockTable(KvLedger(64)), ModelLimits(1 << 20, 100))
    return StageCore(StageQueue.for_steps_of(64, book), is_tail=False)


@pytest.mark.parametrize("is_fixed", [False, True])
@pytest.mark.parametrize("manner", [None, "depth"])
def test_parts_that_a_state_shares_are_shared_again(make_ring, make_request, manner, is_fixed):
    drafter = manner and SeededDrafter(Random(1), 4, manner)
    tail = drafter and SeededTail(SeededDrafter(Random(2), 4, "right"))
    options = {"drafter": drafter, "tail_drafter": tail, "draft_width_fixed": is_fixed}
    ring = make_ring(seed=1, stage_count=2, kv_tokens=128, **options)
    for request_id in range(4):
        ring.submit_at(0.1 * request_id, make_request(request_id, 40, 8))
    ring.stop_at(0.7)
    ring.run()
    for stage in ring.stages:
        raw = encode(stage.core)
        again = decode(json.loads(json.dumps(raw)))
        assert encode(again) == raw
    head = decode(encode(ring.stages[0].core)).source
    assert head.running_count
    assert head.clock is head.prompts.clock is head.decode.clock
    assert head.book is head.prompts.book
    assert drafter is None or head.book is head.decode.drafts.book


def a_directory(blocks: int) -> PrefixTree:
    """Of prompts of 2,000 tokens each, as ids of usual texts are spread."""
    random, tree = Random(1), PrefixTree()
    while tree.blocks < blocks:
        ids = [min(int(random.paretovariate(0.35)), 128_000) for _ in range(2000)]
        tree.unpin(tree.extend("salt", token_bytes(ids))[0])
    return tree


def test_a_large_directory_comes_back_as_it_was():
    tree = a_directory(CACHED_BLOCKS_MAX - 200)
    text = json.dumps(encode(tree))
    assert len(text) < event_log.KEPT_BYTES_MAX / event_log.SEGMENTS
    assert decode(json.loads(text)) == tree


def test_a_directory_beyond_the_bound_is_not_written():
    raw = encode(a_directory(CACHED_BLOCKS_MAX + 1))
    assert len(json.dumps(raw)) < 100
    with pytest.raises(ValueError, match="not to be played again"):
        decode(raw)


def idle_for(recorded: RecordedCore, calls: int, every_s: float) -> None:
    for number in range(calls):
        recorded.next_step(1e6, number * every_s)


def states(log: EventLog) -> list[float]:
    parsed = [json.loads(line) for line in log.lines()]
    return [line["at"] for line in parsed if isinstance(line, dict)]


def test_only_the_last_minute_is_kept():
    recorded = RecordedCore.begin(a_core(), EventLog(), 0.0)
    idle_for(recorded, 1000, every_s=1.0)
    lines = list(recorded.log.lines())
    assert len(lines) <= event_log.KEPT_S + 4
    assert states(recorded.log)[0] >= 999 - event_log.KEPT_S - 1
    assert json.loads(lines[-1])[1][-1] == 999.0, "the last call is there"


def test_only_so_many_calls_and_bytes_are_kept():
    recorded = RecordedCore.begin(a_core(), EventLog(), 0.0)
    idle_for(recorded, 5 * event_log.KEPT_CALLS_MAX, every_s=0.0)
    assert len(list(recorded.log.lines())) <= event_log.KEPT_CALLS_MAX + event_log.SEGMENTS
    words = tuple([1] * 3000)
    for number in range(200):
        admission = Admission(number, 3000, 3001, SAMPLING, words)
        spans = (Span(number, 0, 1, samples=False),)
        batch = Batch(number, BatchClass.PREFILL, -1, spans, (admission,))
        assert not recorded.received(BatchArrived(batch), 0.0) or number >= 64
        recorded.next_step(1e6, 0.0)
    assert sum(map(len, recorded.log.lines())) < 2 * event_log.KEPT_BYTES_MAX


def test_a_log_that_is_streamed_hands_out_each_line_once():
    recorded = RecordedCore.begin(a_core(), EventLog(is_streamed=True), 0.0)
    idle_for(recorded, 3, every_s=1.0)
    assert [line[:7] for line in recorded.log.take_lines()] == ['{"forma'] + 3 * ['["next_']
    assert not list(recorded.log.take_lines())
    idle_for(recorded, 1, every_s=1.0)
    assert len(list(recorded.log.take_lines())) == 1
