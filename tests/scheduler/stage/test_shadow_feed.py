"""What a shadow is sent: shortest lag first, releases before rows, and what is left to replay."""

import pytest

from molink_scheduler.batch import Admission, Batch, Release, Span
from molink_scheduler.events import BatchArrived, Refuse, ReleaseArrived, SendRelease
from molink_scheduler.kv.block_table import BlockTable
from molink_scheduler.kv.ledger import KvLedger
from molink_scheduler.request import ModelLimits, SamplingParams
from molink_scheduler.stage.book import StageBook
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows
from molink_scheduler.stage.shadow_feed import LEFT_AFTER_S, ShadowFeed
from molink_scheduler.stage.shadow_queue import ShadowQueue

ROW = b"row "


def a_feed(**tokens: int) -> ShadowFeed:
    """Of a log with so many tokens of requests 1, 2, ..."""
    log = ReplayLog(1e9)
    for request_id, count in enumerate(tokens.values(), start=1):
        log.admit([Admission(request_id, count, 100, SamplingParams(5))])
        log.add(request_id, SentRows(0, count, ROW * count))
    return ShadowFeed(log, rows_max=8)


def spans(feed: ShadowFeed, bytes_max: int = 1000, now: float = 0.0) -> list[tuple[int, int, int]]:
    sent = feed.next("raw", bytes_max, now)
    return [] if sent is None else [(s.request_id, s.start, s.end) for s in sent.batch.spans]


def test_who_lacks_least_comes_first_and_several_share_a_batch():
    feed = a_feed(long=12, short=3)
    assert spans(feed) == [(2, 0, 3), (1, 0, 5)]
    assert spans(feed) == [(1, 5, 12)]
    assert spans(feed) == [] and feed.behind_tokens() == 0


def test_a_batch_has_no_more_bytes_than_the_line_takes_but_a_row_at_least():
    feed = a_feed(one=4, other=5)
    assert spans(feed, bytes_max=2 * len(ROW)) == [(1, 0, 2)]
    assert spans(feed, bytes_max=1) == [(1, 2, 3)]
    assert feed.behind_tokens() == 6


def test_a_shadow_hears_of_releases_before_anything_else_and_only_of_what_it_was_sent():
    feed = a_feed(one=4, other=5)
    spans(feed, bytes_max=1)
    feed.release(1)
    feed.release(2)
    feed.log.forget(2)
    assert feed.next("raw", 1000, 0.0) == Release(1)
    assert spans(feed) == [(1, 0, 4)], "it came again"


def test_what_stays_too_far_behind_is_left_to_replay():
    feed = a_feed(one=10)
    spans(feed, bytes_max=4 * len(ROW))
    assert feed.behind_s(now=5.0) == 5.0
    assert feed.next("raw", 1, LEFT_AFTER_S + 1) == Release(1)
    assert spans(feed, now=LEFT_AFTER_S + 2) == [] and feed.behind_tokens() == 10


def test_what_has_lost_its_log_is_released():
    feed = a_feed(one=10)
    spans(feed)
    feed.log.forget(1)
    assert feed.next("raw", 1000, 0.0) == Release(1)


@pytest.fixture
def shadow() -> ShadowQueue:
    return ShadowQueue.for_steps_of(8, StageBook(BlockTable(KvLedger(4)), ModelLimits(100, 100)))


def rows(message: int, end: int, *, replay: bool = True) -> BatchArrived:
    admission = Admission(1, end, 50, SamplingParams(1))
    spans = (Span(1, 0, end, samples=False),)
    return BatchArrived(Batch(1, 1, -1, spans, (admission,), replay=replay), message)


def test_a_release_waits_for_the_rows_before_it_and_all_later_ones_for_that(shadow):
    assert not shadow.handle(rows(1, 4), 0.0)
    assert not shadow.handle(ReleaseArrived(Release(1)), 0.0)
    assert not shadow.handle(rows(2, 6), 0.0)
    releases, run = shadow.next_batch(0.0, 0.0)
    assert not releases and run.pieces[0].message == 1
    shadow.computed(run, 0.1, 0.1)
    releases, run = shadow.next_batch(0.0, 0.2)
    assert releases == [SendRelease(Release(1))] and run.pieces[0].message == 2


def test_only_replayed_rows_are_for_a_shadow(shadow):
    (refused,) = shadow.handle(rows(1, 4, replay=False), 0.0)
    assert isinstance(refused, Refuse)
