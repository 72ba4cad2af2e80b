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


def test_both_paths_are_measured_and_only_one_has_a_relay(quickly, tmp_path):
    """The kernel books processor time in ticks of 10 ms: in so short a run it may book none."""
    command = ["--out", str(tmp_path), "--rounds", "1"]
    result = CliRunner().invoke(relay_speed.main, command, catch_exceptions=False)
    report = json.loads((tmp_path / "relay.json").read_text())
    direct, relay = report["medians"]["direct"], report["medians"]["relay"]
    assert direct.keys() == relay.keys() == relay_speed.LABELS.keys()
    assert direct["relay_ms_per_s"] == direct["agents_ms_per_s"] == direct["relay_fast_share"] == 0
    assert relay["relay_ms_per_s"] >= 0 and relay["agents_ms_per_s"] >= 0
    assert all(path["mb_per_s"] > 0 and path["latency_p50_ms"] > 0 for path in (direct, relay))
    assert all(label in result.output for label in relay_speed.LABELS.values())


def test_a_relayed_link_knows_its_relay_and_both_agents():
    with relay_speed._opened("relay") as link:
        relay_speed._latencies(link.sender, link.receiver)
        commands = [" ".join(process.cmdline()) for process in (*link.relay, *link.agents)]
    wanted = ("molink.cli.main relay", "relay_ends receiver", "relay_ends tunnel")
    assert all(words in command for words, command in zip(wanted, commands, strict=True))
