"""Requests that are cut hold less of a card, by the book that ships."""

import pytest

from molink_sim.cell import cut_requests
from molink_sim.cell.cut_requests import OneCard


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(cut_requests, "WARM_UP_S", 25.0)
    monkeypatch.setattr(cut_requests, "MEASURED_S", 10.0)


def test_a_card_of_ten_whole_requests_serves_nearly_twice_as_many_that_are_cut():
    """4,500 tokens of each, 48,000 of the card; cut to 0.36 a request holds 0.47 of that."""
    whole, cut = OneCard(20, 1.0).play(), OneCard(20, 0.36).play()
    assert whole.held_most <= 11 and whole.ttft_s > 2
    assert cut.held_most >= 18 and cut.ttft_s < 1


def test_where_nothing_is_folded_a_budget_makes_no_room(monkeypatch):
    monkeypatch.setattr(cut_requests, "WHOLE_LAYERS", 17)
    assert OneCard(20, 0.36).play().held_most <= 11
