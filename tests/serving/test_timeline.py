"""Timelines of requests: what they derive, how they end, and how many are kept."""

import asyncio

import pytest

from molink.errors import OverloadedError, RingError
from molink.report.requests import PauseReport, PieceReport, StageLayers
from molink.serving import request_log as request_log_module
from molink.serving.request_log import RequestLog
from molink.serving.timeline import Arrival, RequestTimeline

STAGES = (StageLayers("anna", (0, 4)), StageLayers("ben", (4, 9)))


def received_at(at):
    return RequestTimeline("m", 100, 8, arrival=Arrival("r", at=at, unix_s=1000.0))


def test_wait_prefill_and_decode_follow_each_other():
    timeline = received_at(10.0)
    assert (timeline.state, timeline.queue_s, timeline.prefill_s) == ("queued", None, None)
    timeline.submitted(3, STAGES, 10.5)
    assert timeline.state == "queued"
    timeline.prompt_computed(40, waited_s=1.5, now=13.0)
    assert (timeline.state, timeline.prompt_tokens_done, timeline.queue_s) == ("prefill", 40, 2.0)
    timeline.tokens_came(1, 14.0)
    timeline.tokens_came(1, 15.0)
    timeline.tokens_came(1, 18.0)
    assert (timeline.state, timeline.prompt_tokens_done) == ("decode", 100)
    assert (timeline.prefill_s, timeline.decode_s, timeline.tpot_s) == (2.0, 4.0, 2.0)
    timeline.finished("length", 18.0)
    report = timeline.report(now=30.0)
    assert (report.state, report.total_s, report.age_s) == ("ended", 8.0, 20.0)
    (attempt,) = report.attempts
    assert attempt.stages[1] == StageLayers("ben", (4, 9))
    times_s = (attempt.submitted_s, attempt.started_s, attempt.first_token_s, attempt.ended_s)
    assert times_s == (0.5, 2.0, 4.0, 8.0)


def test_without_a_report_of_the_head_prefill_begins_where_the_request_was_submitted():
    timeline = received_at(10.0)
    timeline.submitted(0, STAGES, 10.5)
    timeline.tokens_came(1, 12.5)
    assert (timeline.queue_s, timeline.prefill_s) == (0.5, 2.0)


def test_a_report_that_comes_late_cannot_begin_after_the_first_token():
    timeline = received_at(10.0)
    timeline.submitted(0, STAGES, 10.5)
    timeline.tokens_came(1, 12.5)
    timeline.prompt_computed(100, waited_s=2.1, now=13.0)
    assert (timeline.queue_s, timeline.prefill_s) == (2.5, 0.0)


def test_a_prompt_that_is_computed_anew_has_waited_as_long_as_before():
    timeline = received_at(10.0)
    timeline.submitted(0, STAGES, 10.5)
    timeline.prompt_computed(40, waited_s=1.5, now=13.0)
    timeline.prompt_computed(80, waited_s=0.0, now=15.0)
    timeline.tokens_came(1, 16.0)
    timeline.prompt_computed(100, waited_s=0.0, now=17.0)
    assert (timeline.queue_s, timeline.prefill_s) == (2.0, 4.0)


def test_a_head_cannot_make_a_wait_longer_than_it_was():
    timeline = received_at(10.0)
    timeline.submitted(0, STAGES, 10.5)
    timeline.prompt_computed(9999, waited_s=1e9, now=12.0)
    assert (timeline.queue_s, timeline.prompt_tokens_done) == (2.0, 100)


