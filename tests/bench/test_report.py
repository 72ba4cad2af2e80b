import json

import pytest
from rich.console import Console

from molink.bench.goodput import goodput_line, goodput_of, is_good, targets_of
from molink.bench.report import print_report, report
from molink.bench.runner import RequestRecord
from molink.errors import UserError
from molink_scheduler.routing.admission import NO_TARGETS, Targets


def test_report():
    records = [
        RequestRecord(start_s=10.0, end_s=14.0, token_times_s=[11.0, 12.0, 13.5]),
        RequestRecord(start_s=10.5, end_s=12.0, token_times_s=[12.0]),
        RequestRecord(start_s=10.5, end_s=15.0, token_times_s=[11.0], error="lost"),
        RequestRecord(start_s=11.0, end_s=11.5, error="later", status=429),
    ]
    found = report(records)
    json.dumps(found, allow_nan=False)
    assert found["ttft_s"]["mean"] == 1.25
    assert found["tpot_s"]["mean"] == 1.25
    assert found["gap_s"]["p50"] == 1.25 and found["gap_s"]["mean"] == 1.25
    assert found["latency_s"]["mean"] == 2.75
    assert (found["generated_tokens"], found["wall_s"]) == (4, 5.0)
    assert found["tokens_per_s"] == pytest.approx(0.8)
    assert (found["finished"], found["failed"], found["first_error"]) == (2, 2, "lost")
    assert found["failures"] == {"429": 1, "broken off": 1}


def test_tokens_that_come_together_are_one_gap():
    times = [11.0, 12.0, 12.0, 12.0, 14.0, 15.0, 15.0]
    found = report([RequestRecord(start_s=10.0, end_s=15.0, token_times_s=times)])
    assert (found["gap_s"]["mean"], found["gap_s"]["p50"]) == (pytest.approx(4 / 3), 1.0)
    assert found["tpot_s"]["mean"] == pytest.approx(4 / 6)
    assert found["tokens_per_round"] == 2.0


def test_answers_that_came_in_one_event_have_no_rate_of_tokens(capsys):
    settings = {"requests": 1, "concurrency": 1, "input_tokens": 8, "output_tokens": 3}
    found = report([RequestRecord(start_s=10.0, end_s=12.0, token_times_s=[11.0, 11.0, 11.0])])
    print_report(found | {"settings": settings}, Console())
    shown = capsys.readouterr().out
    assert "1.5 tokens/s: 3 tokens" in shown and "for each user" not in shown


def test_report_of_no_records():
    found = report([])
    assert (found["tokens_per_s"], found["finished"], found["failed"]) == (0.0, 0, 0)


def record(*times_s, error=None):
    return RequestRecord(start_s=10.0, end_s=20.0, token_times_s=list(times_s), error=error)


@pytest.mark.parametrize(
    ("targets", "good"),
    [
        (Targets(ttft_s=1.0), True),
        (Targets(ttft_s=0.9), False),
        (Targets(tpot_s=0.75), True),
        (Targets(tpot_s=0.7), False),
        (Targets(tbt_s=1.5), True),
        (Targets(tbt_s=1.4), False),
        (Targets(tbt_s=1.4, tbt_percentile=50), True),
        (Targets(1.0, 0.75, 1.4), False),
    ],
)
def test_an_answer_is_good_within_all_targets(targets, good):
    """Its gaps are 1, 0 (two at once), 1.5 and 0.5 s."""
    assert is_good(record(11.0, 12.0, 12.0, 13.5, 14.0), targets) is good


def test_the_goodput_counts_whole_answers_alone():
    records = [record(11.0, 12.0), record(11.0), record(11.0, error="lost"), record()]
    found = goodput_of(records, Targets(ttft_s=1.0, tbt_s=0.5), 4.0)
    assert (found["met"], found["requests"], found["per_s"]) == (1, 4, 0.25)
    assert goodput_line(found) == (
        "goodput 0.25 requests/s: 1 of 4 requests (first token within 1000 ms, 99 % of gaps within "
        "500 ms)"
    )


@pytest.mark.parametrize(
    "options",
    [
        {"tbt_target_ms": 0.0},
        {"tbt_target_ms": float("nan")},
        {"ttft_target_s": -1.0},
        {"tbt_percentile": 100.0},
    ],
)
def test_targets_that_cannot_be_are_named(options):
    [(name, _)] = options.items()
    with pytest.raises(UserError, match=f"--{name.replace('_', '-')} must be") as refusal:
        targets_of(options)
    assert "\n" not in str(refusal.value)
    assert targets_of({}) == NO_TARGETS
