import json

import click
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


def test_json_alone_is_printed_in_place_of_the_tables():
    for words in (
        SHORT,
        ["sim", "swarm", "--seeds", "1"],
        ["sim", "cell", "--paper", "capacity"],
        ["sim", "micro-batches", "--latency-ms", "5", "--slowdown", "1", "--users", "2"],
    ):
        done = CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False)
        assert done.exit_code == 0 and json.loads(done.stdout), words


def test_json_of_every_command_is_a_switch_and_may_name_a_file():
    context = click.Context(cli)
    sim = cli.get_command(context, "sim")
    for name in sim.list_commands(context):
        options = {one.opts[0]: one for one in sim.get_command(context, name).params}
        if "--json" in options:
            assert options["--json"].flag_value == "-" and not options["--json"].is_flag, name


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


SMALL = ["sim", "micro-batches", "--latency-ms", "5", "--slowdown", "1", "--users", "2"]


def test_micro_batches_writes_numbers_and_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    paths = {name: tmp_path / name for name in ("all.json", "curves.png", "map.png")}
    options = [
        *("--json", str(paths["all.json"])),
        *("--curves", str(paths["curves.png"])),
        *("--heat-map", str(paths["map.png"])),
    ]
    done = CliRunner().invoke(cli, [*SMALL, *options], catch_exceptions=False)
    assert done.exit_code == 0 and "auto" in done.output and "model" in done.output
    assert [one["users"] for one in json.loads(paths["all.json"].read_text())["findings"]] == [2]
    assert all(paths[name].read_bytes().startswith(b"\x89PNG") for name in list(paths)[1:])


@pytest.mark.parametrize(
    "options, words",
    [
        (["--latency-ms", "5,fast"], "--latency-ms takes numbers"),
        (["--slowdown", ""], "--slowdown takes numbers"),
        (["--users", "1.5"], "--users takes whole numbers"),
        (["--users", "0"], "1 to 512"),
        (["--micro-batches-max", "99"], "fewer"),
        (["--stages", "0"], "stages"),
        (["--gpu", "rtx1"], "rtx"),
        (["--users", "500"], "tokens of KV"),
        (["--curves", "nowhere/curves.png"], "folder that exists"),
        (["--heat-map", "map.jpg"], "ends with .png"),
    ],
)
def test_impossible_sweeps_are_refused(options, words):
    with pytest.raises(UserError, match=words) as refusal:
        CliRunner().invoke(cli, [*SMALL, *options], catch_exceptions=False)
    assert "\n" not in str(refusal.value)
