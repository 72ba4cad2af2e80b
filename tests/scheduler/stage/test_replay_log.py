"""What a stage keeps of the rows that it has sent."""

from molink_scheduler.batch import PREFILL, Admission, Batch, Span
from molink_scheduler.request import SamplingParams
from molink_scheduler.resume import Resume
from molink_scheduler.stage.replay_log import ReplayLog
from molink_scheduler.stage.sent_rows import SentRows

SOME = Batch(7, PREFILL, -1, (Span(1, 4, 5, samples=True),), codec="int8")


def admission(request_id: int, kept_tokens: int) -> Admission:
    return Admission(request_id, 4, 9, SamplingParams(5), kept_tokens=kept_tokens)


def sent(start: int, end: int, ids: bool = False) -> SentRows:
    """Two bytes a row, which name its token."""
    rows = b"".join(token.to_bytes(2, "big") for token in range(start, end))
    return SentRows(start, end, rows, tuple(range(start, end)) if ids else ())


def test_rows_come_back_in_order_laid_together():
    log = ReplayLog(1e9)
    for start, end in [(0, 5), (5, 6), (6, 7), (7, 8)]:
        log.add(1, sent(start, end, ids=True))
    assert list(log.between(1, 0, 7, rows_max=6)) == [sent(0, 6, ids=True), sent(6, 7, ids=True)]
    assert log.has(1, 8) and not log.has(1, 9) and not log.has(2, 1)


def test_rows_that_are_sent_again_take_the_place_of_the_first():
    log = ReplayLog(1e9)
    log.add(1, sent(0, 10))
    log.add(1, SentRows(4, 6, b"abcd"))
    assert log.bytes_held == 12 and not log.has(1, 7)
    assert list(log.between(1, 0, 6, 128)) == [SentRows(0, 6, sent(0, 4).rows + b"abcd")]


def test_rows_behind_a_gap_are_of_no_use():
    log = ReplayLog(1e9)
    log.add(1, sent(3, 5))
    assert not log.has(1, 1)
    log.add(2, sent(0, 2))
    log.add(2, sent(3, 4))
    assert not log.has(2, 1) and log.bytes_held == 0


def test_over_the_bound_the_oldest_request_goes_as_a_whole():
    log = ReplayLog(bytes_max=20)
    log.add(1, sent(0, 4))
    log.add(2, sent(0, 4))
    log.add(1, sent(4, 7))
    assert not log.has(1, 1) and log.has(2, 4) and log.bytes_held == 8


def test_what_is_promised_stays_until_it_is_sent():
    log = ReplayLog(bytes_max=20)
    log.add(1, sent(0, 4))
    log.add(2, sent(0, 4))
    log.begin_epoch(Resume(((1, 4), (2, 4)), next_held=()))
    list(log.batches(SOME, admission(2, 4), 128))
    log.add(3, sent(0, 6))
    assert log.has(1, 4) and not log.has(2, 1) and log.has(3, 6)
    list(log.batches(SOME, admission(1, 4), 128))
    log.add(3, sent(6, 7))
    assert not log.has(1, 1) and log.has(3, 7)


def test_what_is_shed_is_gone_but_for_what_is_promised():
    log = ReplayLog(1e9)
    log.add(1, sent(0, 4))
    log.begin_epoch(Resume(((1, 4),), next_held=()))
    log.add(2, sent(0, 4))
    log.shed()
    log.add(2, sent(4, 5))
    assert log.has(1, 4) and not log.has(2, 1) and log.bytes_held == 8


def test_only_what_is_kept_stays():
    log = ReplayLog(1e9)
    for request_id in (1, 2, 3):
        log.add(request_id, sent(0, 4))
    log.begin_epoch(Resume(((2, 4),)))
    assert (log.has(1, 1), log.has(2, 4), log.has(3, 1)) == (False, True, False)
    log.forget(2)
    assert log.bytes_held == 0


def test_replayed_rows_leave_in_pieces_and_the_first_admits():
    log = ReplayLog(1e9)
    for start, end in [(0, 5), (5, 6), (6, 8)]:
        log.add(1, sent(start, end))
    pieces = list(log.batches(SOME, admission(1, 7), rows_max=6))
    assert [rows for _, rows in pieces] == [sent(0, 6), sent(6, 7)]
    assert [piece.spans for piece, _ in pieces] == [
        (Span(1, 0, 6, samples=False),),
        (Span(1, 6, 7, samples=False),),
    ]
    assert [piece.admissions for piece, _ in pieces] == [(admission(1, 0),), ()]
    assert all(piece.replay and piece.codec == "int8" for piece, _ in pieces)


def test_rows_of_drafts_are_certain_once_the_next_span_says_so():
    log = ReplayLog(1e9)
    log.add(1, sent(0, 5))
    log.add(1, sent(5, 9), guesses=3)
    assert list(log.ends()) == [(1, 6)] and log.has(1, 9)
    log.add(1, sent(7, 8))
    assert list(log.ends()) == [(1, 8)] and not log.has(1, 9)
    log.forget(1)
    log.add(1, sent(0, 2))
    assert list(log.ends()) == [(1, 2)]
