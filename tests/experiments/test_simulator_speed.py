"""The cost of a simulated token is that of whole worlds, run to their end."""

import json

import pytest
from click.testing import CliRunner

from tools.experiments.simulator.simulator_speed import TOKENS, main


def test_each_load_is_run_to_its_end_and_its_tokens_counted(tmp_path):
    options = ["--rounds", "1", "--users", "3", "--calm-s", "8", "--out", str(tmp_path)]
    result = CliRunner().invoke(main, options, catch_exceptions=False)
    assert result.exit_code == 0
    rounds = json.loads((tmp_path / "simulator_speed.json").read_text())["rounds"]
    assert rounds.keys() == TOKENS.keys()
    [crowd], [calm] = rounds["crowd"], rounds["calm"]
    assert crowd["tokens"] == 3 * 120 and calm["tokens"] == 117
    for name, one in (("crowd", crowd), ("calm", calm)):
        forecast_s = TOKENS[name] * one["us_per_token"] / 1e6
        assert one["thousand_nodes_s"] == pytest.approx(forecast_s, rel=0.02, abs=1)
