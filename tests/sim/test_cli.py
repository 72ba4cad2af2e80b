import json

import pytest
from click.testing import CliRunner

from molink.cli.main import cli
from molink.errors import UserError

SHORT = ["sim", "run", "--duration-s", "60", "--warmup-s", "5", "--rate", "0.3"]


def invoke(*options):
    return CliRunner().invoke(cli, [*SHORT, *options], catch_exceptions=False)


@pytest.mark.parametrize("system", ["vllm", "helix", "paper", "molink"])
def test_run_writes_its_numbers(tmp_path, system):
    path = tmp_path / "run.json"
    assert invoke("--system", system, "--json", str(path)).exit_code == 0
    found = json.loads(path.read_text())
    for name in ("ttft_s", "tpot_s", "gap_s", "latency_s"):
        assert set(found[name]) >= {"mean", "p50", "p95", "p99"}
    assert {"finished", "tokens_per_s", "stages", "links"} <= set(found)


@pytest.mark.parametrize(
    "options, words",
    [
        (["--system", "sglang"], "vllm, helix, paper, molink"),
        (["--gpu", "rtx1"], "rtx"),
        (["--model", "gpt-9"], "qwen"),
        (["--policy", "luck"], "fifo"),
        (["--bandwidth-mbps", "0"], "above 0"),
        (["--latency-ms", "-1"], "0 or more"),
        (["--loss", "1"], "below 1"),
        (["--micro-batches", "0"], "1 to"),
        (["--warmup-s", "60"], "shorten"),
        (["--wire", "zip"], "int8"),
        (["--link-model", "perfect"], "ideal"),
        (["--stages", "99"], "layers"),
        (["--rate", "0"], "above 0"),
    ],
)
def test_impossible_runs_are_refused_in_one_sentence(options, words):
    with pytest.raises(UserError, match=words) as refusal:
        invoke(*options)
    assert "\n" not in str(refusal.value)
