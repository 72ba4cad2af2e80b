"""The relay's benchmark measures what it says, on a small scale."""

import json

import pytest
from click.testing import CliRunner

from tools.experiments.relay import relay_speed


@pytest.fixture
def quickly(monkeypatch):
    monkeypatch.setattr(relay_speed, "TIMED_MESSAGES", 20)
    monkeypatch.setattr(relay_speed, "STEADY_S", 0.2)
    monkeypatch.setattr(relay_speed, "FAST_BYTES", 4 * 2**20)


def test_both_paths_are_measured_and_the_relay_costs_something(quickly, tmp_path):
    command = ["--out", str(tmp_path), "--rounds", "1"]
    result = CliRunner().invoke(relay_speed.main, command, catch_exceptions=False)
    report = json.loads((tmp_path / "relay.json").read_text())
    direct, relay = report["medians"]["direct"], report["medians"]["relay"]
    assert direct["relay_ms_per_s"] == 0 < relay["agents_ms_per_s"]
    assert all(one["mb_per_s"] > 1 and one["latency_p50_ms"] > 0 for one in (direct, relay))
    assert all(label in result.output for label in relay_speed.LABELS.values())
