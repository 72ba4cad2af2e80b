"""Decode rows and a piece of a prompt in one step: the same tokens, and the arithmetic of a hop."""

import json

import pytest
from click.testing import CliRunner

from molink.models import DEMO_MODEL_DIR
from tools.experiments.links.inline_prefill import main, per_hop_ms, saved_share


def test_one_step_draws_what_two_draw(tmp_path):
    asked = [str(DEMO_MODEL_DIR), "--rounds", "1", "--pieces", "8", "--out", str(tmp_path)]
    result = CliRunner().invoke(main, asked, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "inline_prefill.json").read_text())["rows"]
    assert [row["decode_rows"] for row in rows] == [1, 4, 8, 16]
    assert all(row["same_tokens"] == 1 for row in rows)


def test_what_is_saved_is_a_share_of_both_steps():
    assert saved_share(10.0, 30.0, 30.0) == pytest.approx(0.25)
    assert saved_share(10.0, 30.0, 44.0) == pytest.approx(-0.1)


def test_decode_waits_for_the_step_and_in_one_message_for_the_bytes():
    together_ms, ahead_ms = per_hop_ms(10.0, 30.0, piece_bytes=25_000, mbps=20.0)
    assert ahead_ms == 20.0
    assert together_ms == pytest.approx(20.0 + 10.0)
