"""The benchmark of placements runs, and says what it found."""

import json

from click.testing import CliRunner

from tools.experiments.placement import placement_speed


def test_it_reports_times_gaps_and_optima(monkeypatch, tmp_path):
    monkeypatch.setattr(placement_speed, "HOME_SIZES", (3,))
    monkeypatch.setattr(placement_speed, "HOME_LAYERS", (32,))
    monkeypatch.setattr(placement_speed, "FLOW_SIZES", (4,))
    monkeypatch.setattr(placement_speed, "SOLVER_CASES", ((6, 1),))
    result = CliRunner().invoke(
        placement_speed.main, ["--seeds", "2", "--out", str(tmp_path)], catch_exceptions=False
    )
    assert result.exit_code == 0 and "solver" in result.output
    found = json.loads((tmp_path / "placement.json").read_text())
    (home,), (flow,), (solver,) = found["homes"], found["flow"], found["solver"]
    assert len(home["users"]) == len(home["gap_percent"]) == 2
    assert all(0 <= gap < 100 for gap in (*home["gap_percent"], *flow["gap_percent"]))
    assert solver["equal"] == solver["seeds"] == 1
