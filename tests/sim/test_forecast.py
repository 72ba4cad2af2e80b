"""`molink sim plan`: the rings of the placement, simulated, beside its forecast."""

import json
from functools import cache

import pytest
from click.testing import CliRunner

from molink.checkpoint.layer_sizes import planned_model
from molink.cli.main import cli
from molink.errors import UserError
from molink_sim import forecast as forecasts
from molink_sim.forecast import Bounds, read_nodes, simulate_plan, with_one_more

NODE = '[[nodes]]\nname = "{}"\ngpu = "{}"\nupload_mbps = {}\ndownload_mbps = 100\n'
THREE = "".join(NODE.format(n, "rtx3060", up) for n, up in (("a", 100), ("b", 10), ("c", 100)))
MEASURED = (
    '[[nodes]]\nname = "a"\nlends_gib = 8\ndecode_fixed_ms = 2\ndecode_row_ms = 0.1\n'
    "prefill_row_ms = 0.05\nupload_mbps = 10\ndownload_mbps = 10\n"
)


simulated = cache(forecasts._run)
"""Kept: several tests try the same rings at the same rates."""


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    monkeypatch.setattr(forecasts, "_run", simulated)
    monkeypatch.setattr(forecasts, "DURATION_S", 150.0)
    monkeypatch.setattr(forecasts, "SEARCH_STEPS", 3)


@pytest.fixture
def nodes_file(tmp_path):
    """Writes a file of PCs; without text, three of them."""

    def write(text=THREE):
        path = tmp_path / "nodes.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def forecast(nodes_file, tmp_path):
    """Runs `molink sim plan`; its text and its JSON."""

    def run(text, *more):
        out = tmp_path / "plan.json"
        arguments = ["sim", "plan", "--model", "qwen-7b", "--nodes", str(nodes_file(text)), *more]
        result = CliRunner().invoke(cli, [*arguments, "--json", str(out)], catch_exceptions=False)
        assert result.exit_code == 0
        return " ".join(result.output.split()), json.loads(out.read_text())

    return run


def test_the_rings_of_molink_plan_are_simulated(forecast, nodes_file):
    output, found = forecast(THREE, "--target-rate", "0.05", "--ttft-bound-s", "10")
    arguments = ["plan", "qwen-7b", "--nodes", str(nodes_file()), "--context-tokens", "1024"]
    planned = CliRunner().invoke(cli, [*arguments, "--json"], catch_exceptions=False).output
    expected = json.loads(planned)
    del expected["quality"], expected["host"]  # Of weights and memory that no simulation has.
    assert found["plan"]["forecast"] == expected
    assert sum(one["layers"] for one in found["plan"]["split"]) == 32
    assert found["plan"]["bottleneck"] in output and "Standby" not in output
    # The narrow upload stands at the end, where it sends tokens only; the others' send the prompts.
    assert found["plan"]["split"][-1]["name"] == "b"
    ttft_s = found["plan"]["summary"]["ttft_s"]["mean"]
    assert 763 * 8192 / 12.5e6 < ttft_s < 763 * 8192 / 1.25e6


def test_simulation_and_forecast_agree(nodes_file):
    model, nodes = planned_model("qwen-7b"), read_nodes(nodes_file())
    found = simulate_plan(model, nodes, Bounds(), rate_per_s=0.01)
    (ring,) = found.plan.rings
    assert found.run["tpot_s"]["mean"] == pytest.approx(ring.tpot_alone_s, rel=0.1)
    assert found.run["ttft_s"]["mean"] == pytest.approx(ring.ttft_s, rel=0.3)
    assert found.capacity.users == pytest.approx(ring.users, rel=0.5)


def test_one_more_pc_serves_more(forecast):
    output, found = forecast(THREE, "--ttft-bound-s", "10")
    assert len(found["one_more_pc"]["split"]) == 4
    assert found["one_more_pc"]["users_max"] > found["plan"]["users_max"] > 0
    assert found["one_more_pc"]["rate_per_s"] == found["plan"]["rate_per_s"]
    assert "One more PC like the fastest: a forecast of " in output


def test_the_copy_stands_beside_the_fastest(nodes_file):
    text = THREE + NODE.format("d", "rtx4090", 100) + NODE.format("e", "rtx3060", 100)
    names = [node.name for node in with_one_more(read_nodes(nodes_file(text))).nodes]
    assert names == ["a", "b", "c", "d", "d (one more)", "e"]


def test_a_ring_of_one_pc_has_no_delay(forecast):
    _, found = forecast(NODE.format("a", "rtx4090", 10), "--tpot-bound-s", "0.005")
    assert found["plan"]["summary"]["tpot_s"]["mean"] < 0.03


def test_nobody_can_be_served_faster_than_light(forecast):
    _, found = forecast(THREE, "--tpot-bound-s", "0.05", "--target-rate", "0.05")
    assert found["plan"]["users_max"] == found["plan"]["forecast"]["users"] == 0
    assert found["plan"]["summary"]["tpot_s"]["mean"] > 0.09
    assert "are links" in found["plan"]["bottleneck"]


def test_each_pc_needs_a_device_whatever_was_measured(nodes_file):
    with pytest.raises(UserError, match=r"a in .* has measured times but no device"):
        read_nodes(nodes_file(MEASURED))
    (anna,) = read_nodes(nodes_file(MEASURED + 'gpu = "rtx4090"')).nodes
    assert anna.device.name == "rtx4090" and anna.lent_bytes == 8 * 2**30


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--target-rate", "0"], "above 0"),
        (["--tpot-bound-s", "-1"], "above 0 s"),
        (["--model", "llama-2-70b"], "llama-2-70b does not fit: these 3 PCs are not enough"),
    ],
)
def test_impossible_wishes(nodes_file, arguments, sentence):
    command = ["sim", "plan", "--model", "qwen-7b", "--nodes", str(nodes_file()), *arguments]
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(cli, command, catch_exceptions=False)
