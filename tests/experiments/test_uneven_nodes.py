"""The benchmark of uneven nodes is run by hand; here what it makes of its samples."""

import pytest

from molink.errors import UserError
from tools.experiments.harness.experiment import Measured, medians
from tools.experiments.ring import uneven_nodes

LAYERS = {"pc1": [3, 4], "pc0": [0, 3]}


def one(tpot_s, tokens_per_s):
    load = {"tpot_s": {"mean": tpot_s}, "tokens_per_s": tokens_per_s}
    forecast = {"users": 4, "tpot_s": 0.02, "tpot_alone_s": 0.01, "tokens_per_s": 200.0}
    return {
        "forecast": forecast,
        "layers": LAYERS,
        "alone": {"tpot_s": {"mean": 0.009}, "tokens_per_s": 100.0},
        "own": load,
        "many": load,
    }


def test_forecasts_stand_beside_what_was_measured():
    samples = {"planned": one(0.022, 300.0), "even": one(0.03, 100.0)}
    runs = {
        split: [Measured(uneven_nodes._figures(sample), sample)]
        for split, sample in samples.items()
    }
    planned, even = uneven_nodes._table(medians(runs), runs).splitlines()[-2:]
    assert planned.startswith("| planned | pc0 3, pc1 1 | 4 | 20.0 | 22.0 | +10% | 10.0 | 9.0 |")
    assert planned.endswith("| -10% | 300 |")
    assert "| +50% |" in even


@pytest.mark.parametrize("rings", [[], [{}, {}]])
def test_two_rings_are_no_comparison(rings):
    with pytest.raises(UserError, match="larger tables"):
        uneven_nodes._only(rings)
    assert uneven_nodes._only([{"ring": 3}]) == {"ring": 3}
