"""`molink bench --sessions` against a running server, and its figures."""

import json

import pytest
from click.testing import CliRunner

from molink.bench.load import run_load
from molink.bench.runner import RequestRecord
from molink.bench.sessions import SessionSettings, TurnRecord, sessions_report
from molink.cli.client.bench import bench
from molink.errors import UserError

TURNS = [{"new_tokens": 6, "answer_tokens": 3}, {"new_tokens": 4, "answer_tokens": 2}]


@pytest.fixture
def sessions(tmp_path):
    path = tmp_path / "sessions.jsonl"
    row = {"prefix": "a", "prefix_tokens": 8, "turns": TURNS}
    path.write_text("".join(json.dumps(row) + "\n" for _ in range(3)))
    return path


async def test_a_turn_goes_on_from_the_answer_before_it_and_beside_a_control(
    url, service, sessions
):
    ended, counts = [], []
    settings = SessionSettings(url, str(sessions), concurrency=1, warmup=0)
    found = await run_load(settings, ended.append, counts.append)
    assert (counts, len(ended), found["finished"]) == ([6], 6, 6)
    prompts = [tuple(one.prompt_token_ids) for one in service.requests]
    assert list(map(len, prompts)) == [14, 4, 21] * 3
    answered = [one.sampling.max_tokens for one in service.requests]
    assert answered == [3, 1, 2] * 3
    assert len({prompt[:8] for prompt in (prompts[0], prompts[3], prompts[6])}) == 1
    assert len({prompt[8:14] for prompt in (prompts[0], prompts[3], prompts[6])}) == 3
    first, control, second = prompts[:3]
    assert second[:14] == first and second[17:] != control
    assert list(second[14:17]) == ended[0].token_ids, "the answer is part of the history"
    assert [one["seen_tokens"] for one in found["turn_records"]] == [0, 17, 8, 17, 8, 17]


async def test_so_many_sessions_at_a_time(url, service, sessions):
    await run_load(SessionSettings(url, str(sessions), concurrency=2, warmup=0))
    assert service.running_most <= 2 and len(service.requests) == 9


async def test_a_session_ends_with_a_turn_that_fails_and_the_others_go_on(url, service, sessions):
    service.failing = frozenset({0})
    settings = SessionSettings(url, str(sessions), concurrency=1, warmup=0)
    found = await run_load(settings)
    assert (found["failed"], found["finished"]) == (1, 4)
    assert found["turns"]["1 to 4"]["count"] == 4


async def test_a_session_over_the_models_length_is_refused_before_the_load(url, service, tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"turns": [{"new_tokens": 118, "answer_tokens": 3}]}))
    with pytest.raises(UserError, match=r"session 1 comes to 121 tokens.* 120"):
        await run_load(SessionSettings(url, str(path), concurrency=1))
    assert service.requests == []


def record(turn, seen, cached, ttft_s, control_s):
    def answer(seconds):
        return RequestRecord(0.0, seconds, [seconds], cached_tokens=cached)

    control = None if control_s is None else answer(control_s)
    return TurnRecord(turn, seen + 10, seen, answer(ttft_s), control)


def test_figures_of_late_turns_are_apart_and_beside_their_own_controls():
    records = [
        record(1, 0, 0, 8.0, None),
        record(4, 100, 96, 1.0, 1.0),
        record(5, 200, 192, 2.0, 1.0),
        record(6, 300, 288, 3.0, 2.0),
        record(7, 400, 400, 9.0, 3.0),
    ]
    turns = sessions_report(records)["turns"]
    assert turns["1 to 4"]["hit_rate"] == 0.96 and turns["1 to 4"]["times_max"] == 1
    late = turns["5 on"]
    assert late["hit_rate"] == pytest.approx(880 / 900)
    assert (late["times_p50"], late["times_max"], late["ttft_p50_s"]) == (2.0, 3.0, 3.0)


def test_the_table_and_the_file(url, sessions, tmp_path):
    out = tmp_path / "report.json"
    arguments = ["--url", url, "--sessions", str(sessions), "--json", str(out)]
    result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "seen before" in result.stdout
    assert json.loads(out.read_text())["turns"]["1 to 4"]["count"] == 6


@pytest.mark.parametrize("option", ["--requests", "--input-tokens", "--rate"])
def test_lengths_are_those_of_the_file(url, sessions, option):
    with pytest.raises(UserError, match=f"{option} goes not with --sessions"):
        CliRunner().invoke(
            bench, ["--url", url, "--sessions", str(sessions), option, "3"], catch_exceptions=False
        )
