"""A migration against lent blocks, and ledgers that call back or swap less than what ships."""

import pytest

from molink_sim.cell import migration, swap_ledgers
from molink_sim.cell.migration import (
    PUBLISHED,
    answer_times_s,
    home_tokens,
    published_standstill_s,
    slower,
    standstills_s,
)
from molink_sim.cell.swap_ledgers import LEDGERS, serve


def test_an_answer_that_stays_at_home_takes_as_long_either_way():
    tokens = home_tokens() - migration.PROMPT_TOKENS
    whole_s, lent_s = answer_times_s(tokens)
    assert whole_s == lent_s
    assert slower(tokens, lent_s) == pytest.approx(2.0)


def test_a_full_card_is_moved_in_bytes_over_rate():
    stands_s = dict(standstills_s())["0.125 GB/s, 1 GbE"]
    assert stands_s == pytest.approx(home_tokens() * 32 * 16_384 / 0.125e9)


def test_one_stand_still_gives_all_four_figures_of_the_paper():
    stands_s = published_standstill_s()
    for tokens, ratio in PUBLISHED.items():
        assert slower(tokens, stands_s) == pytest.approx(ratio, rel=0.05)


def test_without_recalls_and_swaps_debts_pile_up_in_circles(monkeypatch):
    monkeypatch.setattr(swap_ledgers, "MINUTES", 4)
    ships, swaps, neither = (serve(ledger, 1) for ledger in LEDGERS.values())
    assert ships.circle_share == swaps.circle_share == 0
    assert ships.swaps == neither.swaps == 0 < swaps.swaps
    assert neither.circle_share > 0.3
    assert neither.borrowed_gb > 1.5 * ships.borrowed_gb
    assert neither.tokens_per_s[1] < ships.tokens_per_s[1]
