from molink_sim.report.summary import Point, Run, Sweep


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


def test_json_has_every_run():
    assert RUNS.as_json()[1] == {
        "parameters": {"system": "b", "rate": 0.1, "seed": 0},
        "summary": {"ttft_s": {"mean": 2.0}},
    }


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
