import json

import pytest

from molink.bench.report import report
from molink.bench.runner import RequestRecord


def test_report():
    records = [
        RequestRecord(start_s=10.0, end_s=14.0, token_times_s=[11.0, 12.0, 13.5]),
        RequestRecord(start_s=10.5, end_s=12.0, token_times_s=[12.0]),
        RequestRecord(start_s=10.5, end_s=15.0, token_times_s=[11.0], error="lost"),
        RequestRecord(start_s=11.0, end_s=11.5, error="later"),
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


def test_tokens_that_come_together_are_one_gap():
    times = [11.0, 12.0, 12.0, 12.0, 14.0, 15.0, 15.0]
    found = report([RequestRecord(start_s=10.0, end_s=15.0, token_times_s=times)])
    assert (found["gap_s"]["mean"], found["gap_s"]["p50"]) == (pytest.approx(4 / 3), 1.0)
    assert found["tpot_s"]["mean"] == pytest.approx(4 / 6)
    assert found["tokens_per_round"] == 2.0


def test_report_of_no_records():
    found = report([])
    assert (found["tokens_per_s"], found["finished"], found["failed"]) == (0.0, 0, 0)
