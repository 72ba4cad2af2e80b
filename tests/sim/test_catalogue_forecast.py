"""Rates of `molink models --for`, held against the simulator's of the same ring."""

import pytest

from tools.experiments.placement.catalogue_forecast import compare


@pytest.mark.parametrize(
    "case",
    [
        ("2x 3090", "qwen3-32b", "4 bits"),
        ("4090, 3080, 4060 laptop", "qwen3-32b", "4 bits"),
        ("4060 laptop", "smollm3-3b", "16 bits"),
    ],
)
def test_one_user_and_eight_are_as_simulated(case):
    for found in compare(*case):
        assert found.forecast == pytest.approx(found.simulated, rel=0.1), found.users