def test_pieces_of_the_prompt_and_rounds_of_the_answer_are_told():
    timeline = received_at(10.0)
    timeline.submitted(0, STAGES, 10.5)
    timeline.piece_sent(0, 60, 0.5, now=12.0)
    timeline.piece_sent(60, 100, 99.0, now=12.0)
    timeline.piece_sent(0, 9999, 1.0, now=12.5)
    for at in (13.0, 13.25, 13.5, 15.5):
        timeline.tokens_came(1, at)
    (attempt,) = timeline.report(now=16.0).attempts
    assert attempt.pieces == (PieceReport((0, 60), 1.0), PieceReport((60, 100), 2.0))
    told = attempt.rounds
    assert (told.count, told.longest_s) == (3, 2.0)
    assert told.p50_s == pytest.approx(0.25, rel=0.05)
    assert told.pauses == (PauseReport(3.5, 2.0, 3),)


def test_the_wait_for_another_ring_is_no_round_of_it():
    timeline = received_at(0.0)
    timeline.submitted(0, STAGES, 1.0)
    timeline.tokens_came(1, 2.0)
    timeline.moved("anna is lost.", 3.0)
    timeline.submitted(1, STAGES[1:], 5.0)
    timeline.tokens_came(1, 9.0)
    assert [one.rounds.count for one in timeline.report(9.0).attempts] == [0, 0]


def test_a_request_that_moves_keeps_what_each_ring_gave():
    timeline = received_at(0.0)
    timeline.submitted(0, STAGES, 1.0)
    timeline.tokens_came(2, 2.0)
    timeline.moved("anna is lost.", 3.0)
    timeline.submitted(1, STAGES[1:], 5.0)
    timeline.tokens_came(1, 7.0)
    timeline.finished("stop", 7.0)
    assert timeline.moves == 1 and timeline.tokens == 3
    first, second = timeline.report(8.0).attempts
    assert (first.tokens, first.ended_s, first.moved_because) == (2, 3.0, "anna is lost.")
    assert (second.number, second.first_token_s, second.moved_because) == (1, 7.0, "")
    assert timeline.ttft_s == 2.0


@pytest.mark.parametrize(
    ("error", "reason", "sentence"),
    [
        (asyncio.CancelledError(), "cancelled", ""),
        (GeneratorExit(), "cancelled", ""),
        (RingError("No ring."), "error", "No ring."),
        (OverloadedError("Too many wait."), "overloaded", "Too many wait."),
    ],
)
def test_what_ends_a_request_is_its_reason(error, reason, sentence):
    log, timeline = RequestLog(lambda: 5.0), received_at(0.0)
    with pytest.raises(type(error)), log.following(timeline):
        raise error
    assert (timeline.finish_reason, timeline.error) == (reason, sentence)
    assert (timeline.finished_at, log.live, log.ended) == (5.0, [], [timeline])


def test_who_leaves_after_the_last_token_has_not_cancelled():
    log, timeline = RequestLog(lambda: 5.0), received_at(0.0)
    with pytest.raises(GeneratorExit), log.following(timeline):
        timeline.finished("stop", 4.0)
        raise GeneratorExit
    assert (timeline.finish_reason, timeline.finished_at) == ("stop", 4.0)


def test_the_log_keeps_the_last_and_tells_each_end_once(monkeypatch):
    monkeypatch.setattr(request_log_module, "LIVE_MAX", 2)
    log, told = RequestLog(lambda: 1.0), []
    log.watch(told.append)
    requests = [received_at(0.0) for _ in range(request_log_module.ENDED_MAX + 3)]
    with log.following(requests[0]), log.following(requests[1]), log.following(requests[2]):
        assert log.live == requests[:2]
    for request in requests[3:]:
        with log.following(request):
            pass
    assert told[3:] == requests[3:] and len(told) == len(requests)
    assert log.ended == list(reversed(requests[3:]))
    assert len(log.report().requests) == request_log_module.ENDED_MAX


def test_a_watcher_that_fails_harms_no_request(caplog):
    log, told = RequestLog(lambda: 1.0), []

    def fail(timeline):
        raise KeyError("no such metric")

    log.watch(fail)
    log.watch(told.append)
    with log.following(received_at(0.0)):
        pass
    assert len(told) == 1 and "Telling of a request's end failed" in caplog.text
