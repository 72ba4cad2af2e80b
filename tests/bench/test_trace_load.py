"""`molink bench --trace`, and the load behind it, against a running server."""

import json

import pytest
from click.testing import CliRunner

from molink.bench.trace_load import TraceSettings, run_trace
from molink.cli.client import bench
from molink.errors import UserError


def run(*arguments):
    result = CliRunner().invoke(bench, [str(one) for one in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    rows = [f"{number * 0.001},{10 + number},{3 + number}" for number in range(6)]
    path.write_text("\n".join(["start_s,input_tokens,output_tokens", *rows]))
    return path


async def test_a_file_gives_times_and_lengths(url, service, trace):
    counts, ended = [], []
    found = await run_trace(
        TraceSettings(url, str(trace), rate=1000, warmup=0), counts.append, ended.append
    )
    assert (counts, len(ended), found["finished"]) == ([6], 6, 6)
    lengths = [(len(r.prompt_token_ids), r.sampling.max_tokens) for r in service.requests]
    assert sorted(lengths) == [(10 + number, 3 + number) for number in range(6)]
    assert found["offered"]["input_tokens_mean"] == 12.5


async def test_the_generated_mix_shrinks_to_a_small_model(url, service):
    settings = TraceSettings(url, "generated", 200, 0.2, input_scale=0.03, output_scale=0.03)
    found = await run_trace(settings)
    assert found["finished"] == found["offered"]["requests"] > 10
    assert all(len(r.prompt_token_ids) + r.sampling.max_tokens <= 120 for r in service.requests)


async def test_nothing_that_fits_is_said(url, trace):
    trace.write_text("start_s,input_tokens,output_tokens\n0,100,50\n")
    with pytest.raises(UserError, match=r"length of 120 .* lower --scale"):
        await run_trace(TraceSettings(url, str(trace), 1.0))


def test_the_command_reports_a_trace(url, tmp_path):
    file = tmp_path / "report.json"
    load = ["--trace", "generated", "--rate", 100, "--duration-s", 0.2, "--scale", 0.02]
    out = run("--url", url, *load, "--json", file)
    assert "trace generated at 100 requests/s" in out
    report = json.loads(file.read_text())
    assert report["finished"] == report["offered"]["requests"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--trace", "generated"], "--trace needs --rate"),
        (["--rate", "1"], "--rate goes only with --trace"),
        (["--duration-s", "1"], "--duration-s goes only with --trace"),
        (["--trace", "generated", "--rate", "1", "--requests", "3"], "--requests goes not with"),
        (["--trace", "none.csv", "--rate", "1"], "cannot read the trace none.csv"),
    ],
)
def test_options_that_do_not_go_together(url, options, sentence):
    with pytest.raises(UserError, match=sentence):
        run("--url", url, *options)


@pytest.mark.parametrize("option", ["--rate", "--duration-s", "--scale"])
def test_nonsense_numbers_are_refused(option):
    result = CliRunner().invoke(bench, ["--trace", "generated", option, "0"])
    assert result.exit_code == 2 and option in result.output
