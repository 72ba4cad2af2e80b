"""The cost of deciding: every policy is measured, and none is near the limit."""

import json

from click.testing import CliRunner

from molink_sim.network.policies import POLICIES
from tools.experiments.links.deciding_cost import main

LIMIT_MICROSECONDS = 50


def test_a_decision_with_a_thousand_waiting_is_cheap_under_every_policy(tmp_path):
    result = CliRunner().invoke(main, ["--decisions", "2000", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "deciding_cost.json").read_text())
    assert list(report["microseconds"]) == list(POLICIES)
    assert all(row["median"] < LIMIT_MICROSECONDS for row in report["microseconds"].values())
