"""Pictures are made and are pictures; how they look was judged by eye."""

from itertools import product

import pytest

from molink.errors import UserError
from molink_sim.outcome import Activity
from molink_sim.report.curves import plot_cdfs, plot_curves
from molink_sim.report.gantt import BARS_MAX, in_pipeline_order, plot_gantt
from molink_sim.report.micro_batches import (
    fewest_near_best,
    plot_micro_batch_curves,
    plot_micro_batches,
)
from molink_sim.report.summary import Point, Run, Sweep

PNG = b"\x89PNG\r\n"


@pytest.fixture(autouse=True, scope="module")
def matplotlib():
    return pytest.importorskip("matplotlib")


def figures(value):
    return {key: {"mean": value} for key in ("ttft_s", "tpot_s", "latency_s")}


def grid(**axes):
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


CURVES = Sweep(
    [
        Run(point, figures(float(point["rate_per_s"]) * 9 + point["seed"]))
        for point in grid(system=["vllm", "molink"], rate_per_s=[0.1, 0.2, 2.0], seed=[0, 1])
    ]
)

BATCHES = Sweep(
    [
        Run(point, figures(1 / min(point["micro_batches"], point["rtt_ms"])))
        for point in grid(users=[4, 16], rtt_ms=[2, 9], stage_ms=[5, 10], micro_batches=[1, 3, 5])
    ]
)


@pytest.fixture
def picture(tmp_path):
    return tmp_path / "picture.png"


def test_curves_are_the_same_bytes_each_time(picture, tmp_path):
    published = Sweep([Run({"system": "vllm", "rate_per_s": 0.1}, figures(1.0))])
    for path in (picture, tmp_path / "again.png"):
        plot_curves(path, CURVES, "rate_per_s", published=published, title="rates")
    assert picture.read_bytes().startswith(PNG)
    assert picture.read_bytes() == (tmp_path / "again.png").read_bytes()


def test_curves_of_nothing(picture):
    with pytest.raises(UserError, match="no run has both nodes and ttft_s"):
        plot_curves(picture, CURVES, "nodes")


def test_cumulative_shares(picture, outcome_of):
    plot_cdfs(picture, {"vllm": outcome_of(), "molink": outcome_of(tpot_s=0.01, count=2500)})
    assert picture.read_bytes().startswith(PNG)


def test_a_window_of_the_timeline(picture, outcome_of):
    timeline = outcome_of().timeline
    plot_gantt(picture, timeline, 1.0, 2.0, title="one second")
    assert picture.read_bytes().startswith(PNG)
    with pytest.raises(UserError, match="nothing happened from 500 s to 501 s"):
        plot_gantt(picture, timeline, 500, 501)


def test_a_window_that_holds_too_much(picture):
    bars = [Activity("ring 0 stage 0", "decode", 0.0, 1.0, 1)] * (BARS_MAX + 1)
    with pytest.raises(UserError, match="choose a shorter window"):
        plot_gantt(picture, bars, 0, 1)


def test_lanes_stand_as_a_batch_travels():
    lanes = [f"ring {r} {what} {n}" for r in (10, 2) for what in ("link", "stage") for n in (0, 1)]
    assert sorted(lanes, key=in_pipeline_order)[:5] == [
        "ring 2 stage 0",
        "ring 2 link 0",
        "ring 2 stage 1",
        "ring 2 link 1",
        "ring 10 stage 0",
    ]


def test_where_micro_batches_stop_paying(picture):
    points = [Point(1, 2.0, 2, 2), Point(3, 1.01, 1, 1), Point(5, 1.0, 1, 1)]
    assert fewest_near_best(points).x == 3
    plot_micro_batches(picture, BATCHES)
    assert picture.read_bytes().startswith(PNG)
    with pytest.raises(UserError, match="no run has rtt_ms"):
        plot_micro_batches(picture, CURVES)


def test_curves_of_every_ring_and_what_the_automatic_number_made_of_it(picture):
    where = {"users": 16, "rtt_ms": 9, "stage_ms": 5, "choice": "auto"}
    auto = Run(where, {"tpot_s": {"mean": 0.4}, "micro_batches": 3})
    plot_micro_batch_curves(picture, Sweep([*BATCHES.runs, auto]), title="four rings")
    assert picture.read_bytes().startswith(PNG)
    with pytest.raises(UserError, match="no run has rtt_ms"):
        plot_micro_batch_curves(picture, CURVES)
