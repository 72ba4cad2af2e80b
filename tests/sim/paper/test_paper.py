"""The paper's tables in small: ten minutes instead of thirty, bounds that a mistake would break."""

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_sim.cli import main
from molink_sim.paper.experiment import PUBLISHED, TABLES, PaperRow, Setting, run_setting
from molink_sim.paper.report import draw_paper, paper_json, paper_tables
from molink_sim.report.summary import summary, to_json
from molink_sim.systems import SYSTEMS

SHORT_S = 660.0


@pytest.fixture(scope="module")
def low_rate():
    """Summaries of all systems at 0.1 requests/s."""
    return {
        name: summary(run_setting(Setting(system, 0.1, duration_s=SHORT_S)))
        for name, system in SYSTEMS.items()
    }


@pytest.mark.parametrize("name", ["vllm", "helix", "paper"])
def test_the_compared_systems_are_as_slow_as_published(low_rate, name):
    published = PUBLISHED[name, 0.1]
    assert low_rate[name]["ttft_s"]["mean"] == pytest.approx(published.ttft_s, rel=0.3)
    assert low_rate[name]["tpot_s"]["mean"] == pytest.approx(published.tpot_s, rel=0.5)


def test_molink_today_is_what_the_hand_arithmetic_says(low_rate):
    published = PUBLISHED["paper", 0.1]
    assert low_rate["molink"]["ttft_s"]["mean"] < 0.3 * published.ttft_s
    assert 0.1 < low_rate["molink"]["tpot_s"]["mean"] < 0.5 * published.tpot_s


def test_more_delay_and_less_bandwidth_make_everything_slower():
    def ttft_s(**changes):
        setting = replace(Setting(SYSTEMS["vllm"], 0.1, duration_s=300.0), **changes)
        return summary(run_setting(setting))["ttft_s"]["mean"]

    assert ttft_s(mbps=400.0) < ttft_s() < ttft_s(mbps=60.0)
    assert ttft_s(one_way_ms=10.0) < ttft_s(one_way_ms=50.0)


def test_no_row_has_constants_of_its_own():
    for row in TABLES[2]():
        name, _, codec = row.name.partition(", ")
        assert row.setting.system == replace(SYSTEMS[name], codec=codec or "raw")


@pytest.mark.parametrize("table", [2, 5])
def test_tables_hold_every_published_row(table):
    rows = [replace(row, summary={"finished": 1, "requests": 1}) for row in TABLES[table]()]
    published = [row for row in rows if row.published.ttft_s is not None]
    assert len(published) == {2: 16 + 16 + 12, 5: 4}[table]
    tables = paper_tables(rows)
    assert sum(len(one.rows) for one in tables) == len(rows)
    assert all(len(line) == len(one.head) for one in tables for line in one.rows)
    found = json.loads(to_json(paper_json(table, rows, "generated")))
    assert found["table"] == table and len(found["rows"]) == len(rows)


def test_error_and_factor():
    row = next(iter(TABLES[2]()))
    ours = {"ttft_s": {"mean": 3.729}, "tpot_s": None, "finished": 1, "requests": 1}
    [entry] = paper_json(2, [replace(row, summary=ours)], "generated")["rows"]
    assert entry["error_percent"] == {"ttft_s": 10.0, "tpot_s": None, "latency_s": None}


def test_a_section_that_is_none():
    with pytest.raises(UserError, match="no section"):
        CliRunner().invoke(main, ["paper", "--section", "x"], catch_exceptions=False)


def _with_means(row: PaperRow) -> PaperRow:
    """As if it had been run."""
    means = {figure: {"mean": 1.0} for figure in ("ttft_s", "tpot_s", "latency_s")}
    return replace(row, summary=means)


def test_every_sweep_gets_its_picture(tmp_path):
    rows = [_with_means(row) for row in TABLES[2]()]
    drawn = draw_paper(tmp_path / "new", rows)
    assert [path.name for path in drawn] == [
        "paper_rate.png",
        "paper_bandwidth.png",
        "paper_latency.png",
    ]
    assert all(path.stat().st_size > 10_000 for path in drawn)


def test_a_table_without_sweeps_has_no_picture(tmp_path):
    assert draw_paper(tmp_path, [_with_means(row) for row in TABLES[5]()]) == []
