"""Whatever makes the simulator faster leaves every outcome as it was."""

import dataclasses

import pytest

from molink_sim.simulate import simulate
from tests.sim.recorded_outcomes import WORLDS, digest, recorded


@pytest.mark.parametrize("name", WORLDS)
def test_a_world_comes_out_as_recorded(name):
    """It does not: if the core decides otherwise on purpose, or more is simulated, write the
    outcomes anew with `python -m tests.sim.recorded_outcomes`; else something has broken."""
    assert digest(simulate(WORLDS[name]())) == recorded()[name]


def test_a_token_that_comes_later_is_another_outcome():
    outcome = simulate(WORLDS["seed 0"]())
    late = next(one for one in outcome.requests if one.token_times_s)
    before = digest(outcome)
    late.token_times_s[-1] += 1e-6
    assert digest(outcome) != before
    assert digest(dataclasses.replace(outcome, requests=outcome.requests[1:])) != before
