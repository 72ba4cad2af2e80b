"""The paper's tables in small: ten minutes instead of thirty, bounds that a mistake would break."""

import json
from dataclasses import replace
from functools import partial

import pytest
from click.testing import CliRunner

from molink.errors import UserError
from molink_sim.cli import main
from molink_sim.cli.paper import ASSUMABLE
from molink_sim.paper.assumptions import ASSUMPTIONS, assume
from molink_sim.paper.experiment import (
    BOUNDS,
    PUBLISHED,
    TABLES,
    PaperRow,
    Setting,
    arrivals_of,
    rows_of,
    run_setting,
)
from molink_sim.paper.report import draw_paper, paper_json, paper_tables
from molink_sim.report.summary import summary, to_json
from molink_sim.scenario import RequestArrival
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


@pytest.mark.parametrize("table", [2, 3, 4, 5])
def test_tables_hold_every_published_row(table):
    rows = [replace(row, summary={"finished": 1, "requests": 1}) for row in TABLES[table]()]
    published = [row for row in rows if row.published.ttft_s is not None]
    assert len(published) == {2: 16 + 16 + 12, 3: 16, 4: 12, 5: 4}[table]
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


def test_a_row_is_reproduced_when_all_three_means_are_near():
    row = next(iter(TABLES[2]()))

    def with_factors(ttft, tpot, latency):
        means = row.published.ttft_s * ttft, row.published.tpot_s * tpot
        found = dict(zip(BOUNDS, (*means, row.published.latency_s * latency), strict=True))
        return replace(row, summary={name: {"mean": mean} for name, mean in found.items()})

    assert with_factors(1.14, 0.76, 1.10).is_reproduced
    assert not with_factors(1.16, 0.76, 1.10).is_reproduced
    assert not with_factors(1.14, 0.74, 1.10).is_reproduced
    assert not with_factors(1.14, 0.76, 1.12).is_reproduced
    assert replace(row, summary={"ttft_s": None}).is_reproduced is False
    assert replace(with_factors(1, 1, 1), compared_with="paper").is_reproduced is None


def test_an_assumption_changes_every_row_alike():
    assert tuple(ASSUMPTIONS) == ASSUMABLE
    assert all(one.says for one in ASSUMPTIONS.values())
    plain = Setting(SYSTEMS["vllm"], 0.1)
    assert assume(plain, []) == plain
    changed = assume(plain, ASSUMABLE)
    assert changed.system.prompts_alone and not changed.kv_is_bounded
    assert changed.requests_at_once_max == 256 and changed.is_stretched
    assert changed.system.hop_software_s == 0.03
    molink = assume(Setting(SYSTEMS["molink"], 0.1), ["software-30ms"])
    assert molink.system == SYSTEMS["molink"], "it has a transport of its own"
    rows = rows_of(3, None, 0, duration_s=90.0, assumed=partial(assume, names=["no-kv-limit"]))
    assert not next(rows).setting.kv_is_bounded


def test_prompts_alone_are_never_on_two_links_at_once():
    def busy(*names):
        setting = Setting(SYSTEMS["helix"], 0.7, duration_s=300.0)
        outcome = run_setting(assume(setting, ["no-kv-limit", *names]))
        return sum(link.busy_share for link in outcome.links[:2])

    assert busy("prompts-alone") < 1.1 < busy()


def test_who_comes_beyond_those_at_once_waits_and_is_timed_from_when_sent():
    setting = Setting(SYSTEMS["vllm"], 0.7, duration_s=300.0)
    free, held = (
        run_setting(replace(setting, requests_at_once_max=at_once)) for at_once in (None, 4)
    )
    assert len(held.requests) < len(free.requests)
    ends = [
        (one.arrived_s, one.token_times_s[-1] if one.finished else 1e9) for one in held.requests
    ]
    assert max(sum(a <= at < b for a, b in ends) for at, _ in ends) == 4
    assert summary(held)["ttft_s"]["mean"] < summary(free)["ttft_s"]["mean"]


def test_first_minutes_are_played_slower():
    trace = [RequestArrival(float(at), 100 + at, 5) for at in range(400)]
    setting = replace(Setting(SYSTEMS["vllm"], 0.1), is_stretched=True)
    found = arrivals_of(setting, trace)
    assert len(found) == 186 and found[1].at_s == pytest.approx(10.0, rel=0.01)
    assert [one.input_tokens for one in found] == [*range(100, 286)]
    with pytest.raises(UserError, match="--trace"):
        arrivals_of(setting, None)


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
