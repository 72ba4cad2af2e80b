"""The paper's three cases with its own numbers, and the quantum's limits."""

import pytest

from molink_scheduler.decode_outlook import DecodeOutlook, Hop, round_network_s
from molink_scheduler.link.chunk_rules import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    JUST_IN_TIME_BYTES_MAX,
    FixedQuantum,
    JustInTime,
    Quantum,
)
from molink_scheduler.link.transmission import LinkView

MBPS_100 = 12.5e6
STEP_S = 0.0082
"""T_d(8) of 11 layers of a 7B model on an RTX 4090."""


def just_in_time_bytes(outlook: DecodeOutlook, now: float) -> int:
    return JustInTime().chunk_bytes(now, LinkView(MBPS_100, outlook.due_at))


def paper_round_network_s() -> float:
    """T_m of 8 decode tokens of LLaMA-30B (act_sz 13,312) on three hops of 100 Mbps and 30 ms."""
    return round_network_s([Hop(0.03, MBPS_100)] * 3, rows=8, activation_bytes=13_312)


def test_case_1_a_decode_has_just_begun():
    # T_a = T_d = 8.2 ms, at 12.5 bytes a microsecond.
    outlook = DecodeOutlook(STEP_S, step_started_at=10.0)
    assert just_in_time_bytes(outlook, now=10.0) == 102_500


def test_case_2_a_decode_has_been_computing():
    # T_a = T_d + t_s - t_c = 8.2 - 3 = 5.2 ms.
    outlook = DecodeOutlook(STEP_S, step_started_at=10.0)
    assert just_in_time_bytes(outlook, now=10.003) == 65_000


def test_case_3_no_decode_computes_here():
    # T_o = 3 x 8.2 = 24.6 ms. T_m = 3 x 30 ms + 2 x 13,312 x 8 / 12.5 MB/s + 2 x 8 / 12.5 MB/s
    # = 90 + 17.03936 + 0.00128 = 107.04064 ms. T_a = 24.6 + 107.04064 - 20 = 111.64064 ms.
    assert paper_round_network_s() == pytest.approx(0.10704064, abs=1e-12)
    outlook = DecodeOutlook(STEP_S, None, 10.0, 3 * STEP_S, paper_round_network_s())
    assert just_in_time_bytes(outlook, now=10.02) == 1_395_508


def test_a_decode_that_computes_here_comes_before_the_round():
    outlook = DecodeOutlook(STEP_S, 10.1, 10.0, 3 * STEP_S, paper_round_network_s())
    assert outlook.due_at == 10.1 + STEP_S


def test_deviation_without_a_forecast_one_quantum():
    # The paper leaves this open: case 3 needs an iteration before it.
    outlook = DecodeOutlook(STEP_S)
    assert outlook.due_at is None
    assert just_in_time_bytes(outlook, now=10.0) == CHUNK_BYTES_MAX


def test_deviation_an_overdue_decode_leaves_a_smallest_piece():
    # T_a < 0 in the paper's formula: sending nothing would idle the link on a wrong forecast.
    outlook = DecodeOutlook(STEP_S, step_started_at=10.0)
    assert just_in_time_bytes(outlook, now=11.0) == CHUNK_BYTES_MIN


def test_deviation_a_far_forecast_is_capped():
    outlook = DecodeOutlook(STEP_S, step_started_at=100.0)
    assert just_in_time_bytes(outlook, now=10.0) == JUST_IN_TIME_BYTES_MAX


@pytest.mark.parametrize(
    ("rate", "expected"),
    [(6.25e4, CHUNK_BYTES_MIN), (2.5e6, 20_000), (5e6, 40_000), (1.25e8, CHUNK_BYTES_MAX)],
)
def test_a_quantum_follows_the_rate_within_limits(rate, expected):
    assert Quantum().chunk_bytes(0.0, LinkView(rate)) == expected


def test_a_fixed_quantum_does_not():
    assert {FixedQuantum().chunk_bytes(0.0, LinkView(r)) for r in (1e5, 1e8)} == {16_384}


@pytest.mark.parametrize("size", [CHUNK_BYTES_MIN - 1, CHUNK_BYTES_MAX + 1])
def test_a_fixed_quantum_out_of_range_is_refused(size):
    with pytest.raises(ValueError, match="4096 to 65536"):
        FixedQuantum(size)


@pytest.mark.parametrize("duration_s", [0.0, -1.0, 1.5, float("nan")])
def test_a_quantum_of_no_or_too_long_duration_is_refused(duration_s):
    with pytest.raises(ValueError, match="up to 1 s"):
        Quantum(duration_s)
