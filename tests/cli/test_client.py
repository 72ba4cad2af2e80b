"""`molink generate`, `chat` and `bench` against a running server."""

import json

import pytest
from click.testing import CliRunner

from molink.cli.client import bench, chat, generate
from molink.errors import UserError


def run(command, *arguments, **options):
    """The command's output; what it raises is raised."""
    result = CliRunner().invoke(
        command, [str(one) for one in arguments], catch_exceptions=False, **options
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate_streams_text(url, service):
    out = run(generate, "hi", "--url", url, "--max-tokens", 3, "--stop", "x", "--seed", 5)
    assert out == "0 1 2 \n"
    (request,) = service.requests
    assert request.sampling.stop == ("x",) and request.sampling.seed == 5
    assert request.sampling.temperature == 1.0, "what is not given is left to the server"


@pytest.mark.parametrize("command", [generate, chat, bench])
def test_an_unreachable_server_is_one_sentence(command):
    arguments = ["hi"] if command is generate else []
    with pytest.raises(UserError, match=r"cannot reach http://127\.0\.0\.1:1: check") as caught:
        run(command, *arguments, "--url", "http://127.0.0.1:1", input="hello\n")
    assert "\n" not in str(caught.value)


def test_a_refused_request_is_the_servers_sentence(url):
    with pytest.raises(UserError, match="'temperature' must be 0 or more"):
        run(generate, "hi", "--url", url, "--temperature", -1)


@pytest.mark.parametrize("command", [generate, chat, bench])
def test_a_key_is_sent(url, command, monkeypatch):
    """The server wants none, and yet refuses one of ours that it does not know."""
    arguments = [*(["hi"] if command is generate else []), "--url", url]
    assert run(command, *arguments, "--key", "none", input="hello\n")
    with pytest.raises(UserError, match="does not know your key"):
        run(command, *arguments, "--key", "molink-sk-x", input="hello\n")
    monkeypatch.setenv("MOLINK_API_KEY", "molink-sk-x")
    with pytest.raises(UserError, match="does not know your key"):
        run(command, *arguments, input="hello\n")


def test_a_failure_in_the_middle(url, service):
    service.failing = frozenset({0})
    with pytest.raises(UserError, match="Stage 2 was lost"):
        run(generate, "hi", "--url", url)


def test_chat_from_a_pipe_keeps_the_conversation(url, service):
    out = run(chat, "--url", url, "--max-tokens", 2, "--system", "be", input="a\n\nb\n/exit\nc\n")
    assert out == "0 1 \n0 1 \n"
    first, second = (request.prompt_token_ids for request in service.requests)
    prompt = "[system]be[user]a[assistant]0 1 [user]b"
    assert second == tuple(ord(char) % 100 for char in prompt)
    assert first == second[: len(first)]


def test_chat_can_start_over(url, service):
    run(chat, "--url", url, "--max-tokens", 1, input="a\n/new\na\n")
    first, second = service.requests
    assert first.prompt_token_ids == second.prompt_token_ids


def test_bench_prints_a_table_and_writes_json(url, tmp_path):
    path = tmp_path / "load.json"
    load = ["--concurrency", 2, "--requests", 4, "--input-tokens", 3, "--output-tokens", 5]
    out = run(bench, "--url", url, *load, "--json", path)
    assert "time to first token" in out and "4 requests finished, 0 failed" in out
    report = json.loads(path.read_text())
    for key in ("ttft_s", "tpot_s", "gap_s", "latency_s"):
        assert report[key].keys() == {"mean", "p50", "p90", "p95", "p99"}
    assert (report["finished"], report["failed"]) == (4, 0)
    assert report["tokens_per_s"] > 0
    assert report["settings"]["output_tokens"] == 5


def test_bench_shows_the_first_error_and_fails_when_nothing_finished(url, service, tmp_path):
    service.unready_reason = "Stage 2 is loading."
    path = tmp_path / "load.json"
    with pytest.raises(UserError, match="no request finished: Stage 2 is loading"):
        run(bench, "--url", url, "--requests", 2, "--json", path)
    assert json.loads(path.read_text())["failed"] == 2


def test_bench_checks_its_file_before_the_load(url, service, tmp_path):
    with pytest.raises(UserError, match="choose another --json"):
        run(bench, "--url", url, "--json", tmp_path / "missing" / "load.json")
    assert service.requests == []


@pytest.mark.parametrize("option", ["--concurrency", "--requests", "--input-tokens"])
def test_bench_refuses_nonsense_numbers(option):
    assert CliRunner().invoke(bench, [option, "0"]).exit_code == 2
