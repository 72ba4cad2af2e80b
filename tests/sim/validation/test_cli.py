import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError
from molink.workload.loads import requests_of
from molink_sim.validation import real
from molink_sim.validation.simulated import run_simulated
from tests.sim.validation.conftest import profile_data

CONFIG = {
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "num_key_value_heads": 4,
    "vocab_size": 8192,
}
"""Of the model that the profile was made of."""


def invoke(*options):
    return CliRunner().invoke(cli, ["sim", "compare", *map(str, options)], catch_exceptions=False)


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.fixture
def real_half(scenario, profile, monkeypatch):
    """Stands for the processes: what they see is what is simulated, a tenth later."""
    commands = []

    def run(command, check):
        commands.append(command)
        found = run_simulated(scenario, profile)
        requests = [
            {
                "load": one.load,
                "input_tokens": one.input_tokens,
                "output_tokens": one.output_tokens,
                "asked_s": one.asked_s,
                "token_times_s": [one.asked_s + 1.1 * (t - one.asked_s) for t in one.token_times_s],
            }
            for one in found.requests
        ]
        data = {"requests": requests, "busy_s": found.busy_s, "others_cores": 0.0}
        Path(command[command.index("--json") + 1]).write_text(json.dumps(data))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(real.subprocess, "run", run)
    return commands


def test_a_comparison_is_shown_and_written(
    tmp_path, model, scenario, scenario_path, profile_path, real_half
):
    written = tmp_path / "found.json"
    options = ("--scenario", scenario_path, "--model", model, "--profile", profile_path)
    result = invoke(*options, "--rounds", "2", "--json", written)
    assert result.exit_code == 0
    assert "within 15%" in result.output
    data = json.loads(written.read_text())
    assert data["passes"]
    judged = [one for one in data["figures"] if one["judged"]]
    assert [one["error"] for one in judged] == pytest.approx([1 / 1.1 - 1] * 2)
    assert len(data["simulated"]["requests"]) == len(requests_of(scenario.loads))
    assert [command[-1] for command in real_half] == ["0", "1"]


@pytest.mark.parametrize(
    "text, words",
    [
        ("nodes = 3", "nodes, which means nothing"),
        ("[link]\nmbps = 0\none_way_ms = 3", "asks for nothing"),
    ],
)
def test_a_wrong_scenario_is_one_sentence(tmp_path, model, text, words):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as refusal:
        invoke("--scenario", path, "--model", model)
    assert "\n" not in str(refusal.value)


def test_a_model_must_be_named_and_there(scenario_path, tmp_path):
    with pytest.raises(UserError, match="Which model"):
        invoke("--scenario", scenario_path)
    with pytest.raises(UserError, match="is no model"):
        invoke("--scenario", scenario_path, "--model", tmp_path / "nowhere")


def test_a_profile_without_the_pc_is_refused(scenario_path, model, profile_path):
    old = profile_data()
    del old["pc"]
    profile_path.write_text(json.dumps(old))
    with pytest.raises(UserError, match="delete it"):
        invoke("--scenario", scenario_path, "--model", model, "--profile", profile_path)


@pytest.mark.parametrize(
    "pc", [{}, {"slowdown_together": [0.5]}, {"hop_s": -1.0}, {"after_idle": [[1]]}]
)
def test_an_impossible_pc_is_one_sentence(scenario_path, model, profile_path, pc):
    changed = {**profile_data()["pc"], **pc} if pc else {}
    profile_path.write_text(json.dumps(profile_data(pc=changed)))
    with pytest.raises(UserError, match="incomplete"):
        invoke("--scenario", scenario_path, "--model", model, "--profile", profile_path)


def test_a_real_half_that_fails_ends_the_comparison(
    scenario_path, model, profile_path, monkeypatch
):
    monkeypatch.setattr(
        real.subprocess, "run", lambda command, check: subprocess.CompletedProcess(command, 2)
    )
    with pytest.raises(UserError, match="stands above"):
        invoke("--scenario", scenario_path, "--model", model, "--profile", profile_path)


def test_a_profile_of_another_model_is_refused(scenario_path, model, profile_path, real_half):
    (model / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": 16}))
    with pytest.raises(UserError, match=r"12 layers of 768, .* has 16 of 768"):
        invoke("--scenario", scenario_path, "--model", model, "--profile", profile_path)
    assert real_half == []
