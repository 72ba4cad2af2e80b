"""Forecasts against what is known of the ring that they describe."""

import json

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_sim.cli import main

NODE = '[[nodes]]\nname = "{}"\ngpu = "{}"\nupload_mbps = {}\ndownload_mbps = 100\n'


@pytest.fixture
def forecast(nodes_file, tmp_path):
    """Runs `molink sim plan`; its text and its JSON."""

    def run(text, *more):
        out = tmp_path / "plan.json"
        arguments = ["plan", "--model", "qwen-7b", "--nodes", str(nodes_file(text)), *more]
        arguments += ["--json", str(out)]
        result = CliRunner().invoke(main, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result.output, json.loads(out.read_text())

    return run


def test_a_narrow_upload_is_the_bottleneck(forecast):
    text = "".join(NODE.format(n, "rtx4090", up) for n, up in (("a", 100), ("b", 10), ("c", 100)))
    output, found = forecast(text, "--target-rate", "0.05", "--ttft-bound-s", "10")
    assert "the link from b to c" in found["plan"]["bottleneck"]
    assert sum(one["layers"] for one in found["plan"]["split"]) == 32
    assert found["plan"]["summary"]["ttft_s"]["mean"] > 763 * 8192 / 1.25e6
    assert "One more PC" in output and len(found["one_more_pc"]["split"]) == 4


def test_nobody_can_be_served_faster_than_light(forecast):
    text = "".join(NODE.format(name, "rtx4090", 100) for name in "abc")
    _, found = forecast(text, "--tpot-bound-s", "0.05", "--target-rate", "0.05")
    assert found["plan"]["users_max"] == 0
    assert found["plan"]["summary"]["tpot_s"]["mean"] > 0.09
    assert "delay" in found["plan"]["bottleneck"]


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["--target-rate", "0"], "above 0"),
        (["--tpot-bound-s", "-1"], "above 0 s"),
    ],
)
def test_impossible_wishes(nodes_file, arguments, sentence):
    command = ["plan", "--model", "qwen-7b", "--nodes", str(nodes_file()), *arguments]
    with pytest.raises(UserError, match=sentence):
        CliRunner().invoke(main, command, catch_exceptions=False)
