"""Coordinators that see others late, simulated: what must hold whatever the figures are."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tools.experiments.control.several_coordinators import AGES_S, Address, Setup, World, main

SMALL = Setup(Address.ONE, load=0.3, coordinators=4, rings_each=3, fronts=4, duration_s=300.0)


def figures(address, age_s=5.0, seed=0):
    return World(replace(SMALL, address=address, age_s=age_s), seed).run()


@pytest.mark.parametrize("address", Address)
def test_a_seed_gives_the_same_figures_again(address):
    found = figures(address)
    assert found == figures(address)
    assert found["requests"] > 100 and 0 < found["busy"] <= 1
    assert 0 < found["p50_s"] <= found["p99_s"] and 0 <= found["cached"] <= 1


def test_who_stays_finds_more_cached_than_who_goes_anywhere():
    at_random = figures(Address.RANDOM)["cached"]
    assert figures(Address.STICKY)["cached"] > at_random + 0.3
    assert figures(Address.HOME)["cached"] > at_random + 0.3


def test_old_figures_make_all_fronts_send_to_the_same_rings():
    """Which is what the age is measured for: fronts know their own requests alone."""
    fresh, old = (figures(Address.FORECAST, age_s)["mean_s"] for age_s in (0.0, 60.0))
    assert old > 1.2 * fresh


def test_a_front_counts_what_it_has_sent_itself():
    alone = replace(SMALL, address=Address.FORECAST, age_s=60.0, fronts=1)
    many = replace(alone, fronts=16)
    assert World(alone, 0).run()["mean_s"] < World(many, 0).run()["mean_s"]


def test_requests_go_to_rings_of_their_coordinator():
    world = World(replace(SMALL, address=Address.STICKY), 0)
    world.run()
    homes = {session: world.homes.of(f"{session}") for session in world.last_tokens}
    assert len(homes) > 50
    assert all(ring // 3 == session % 4 for session, ring in homes.items())


def test_the_command_tells_all_addresses_and_ages(tmp_path):
    sizes = ["--coordinators", "2", "--rings-each", "2", "--duration-s", "60"]
    asked = ["--seeds", "1", "--load", "0.3", *sizes, "--out", str(tmp_path)]
    result = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "several_coordinators.json").read_text())["rows"]
    assert [row["address"] for row in rows[:3]] == ["one", "random", "sticky"]
    assert {(row["address"], row["age_s"]) for row in rows[3:]} == {
        (address, age_s) for address in ("forecast", "home") for age_s in AGES_S
    }
    assert all(row["fronts"] == 2 and row["requests"] > 5 for row in rows)
