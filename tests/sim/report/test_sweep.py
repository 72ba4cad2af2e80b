from molink_sim.report import Run, Sweep, grid, summary, sweep, sweep_table
from molink_sim.report.sweep import Point


def run(system, rate, ttft_s, **more):
    return Run({"system": system, "rate": rate, **more}, {"ttft_s": {"mean": ttft_s}})


RUNS = Sweep(
    [
        run("b", 0.3, 4.0),
        run("b", 0.1, 2.0, seed=0),
        run("b", 0.1, 3.0, seed=1),
        run("a", 0.1, None),
        Run({"system": "a"}, {}),
    ]
)


def test_a_grid_has_every_combination():
    points = list(grid(system=["a", "b"], rate=[1, 2]))
    assert points[:2] == [{"system": "a", "rate": 1}, {"system": "a", "rate": 2}]
    assert len(points) == 4


def test_a_sweep_keeps_the_summary_of_each_point(outcome_of):
    found = sweep(grid(seed=[1, 2]), lambda point: outcome_of(seed=point["seed"]))
    assert [run.parameters for run in found.runs] == [{"seed": 1}, {"seed": 2}]
    assert found.runs[1].summary == summary(outcome_of(seed=2))
    assert found.as_json()[0]["parameters"] == {"seed": 1}


def test_values_in_their_order():
    assert RUNS.values("system") == ["b", "a"]
    assert RUNS.values("nothing") == []


def test_seeds_share_a_point():
    assert RUNS.only(system="b").line("rate", "ttft_s.mean") == [
        Point(0.1, 2.5, 2.0, 3.0),
        Point(0.3, 4.0, 4.0, 4.0),
    ]
    assert len(RUNS.only(system="b", seed=1).runs) == 1


def test_runs_without_the_figure_are_left_out():
    assert RUNS.only(system="a").line("rate", "ttft_s.mean") == []
    assert RUNS.runs[0].figure("links.busy") is None


def test_a_table_of_runs():
    table = sweep_table(RUNS, ["system", "seed"], ["ttft_s.mean", "ttft_s.p95"])
    assert table.markdown().splitlines() == [
        "| system | seed | TTFT, s | TTFT p95, s |",
        "| --- | ---: | ---: | ---: |",
        "| b | - | 4.000 | - |",
        "| b | 0 | 2.000 | - |",
        "| b | 1 | 3.000 | - |",
        "| a | - | - | - |",
        "| a | - | - | - |",
    ]
