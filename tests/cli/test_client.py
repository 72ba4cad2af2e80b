"""`molink generate`, `chat` and `bench` against a running server."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from molink.cli.client.bench import bench
from molink.cli.client.chat import chat
from molink.cli.client.generate import generate
from molink.cli.client.status import status
from molink.errors import UserError
from molink.report.cluster import ClusterReport
from molink.report.plain import from_plain
from tests.dashboard.scenes import cluster


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


@pytest.mark.parametrize("message", ["/set temperature 0", "/nothing"])
def test_a_word_that_chat_does_not_know_is_never_sent(url, service, message):
    with pytest.raises(UserError, match="/help lists what there is"):
        run(chat, "--url", url, input=f"{message}\n")
    assert service.requests == []


def test_chat_takes_several_lines_and_asks_again(url, service, tmp_path):
    saved = tmp_path / "talk.json"
    typed = f'/?\n/system be\n"""/one\ntwo"""\n/retry\n/save {saved}\n/bye\nmore\n'
    out = run(chat, "--url", url, "--max-tokens", 1, input=typed)
    assert "/retry" in out
    first, second = (request.prompt_token_ids for request in service.requests)
    assert first == second == tuple(ord(char) % 100 for char in "[system]be[user]/one\ntwo")
    roles = [(one["role"], one["content"]) for one in json.loads(saved.read_text())["messages"]]
    assert roles == [("system", "be"), ("user", "/one\ntwo"), ("assistant", "0 ")]
    with pytest.raises(UserError, match="cannot be written"):
        run(chat, "--url", url, input=f"/save {saved}\n")


def test_a_path_is_a_message_of_its_own(url, service):
    run(chat, "--url", url, "--max-tokens", 1, input="/etc/hosts\n")
    assert len(service.requests) == 1


@pytest.mark.parametrize("tail", ["/v1", "/v1/", "/"])
def test_the_server_may_come_from_the_environment_as_openais_clients_have_it(
    url, service, tail, monkeypatch
):
    monkeypatch.setenv("MOLINK_URL", url + tail)
    assert run(generate, "hi", "--max-tokens", 1) == "0 \n"
    assert run(status, "--json")


def test_status_says_what_is_served(url, service, monkeypatch):
    report = replace(service.cluster(), model="tiny")
    monkeypatch.setattr(service, "cluster", lambda: report)
    told = json.loads(run(status, "--url", url, "--json"))
    assert (told["url"], told["unready_reason"], told["running"]) == (url, None, 0)
    out = run(status, "--url", url)
    assert out.startswith(f"tiny at {url}. It serves.\nRequests: 0 running, 0 waiting.")
    report = replace(service.cluster(), unready_reason="Stage 2 is loading.")
    monkeypatch.setattr(service, "cluster", lambda: report)
    result = CliRunner().invoke(status, ["--url", url])
    assert result.exit_code == 1 and "Stage 2 is loading." in result.output


def test_status_numbers_rings_as_they_are_and_names_the_model_as_users_do(
    url, service, monkeypatch
):
    (ring,) = cluster()["rings"]
    report = from_plain(
        ClusterReport, cluster(rings=[ring | {"ring": 7}, ring | {"ring": 4}], model="tiny")
    )
    monkeypatch.setattr(service, "cluster", lambda: report)
    monkeypatch.setattr(service, "card", replace(service.card, served_names=("ours", "other")))
    lines = run(status, "--url", url).splitlines()
    assert lines[0].startswith(f"ours (tiny) at {url}.")
    assert [line.partition(",")[0] for line in lines[2:4]] == ["Ring 4", "Ring 7"]
    told = json.loads(run(status, "--url", url, "--json"))
    assert [ring[0]["ring"] for ring in told["rings"]] == [4, 7]


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


def test_json_alone_is_what_bench_prints(url):
    out = run(bench, "--url", url, "--requests", 1, "--quiet", "--json")
    assert json.loads(out)["finished"] == 1


def test_bench_shows_the_first_error_and_fails_when_nothing_finished(url, service, tmp_path):
    service.unready_reason = "Stage 2 is loading."
    path = tmp_path / "load.json"
    with pytest.raises(UserError, match="no request finished: Stage 2 is loading"):
        run(bench, "--url", url, "--requests", 2, "--json", path)
    report = json.loads(path.read_text())
    assert (report["failed"], report["failures"]) == (2, {"503": 2})


def test_bench_checks_its_file_before_the_load(url, service, tmp_path):
    with pytest.raises(UserError, match="choose another --json"):
        run(bench, "--url", url, "--json", tmp_path / "missing" / "load.json")
    assert service.requests == []


@pytest.mark.parametrize("option", ["--concurrency", "--requests", "--input-tokens"])
def test_bench_refuses_nonsense_numbers(option):
    assert CliRunner().invoke(bench, [option, "0"]).exit_code == 2
