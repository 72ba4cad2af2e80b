"""`molink bench --profile` on a tiny model, and the simulator's reading of it."""

import json

import pytest
from click.testing import CliRunner

from molink.bench import software_times, stage_profile, stages_together
from molink.bench.stage_profile import decode_grid, prefill_grid
from molink.cli.client.bench import bench
from molink.engine.step import step_timing
from molink.errors import UserError
from molink_scheduler.batch import BatchClass
from molink_sim.stage_profile import read_stage_profile
from tests.engine.tiny_models import save_tiny


def run(*arguments):
    result = CliRunner().invoke(bench, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "tiny"
    save_tiny("llama", directory, max_position_embeddings=48)
    return directory


def test_a_profile_is_written_and_read_again(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(step_timing, "MEASURE_S", 0.0)
    monkeypatch.setattr(stage_profile, "KV_TOKENS", 64 * 48)
    monkeypatch.setattr(stages_together, "STAGES_AT_ONCE", 2)
    monkeypatch.setattr(stages_together, "ROUNDS", 1)
    monkeypatch.setattr(software_times, "TRIES", 2)
    monkeypatch.setattr(software_times, "FULL_S", 0.2)
    monkeypatch.setattr(stage_profile, "IDLE_S", (0.01,))
    monkeypatch.setattr(stage_profile, "IDLE_REPEATS", 1)
    path = tmp_path / "profile.json"
    run("--profile", path, checkpoint)
    profile = json.loads(path.read_text())
    found = read_stage_profile(path)
    assert found.model_layers == 7
    assert len(found.pc.slowdown_together) == 2 and found.pc.slowdown_together[0] == 1.0
    assert [idle_s for idle_s, _ in found.pc.after_idle] == [0.01]
    assert 0 < found.pc.chunk_s < 0.1 and 0 <= found.pc.hop_s < 1
    assert (profile["model"], profile["layers"], profile["hidden_size"]) == ("tiny", 2, 64)
    assert len(profile["middle"]["decode"]) == len(decode_grid(48)) == 7
    middle = found.cost(found.layers, is_head=False, is_tail=False)
    for one in profile["middle"]["decode"]:
        rows = one["rows"]
        step_s = middle.step_s(BatchClass.DECODE, rows, rows * one["context"], rows)
        assert step_s == pytest.approx(one["step_s"])
    tail = found.cost(found.layers, is_head=False, is_tail=True)
    assert tail.step_s(BatchClass.PREFILL, 32, 32, 1) > 0


def test_grids_keep_within_memory_and_the_models_length():
    grid = decode_grid(10_000)
    assert max(rows * context for rows, context in grid) == 16 * 1024
    assert {rows for rows, _ in grid} == {1, 2, 4, 8, 16, 32, 64}
    assert [context for _, context in grid] == sorted((c for _, c in grid), reverse=True)
    assert max(rows + before for rows, before in prefill_grid(1000)) <= 1000


def test_all_requests_of_the_decode_grid_fit():
    held = {}
    for rows, context in decode_grid(10_000):
        for request_id in range(rows):
            held[request_id] = max(context, held.get(request_id, 0))
    assert sum(held.values()) <= stage_profile.KV_TOKENS


@pytest.mark.parametrize(
    "arguments, complaint",
    [
        (["--profile", "{tmp}/p.json"], "needs a MODEL"),
        (["--profile", "{tmp}/p.json", "--requests", "3", "m"], "--requests goes not with"),
        (["--profile", "{tmp}/p.json", "--json", "{tmp}/j.json", "m"], "--json goes not with"),
        (["--profile", "{tmp}/no/p.json", "m"], "choose another --profile"),
        (["--profile", "{tmp}/p.json", "{tmp}/none"], "none"),
        (["m"], "m is not needed"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments, complaint, tmp_path):
    with pytest.raises(UserError, match=complaint):
        run(*(one.format(tmp=tmp_path) for one in arguments))
