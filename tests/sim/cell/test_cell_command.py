"""`molink sim cell`: papers' tables, and cells from files."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from molink_sim.cell import long_requests
from molink_sim.cell.attention_devices import equal_cost, least_bandwidth_gb_per_s
from molink_sim.cell.scenario import play
from molink_sim.cell.tables import capacities, lendable
from molink_sim.cli import main

SHIPPED = Path(__file__).parents[3] / "docs/benchmarks/scenarios/cells/two-pcs.toml"


def asked(*arguments):
    return CliRunner().invoke(main, ["cell", *map(str, arguments)], terminal_width=200)


def test_capacities_are_arithmetic_and_two_are_the_papers():
    """By hand: 0.9 x 80 GB less 2 bytes of each of 6.74e9 weights, over 32 x 16 KiB a token."""
    (_, one, paper), (_, two, paper_of_two), (_, four, _) = capacities()
    assert one == pytest.approx((72e9 - 2 * 6_738_149_376) / (32 * 16_384), rel=1e-4)
    assert one == pytest.approx(paper, rel=0.05)
    assert two == pytest.approx(paper_of_two, rel=0.05)
    assert (two, four) == (pytest.approx(288e3, rel=0.01), pytest.approx(576e3, rel=0.01))


def test_what_a_lender_may_hold():
    found = dict(lendable())
    expected = {
        "host memory read over PCIe 4 x16": 0.58,
        "CPU, DDR4": 0.92,
        "CPU, DDR5": 1.6,
        "CPU, four cores": 0.7,
        "card over 10 GbE": 20,
        "card over 1 GbE": 17,
        "card over 1 GbE, 8 rows": 8,
    }
    for name, size_gb in expected.items():
        assert found[name] == pytest.approx(size_gb, rel=0.06)
    assert found["card over a home link"] == 0


def test_lamina_at_equal_cost():
    found = list(equal_cost())
    assert len(found) == 12
    mean = sum(paper.batch_ratio for _, _, paper, _ in found) / 12
    assert 2.2 <= mean <= 2.5
    assert all(best.rate_ratio >= paper.rate_ratio for _, _, paper, best in found)
    gains = [paper.rate_ratio for model, _, paper, _ in found if model != "llama-3-70b"]
    assert min(gains) > 1.15


def test_the_bandwidth_of_lamina_by_hand():
    """A step of 300 rows at 8,192 tokens: 0.24 s of KV at 0.78 x 4 TB/s, and 0.06 of weights."""
    moved = (2 + 2 / 8) * 2 * 8192 * 300 * 80
    kv_s = 300 * 8192 * 80 * 4096 / (0.78 * 4e12)
    weights_s = 141.1e9 / (0.78 * 3.35e12)
    found = least_bandwidth_gb_per_s("llama-3-70b", 300, 8192)
    assert found == pytest.approx(moved / 0.2 / (kv_s + weights_s) / 1e9, rel=0.1)
    assert least_bandwidth_gb_per_s("llama-3-70b", 300, 2048) <= 30
    assert least_bandwidth_gb_per_s("llama-3-70b", 300, 1024) > 30


def test_instances_serve_all_requests_with_a_cell_and_alone(monkeypatch):
    """Where no request is long, nobody borrows much, and both are about as fast."""
    monkeypatch.setattr(long_requests, "REQUESTS", 60)
    alone, lent = (long_requests.tokens_per_s(0.0, lends=lends, seed=0) for lends in (False, True))
    assert 0.9 <= lent / alone <= 1.1
    monkeypatch.setattr(long_requests, "SHORT_TOKENS", (54_000, 55_000))
    monkeypatch.setattr(long_requests, "REQUESTS", 5)
    found = [long_requests.tokens_per_s(0.0, lends=lends, seed=0) for lends in (False, True)]
    assert all(0 < one < alone for one in found)


def test_the_shipped_cell_lends_calls_back_and_loses_a_lender():
    places = {(round(one.at_s), one.device): one for one in play(SHIPPED)}
    short = places[35, "anna's card"]
    assert set(short.borrowed_tokens) == {"anna's memory", "ben's card"}
    assert short.missing_tokens == 0
    assert short.home_tokens + sum(short.borrowed_tokens.values()) == short.needed_tokens
    busy = places[65, "anna's card"]
    assert places[65, "ben's card"].missing_tokens == 0, "its own comes first"
    assert busy.borrowed_tokens["ben's card"] < short.borrowed_tokens["ben's card"]
    left = places[95, "anna's card"]
    assert set(left.borrowed_tokens) == {"ben's card"}
    assert left.refused


@pytest.mark.parametrize(
    "table",
    [
        *("capacity", "lending", "lamina", "bandwidth", "intensity", "overlap", "heads"),
        *("fetching", "breakdown", "scaling"),
    ],
)
def test_tables_are_shown_and_written(table, tmp_path):
    result = asked("--paper", table, "--json", tmp_path / "found.json")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "found.json").read_text())["rows"]


def test_a_file_is_played():
    result = asked(SHIPPED)
    assert result.exit_code == 0, result.output
    assert "two-pcs" in result.output


DEVICES = '[[device]]\nname = "a"\nmemory_gb = 1\n[[device]]\nname = "b"\nmemory_gb = 1\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "has x, which means nothing"),
        ('[[device]]\nname = "a"\nmemory_gb = -1', "memory_gb = -1"),
        ('[[device]]\nname = "a"\nmemory_gb = 1\nlayers = 33', "from 0 to 32"),
        ("[[device]]\nmemory_gb = 1", "name of a device is None"),
        (DEVICES + '[[link]]\nbetween = ["a", "c"]', "name two devices"),
        (DEVICES + '[[link]]\nbetween = ["a", "b"]\nround_trip_us = 1\ngb_per_s = 0', "above 0"),
        (DEVICES + '[[change]]\nat_s = 1\ndevice = "c"\ntokens = 1', "device 'c'"),
        (DEVICES + '[[change]]\nat_s = 1\ndevice = "a"\ntokens = 1e12', "from 0 to"),
        (DEVICES + '[[change]]\nat_s = 1\ndevice = "a"', "has no tokens"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_sentence(text, words, tmp_path):
    path = tmp_path / "cell.toml"
    path.write_text(text)
    result = asked(path)
    assert result.exit_code != 0
    assert words in f"{result.output}{result.exception}"


@pytest.mark.parametrize("arguments", [(), ("--paper", "capacity", SHIPPED)])
def test_a_file_or_a_table_is_named(arguments):
    result = asked(*arguments)
    assert "one of both" in f"{result.output}{result.exception}"


def test_a_device_that_is_away_twice_comes_back(tmp_path):
    path = tmp_path / "cell.toml"
    change = '[[change]]\nat_s = {}\ndevice = "b"\n{}\n'
    path.write_text(
        DEVICES
        + "".join(change.format(at, "away = true") for at in (1, 9))
        + change.format(20, "tokens = 0")
    )
    assert [(round(one.at_s), one.device) for one in play(path)] == [
        (6, "a"),
        (14, "a"),
        (25, "a"),
        (25, "b"),
    ]
