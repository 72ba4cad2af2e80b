"""A profile that can be worked out by hand, and small scenarios."""

import json

import pytest

from molink.workload.scenario_file import read_scenario
from molink_sim.stage_profile import read_stage_profile

SCENARIO = """
[link]
mbps = 20
one_way_ms = 30

[[load]]
kind = "streams"
count = 2
output_tokens = 20

[[load]]
kind = "prompts"
start_s = 1
count = 2
period_s = 0.5
input_tokens = 300
"""

PC = {
    "slowdown_together": [1.0, 1.0, 1.5],
    "after_idle": [[0.01, 0.001], [0.1, 0.002]],
    "chunk_s": 0.001,
    "hop_s": 0.0015,
}


def profile_data(**changes):
    def points(*rows):
        return [{"rows": r, "context": 32, "step_s": 0.004 + 0.0003 * r} for r in rows]

    role = {"decode": points(1, 8, 64), "prefill": points(16, 128)}
    return {
        "format": "molink-profile",
        "version": 1,
        "model": "small",
        "device": "cpu",
        "hidden_size": 768,
        "layers": 4,
        "model_layers": 12,
        "pc": PC,
        **dict.fromkeys(("head", "middle", "tail"), role),
        **changes,
    }


@pytest.fixture
def profile_path(tmp_path):
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(profile_data()))
    return path


@pytest.fixture
def profile(profile_path):
    return read_stage_profile(profile_path)


@pytest.fixture
def scenario_path(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def scenario(scenario_path):
    return read_scenario(scenario_path)
