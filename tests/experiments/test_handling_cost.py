"""What is asked of a coordinator is measured on its own parts, all of it."""

import json

from click.testing import CliRunner

from tools.experiments.control import handling_cost


def test_every_part_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(handling_cost, "NODES", (10,))
    monkeypatch.setattr(handling_cost, "RINGS", (1, 3))
    monkeypatch.setattr(handling_cost, "PLANNED", (20,))
    monkeypatch.setattr(handling_cost, "LET_IN", 3)
    monkeypatch.setattr(handling_cost, "KEYS_MAX", 4)
    asked = ["--rounds", "1", "--out", str(tmp_path)]
    result = CliRunner().invoke(handling_cost.main, asked, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    costs = json.loads((tmp_path / "handling_cost.json").read_text())["costs"]
    assert [cost["count"] for cost in costs] == [10] * 5 + [3, 3, 4, 1, 3, 20]
    assert all(cost["microseconds"] > 0 for cost in costs)
    idle, serving = costs[:2]
    assert 100 < idle["size_bytes"] < serving["size_bytes"] < 2**16
