"""Experiments are run by hand; here what they make of samples."""

import pytest

from tools.experiments.harness.experiment import Measured, Setup, policy_conditions, write_results
from tools.experiments.links import contention, contention_tcp
from tools.experiments.ring import ablation, just_in_time, second_process, ttft_alone
from tools.experiments.ring.latency_slope import slope_and_base
from tools.experiments.streams import idle_stage


@pytest.fixture
def setup(tmp_path):
    return Setup("model", tmp_path, 2, "20:30", ())


def test_contention_compares_gaps_with_and_without_prompts(setup):
    quiet = [(float(at), 0.1) for at in range(100)]
    loaded = [(float(at), 0.1 if at % 10 else 0.3) for at in range(100, 200)]
    figures = contention._figures(quiet, loaded, [1.0, 2.0]) | {"longest_gap_s": 0.3}
    assert figures["p99_beside_to_p50_alone"] == pytest.approx(3)
    assert figures["ttft_mean_s"] == 1.5
    samples = {"gaps_ms": [*quiet, *loaded], "loaded_ms": [gap for _, gap in loaded]}
    runs = {one.name: [Measured(figures, samples)] * 2 for one in policy_conditions()}
    middle = write_results("contention", setup, {}, runs)
    assert "| `molink` | 100 / 100 | 100 / 300 | 3.00 | 3.00 | 300 |" in contention._table(middle)
    pytest.importorskip("matplotlib")
    contention._draw(setup.out / "contention.png", setup, runs, 100.0)
    assert (setup.out / "contention.png").stat().st_size > 10_000
    assert (setup.out / "contention.json").read_text().startswith('{\n  "experiment"')


def test_real_tcp_stands_beside_the_emulator():
    figures = dict.fromkeys(contention_tcp.COLUMNS, 0.1)
    real = {**figures, "gap_beside_p99_s": 0.2, "packets_lost": 7.0}
    middle = {"fifo, emulated": figures, "fifo, real TCP": real}
    *_, emulated, over_tcp, ratio = contention_tcp._table(middle, ["fifo"]).splitlines()
    assert emulated.startswith("| `fifo`, emulated | 100 |")
    assert over_tcp.endswith("| 7 |")
    assert ratio == "| ratio | 1.00 | 1.00 | 1.00 | 2.00 | 1.00 | 1.00 | 1.00 | 1.00 |  |"


def test_both_kinds_of_link_are_drawn(setup):
    pytest.importorskip("matplotlib")
    gaps = [(float(at), 100.0 + at) for at in range(100)]
    samples = {"gaps_ms": gaps, "loaded_ms": [gap for _, gap in gaps[50:]]}
    names = [one.name for one in contention_tcp._conditions(["molink", "fifo"])]
    runs = {name: [Measured({}, samples)] for name in names}
    path = setup.out / "contention_tcp.png"
    contention_tcp._draw(path, setup, runs, ["molink", "fifo"], 50.0)
    assert path.stat().st_size > 10_000


def test_the_floor_is_the_least_of_each_round():
    def measured(ttft_s, compute_s):
        figures = {"ttft_p50_s": ttft_s, "wire_s": 0.9, "delays_s": 0.1, "compute_s": compute_s}
        return Measured(figures)

    runs = {"spans": [measured(1.8, 0.9)], "whole": [measured(3.0, 0.5)]}
    ttft_alone._add_floors(runs)
    assert runs["spans"][0].figures["to_floor"] == pytest.approx(1.2)
    assert runs["whole"][0].figures["to_floor"] == pytest.approx(2.0)


def test_a_line_through_points():
    slope, base = slope_and_base([(10, 40), (20, 70), (50, 160)])
    assert (slope, base) == (pytest.approx(3), pytest.approx(10))


def test_the_ablation_changes_one_thing_at_a_time():
    conditions = {one.name: one for one in ablation._conditions()}
    assert conditions["none"].policy == "fifo"
    assert "auto" in conditions["spans"].options and conditions["spans"].policy == "fifo"
    assert conditions["all"].policy == "molink"
    assert conditions["all"].options == (
        *("--span-tokens", "auto"),
        *("--micro-batches", "auto", "--wire", "int8"),
    )


@pytest.mark.parametrize("drawn_at", [0.0, 0.7, 12_345.6789])
def test_a_token_says_how_long_ago_it_was_drawn(drawn_at):
    age = idle_stage.age_s(idle_stage.token_at(drawn_at), drawn_at + 0.2)
    assert age == pytest.approx(0.2, abs=idle_stage.TICK_S)


def test_what_a_second_process_takes_is_told_by_pairs():
    times_s = {"one process": [0.1, 0.2, 0.4], "two processes": [0.11, 0.22, 0.44]}
    found = second_process._of_pairs(times_s)
    assert found["ratio"] == pytest.approx((1.1, 1.1, 1.1))
    assert found["more_ms"][0] == pytest.approx(20)
    assert found["median_ms"] == pytest.approx({"one process": 200, "two processes": 220})


def test_policies_of_a_link_stand_beside_each_other():
    keys = ("gap_alone_p50_s", "gap_beside_p50_s", "gap_beside_p99_s", "ttft_mean_s", "ttft_p95_s")
    errors = {f"{kind}_error_{p}_share": 0.1 for kind in ("step", "round") for p in ("p50", "p95")}
    figures = dict.fromkeys(keys, 0.2) | errors
    figures |= {"p99_beside_to_p50_alone": 1.25, "tokens_per_s": 48.0}
    *_, row = just_in_time._table({"paper 20:30": figures}).splitlines()
    assert row == (
        "| `paper` 20:30 | 200 | 200 / 200 | 1.25 | 200 / 200 | 48.0 | 10% / 10% | 10% / 10% |"
    )
