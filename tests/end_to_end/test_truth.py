"""`molink sim compare` with a tiny model: both halves run, and the output has its shape."""

import json
import os

from tests.end_to_end.command_line import forking_environment

SCENARIO = """
stages = 2
kv_tokens = 1024

[link]
mbps = 100
one_way_ms = 5

[[load]]
kind = "streams"
count = 2
output_tokens = 12

[[load]]
kind = "prompts"
start_s = 0.3
count = 2
period_s = 0.3
input_tokens = 100
"""

PC = {"slowdown_together": [1.0, 1.1], "after_idle": [], "chunk_s": 0.001, "hop_s": 0.001}


def points(*shapes):
    return [{"rows": rows, "context": 32, "step_s": 0.001} for rows in shapes]


def test_a_scenario_is_compared(tmp_path, tiny_llama, tools):
    scenario, found = tmp_path / "small.toml", tmp_path / "found.json"
    scenario.write_text(SCENARIO)
    role = {"decode": points(1, 8), "prefill": points(16, 128)}
    profile = {
        "format": "molink-profile",
        "version": 1,
        "model": "tiny",
        "device": "cpu",
        "hidden_size": 32,
        "layers": 2,
        "model_layers": 6,
        "pc": PC,
        **dict.fromkeys(("head", "middle", "tail"), role),
    }
    (tmp_path / "profile-tiny-llama.json").write_text(json.dumps(profile))
    result = tools.run_molink(
        *("sim", "compare", "--scenario", str(scenario)),
        *("--model", str(tiny_llama), "--json", str(found)),
        env=os.environ | forking_environment(tmp_path),
    )
    assert result.returncode in (0, 1), result.stderr  # 1: too far off, which is not asked here.
    assert "TTFT mean" in result.stdout and "within 15%" in result.stdout
    data = json.loads(found.read_text())
    real, simulated = data["real"][0], data["simulated"]
    assert len(real["busy_s"]) == len(simulated["busy_s"]) == 2
    for half in (real, simulated):
        lengths = [(one["load"], len(one["token_times_s"])) for one in half["requests"]]
        assert sorted(lengths) == [("prompts", 2)] * 2 + [("streams", 12)] * 2
        assert all(one["token_times_s"][0] > one["asked_s"] for one in half["requests"])


def test_bad_input_is_one_sentence_and_exit_2(tmp_path, tools):
    scenario = tmp_path / "wrong.toml"
    scenario.write_text(SCENARIO.replace("one_way_ms", "latency_ms"))
    result = tools.run_molink("sim", "compare", "--scenario", str(scenario), "--model", "demo")
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1
    assert "latency_ms, which means nothing" in result.stderr
