"""`molink sim pools`: the figures' commands, with fewer requests."""

import json

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_sim.cli import main
from molink_sim.pools import figures, overload
from molink_sim.pools.overload import correlation


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    monkeypatch.setattr(figures, "REQUESTS", 60)
    monkeypatch.setattr(overload, "REQUESTS", 60)
    monkeypatch.setattr(overload, "SWING_S", 20)
    monkeypatch.setattr(overload, "SETTLED_S", 2)


@pytest.fixture
def trace(tmp_path):
    lines = [
        {
            "timestamp": 1_000 * number,
            "input_length": 4_096,
            "output_length": 20,
            "hash_ids": [number % 3 * 8 + block for block in range(8)],
        }
        for number in range(30)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def asked(*arguments):
    runner = CliRunner(env={"COLUMNS": "250"})
    return runner.invoke(main, ["pools", "--quiet", *map(str, arguments)])


def sentence(found):
    """What a user would read: click's own words, or the error that `molink` prints."""
    assert isinstance(found.exception, (UserError, SystemExit))
    return f"{found.output} {found.exception}"


def rows_of(figure, path):
    found = asked("--paper", figure, "--json", path)
    assert found.exit_code == 0, found.output
    tables = json.loads(path.read_text())["tables"].values()
    return [row for rows in tables for row in rows]


@pytest.mark.parametrize("figure", ["fig9", "fig10", "fig11"])
def test_pools_hold_more_than_the_papers_vllm(figure, tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "REQUESTS", 200)
    rows = [row for row in rows_of(figure, tmp_path / "found.json") if "nodes" in row]
    by_load = {}
    for row in rows:
        by_load.setdefault(row["load"], []).append(row["held, req./s"])
    for pools, first, *_ in by_load.values():
        assert pools > first > 0
    assert {row["nodes"].split(",")[0] for row in rows} <= {"3P+1D", "4M", "10P+10D", "20M"}


def test_faster_lines_hold_more(tmp_path):
    rows = [row for row in rows_of("lines", tmp_path / "found.json") if "line" in row]
    of = [row["held, req./s"] for row in rows if row["load"] == "ArXiv"]
    assert of == sorted(of) and of[0] < of[-1]


def test_refusals_and_swings_stand_beside_the_papers(tmp_path):
    found = asked("--paper", "rejections", "--seeds", 2, "--decode", 1, "--rate", 25)
    assert found.exit_code == 0, found.output
    assert all(word in found.output for word in ("baseline", "18.2%", "of 2", "0.90"))
    found = asked("--paper", "swing", "--json", tmp_path / "swing.json")
    [rows] = json.loads((tmp_path / "swing.json").read_text())["tables"].values()
    assert [row["policy"].split(",")[0] for row in rows] == ["naive", "predicted", "predicted"] * 2


def test_a_trace_is_played_by_every_policy(trace):
    found = asked("--paper", "scheduling", "--trace", trace)
    assert found.exit_code == 0, found.output
    assert all(word in found.output for word in ("random", "kvcache-centric", "19.650"))
    assert asked("--paper", "fig11", "--trace", trace).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--paper", "fig12"], "fig12"),
        (["--paper", "scheduling"], "--trace"),
        (["--paper", "fig9", "--trace", "FILE"], "fig9 draws"),
        (["--paper", "rejections", "--rate", "nan"], "--rate"),
        (["--paper", "rejections", "--decode", "0"], "--decode"),
        (["--paper", "scheduling", "--trace", "missing.jsonl"], "missing.jsonl"),
    ],
)
def test_what_cannot_be_is_a_sentence(arguments, says):
    found = asked(*arguments)
    assert found.exit_code != 0 and says in sentence(found)
    assert "Traceback" not in found.output


def test_a_trace_whose_time_goes_back_is_refused(trace):
    lines = trace.read_text().splitlines()
    trace.write_text("\n".join(reversed(lines)))
    assert "times go back" in sentence(asked("--paper", "scheduling", "--trace", trace))


def test_correlation_is_pearsons():
    assert correlation([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert correlation([1, 2, 3], [5, 5, 5]) == 0
