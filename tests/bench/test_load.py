"""`molink bench` without and with --trace, against a running server."""

import asyncio
import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from molink.bench.load import LoadSettings, TraceSettings, run_load
from molink.bench.runner import PlannedRequest, RequestPlan, run_plan
from molink.cli.client.bench import bench
from molink.errors import UserError
from molink_scheduler.routing.admission import Targets


@pytest.fixture
def settings(url):
    return LoadSettings(url, concurrency=3, requests=8, input_tokens=5, output_tokens=6)


async def test_load_counts_what_it_sent(settings, service):
    ended = []
    found = await run_load(settings, ended.append)
    assert (found["finished"], found["failed"], found["first_error"]) == (8, 0, None)
    assert (found["generated_tokens"], len(ended)) == (48, 8)
    for key in ("ttft_s", "tpot_s", "gap_s", "latency_s"):
        assert found[key].keys() == {"mean", "p50", "p90", "p95", "p99"}
        assert all(value >= 0 for value in found[key].values())
    assert found["settings"]["concurrency"] == 3 and found["model"] == "tiny"
    warming, counted = service.requests[:3], service.requests[3:]
    assert {one.sampling.max_tokens for one in warming} == {4}
    assert {one.sampling.max_tokens for one in counted} == {6}
    assert all(len(one.prompt_token_ids) == 5 for one in counted)
    assert all(one.sampling.stop_token_ids == () for one in counted), "ends are ignored"
    assert all(one.sampling.temperature == 0 for one in counted)
    assert service.running_most <= 3


async def test_the_same_seed_sends_the_same_requests_however_warm(settings, service):
    await run_load(replace(settings, concurrency=1, warmup=0))
    first = list(service.requests)
    service.requests.clear()
    await run_load(replace(settings, concurrency=1, warmup=2))
    assert service.requests[2:] == first


async def test_with_targets_the_goodput_is_reported(settings, service):
    service.failing = frozenset({3, 5})
    found = await run_load(settings, targets=Targets(ttft_s=60.0, tbt_s=60.0))
    assert (found["goodput"]["met"], found["goodput"]["requests"]) == (6, 8)
    assert found["goodput"]["per_s"] == pytest.approx(6 / found["wall_s"])
    assert "goodput" not in await run_load(settings)


async def test_failures_are_counted_and_the_rest_goes_on(settings, service):
    service.failing = frozenset({3, 5})
    found = await run_load(settings)
    assert (found["finished"], found["failed"]) == (6, 2)
    assert found["first_error"] == "Stage 2 was lost: try again."
    assert found["generated_tokens"] == 36


async def test_one_token_answers_have_no_gaps(settings):
    found = await run_load(replace(settings, output_tokens=1))
    assert found["tpot_s"]["mean"] is None and found["gap_s"]["p99"] is None
    assert found["ttft_s"]["mean"] > 0


async def test_lengths_over_the_models_are_refused_before_the_load(settings, service):
    with pytest.raises(UserError, match="120"):
        await run_load(replace(settings, output_tokens=116))
    assert service.requests == []


async def test_a_server_that_is_not_there(settings):
    with pytest.raises(UserError, match=r"cannot reach http://127\.0\.0\.1:1:"):
        await run_load(replace(settings, url="127.0.0.1:1"))


async def test_start_times_hold_requests_back(url):
    """A plan with start times, as a trace would make it."""
    from molink.client.api_client import ApiClient

    waits_s = []

    async def sleep(delay_s):
        waits_s.append(delay_s)

    plan = RequestPlan([PlannedRequest((1,), 2, 0, start_s=1000.0 * i) for i in range(3)], slots=3)
    async with ApiClient(url) as client:
        records = await run_plan(client, plan, temperature=0, sleep=sleep)
    assert len(records) == 3
    assert [round(wait_s, -3) for wait_s in waits_s] == [1000, 2000]


# -- with a trace ---------------------------------------------------------------------------------


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
    found = await run_load(
        TraceSettings(url, str(trace), rate=1000, warmup=0), ended.append, counts.append
    )
    assert (counts, len(ended), found["finished"]) == ([6], 6, 6)
    lengths = [(len(r.prompt_token_ids), r.sampling.max_tokens) for r in service.requests]
    assert sorted(lengths) == [(10 + number, 3 + number) for number in range(6)]
    assert found["offered"]["input_tokens_mean"] == 12.5


async def test_the_generated_mix_shrinks_to_a_small_model(url, service):
    settings = TraceSettings(url, "generated", 200, 0.2, input_scale=0.03, output_scale=0.03)
    found = await run_load(settings)
    assert found["finished"] == found["offered"]["requests"] > 10
    assert all(len(r.prompt_token_ids) + r.sampling.max_tokens <= 120 for r in service.requests)


async def test_nothing_that_fits_is_said(url, trace):
    trace.write_text("start_s,input_tokens,output_tokens\n0,100,50\n")
    with pytest.raises(UserError, match=r"length of 120 .* lower --scale"):
        await run_load(TraceSettings(url, str(trace), 1.0))


async def test_a_load_that_is_stopped_reports_what_had_ended(settings, service):
    ended = asyncio.Event()

    def done(record):
        service.holds = True
        ended.set()

    many = replace(settings, requests=50, concurrency=1)
    load = asyncio.create_task(run_load(many, done))
    await ended.wait()
    load.cancel()
    found = await load
    assert found["interrupted"] and 1 <= found["finished"] < 50
    assert found["settings"]["requests"] == 50


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
