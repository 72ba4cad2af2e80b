"""A lender that is too far, by layers x round trip against a fifth of a token's time."""

import pytest

from molink_scheduler.cell.far_lender import TOKEN_SHARE_MAX, far_lender_sentence


@pytest.mark.parametrize(
    ("layers", "round_trip_s", "tpot_s", "near"),
    [
        (32, 60e-3, 0.15, False),
        (32, 0.3e-3, 0.15, True),
        (12, 0.15e-3, 0.05, True),
        (10, 3e-3, 0.15, True),
        (10, 3.01e-3, 0.15, False),
        (1, 1e-3, 5e-3, True),
    ],
)
def test_a_stage_waits_for_a_round_trip_in_each_layer(layers, round_trip_s, tpot_s, near):
    assert (far_lender_sentence(layers, round_trip_s, tpot_s) == "") == near


def test_the_sentence_has_the_figures():
    assert far_lender_sentence(32, 60e-3, 0.15) == (
        "32 layers x 60 ms are 1,920 ms a token, and 30 ms of 150 may be waited: memory is lent "
        "within a PC or a LAN."
    )
    assert TOKEN_SHARE_MAX == 0.2
