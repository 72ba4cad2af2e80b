"""A card's own streams keep the order that `tests/engine/device/test_transfers.py` proves with
streams of a stand-in."""

from itertools import product

import pytest
import torch

from molink.engine.device.transfers import transfers_on
from tests.gpu.device import HAS_CARD, needs_card

BUSY_CYCLES = 20_000_000
"""About ten milliseconds: rows that are read too soon are read long before they are there."""


def step(way, number: float, rows: int, width: int, inside=lambda: None) -> torch.Tensor:
    """Rows in, doubled behind some idle work, and out; what was sent is overwritten at once."""
    with torch.inference_mode(), way.timed():
        sent_TD = torch.full((rows, width), number, dtype=torch.bfloat16)
        on_card_TD = way.rows_in(sent_TD, torch.float32)
        sent_TD.fill_(-1)
        if HAS_CARD:
            torch.cuda._sleep(BUSY_CYCLES)
        inside()
        return way.rows_out(on_card_TD * 2)


@pytest.mark.parametrize(("rows", "width"), list(product((1, 16, 512), (64, 4096))))
def test_rows_come_back_doubled_and_stay_as_they_are(rows, width, device):
    way, held = transfers_on(device), []

    def nested():
        for number in (3, 4, 5):
            held.append((number, step(way, number, rows, width)))

    for number in range(6, 9):
        held.append((number, step(way, number, rows, width, nested)))
    assert len(held) == 12
    for number, rows_TD in held:
        assert rows_TD.device.type == "cpu" and (rows_TD == 2 * number).all()


@needs_card
def test_a_step_inside_another_is_not_counted_twice(device):
    way = transfers_on(device)
    times = []

    def busy(inside=lambda: None):
        with way.timed() as time:
            torch.cuda._sleep(BUSY_CYCLES)
            inside()
            torch.cuda._sleep(BUSY_CYCLES)
        times.append(time.seconds)

    busy()
    busy(lambda: busy(lambda: None))
    alone, inner, outer = times
    assert inner == pytest.approx(alone, rel=0.2)
    assert outer == pytest.approx(alone, rel=0.2), "by the host's clock it would be less"


def test_numbers_are_read_as_they_are(device):
    way = transfers_on(device)
    with torch.inference_mode():
        table = torch.arange(300.0, dtype=torch.float64, device=device).view(3, 100)
        assert way.read(table).tolist() == table.cpu().tolist()
