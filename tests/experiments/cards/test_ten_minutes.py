"""Everything for a card runs in small on a CPU, so that a typo costs no time on a card."""

import importlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.experiments.cards import ten_minutes
from tools.experiments.cards.figures import Figure
from tools.experiments.cards.ten_minutes import PARTS, Outcome

ROOT = Path(__file__).parents[3]
TEN_MINUTES_S = 600


def test_all_parts_run_in_small(tmp_path):
    """But the served ring, which is started below, in part, and tests, which are run anyway."""
    pytest.importorskip("triton", reason="Triton comes with the test extra, on Linux")
    command = [sys.executable, "-m", "tools.experiments.cards.ten_minutes", "--device", "cpu"]
    command += ["--without", "serve", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "ten_minutes.json").read_text())
    assert report["card"] == "CPU, in small"
    ran = [part["part"] for part in report["parts"]]
    assert ran == [p.name for p in PARTS if p.module != "pytest" and p.name != "serve"]
    assert all(part["ended"] == "ok" and part["figures"] for part in report["parts"])
    logs = [(tmp_path / f"{name}.log").read_text() for name in ran]
    assert all("| measured |" in log or "largest error" in log for log in logs)


def test_time_limits_leave_room_in_ten_minutes():
    assert sum(part.limit_s for part in PARTS) <= TEN_MINUTES_S
    names = [part.name for part in PARTS]
    first_speed = names.index("decode")
    right = {"kernel", "fused", "exactness", "graphs", "transfers"}
    assert right <= set(names[:first_speed]), "correctness first"


def test_the_page_has_every_part():
    page = (ROOT / "docs/benchmarks/gpu.md").read_text(encoding="utf-8")
    rows = [line.split(" | ")[:2] for line in page.partition("| part |")[2].splitlines()]
    told = [(name.removeprefix("| "), seconds) for name, seconds in (r for r in rows if len(r) > 1)]
    assert [(part.name, f"{part.limit_s:g}") for part in PARTS] == told[1 : 1 + len(PARTS)]


def test_what_parts_name_is_there():
    for part in PARTS:
        if part.module == "pytest":
            assert all((ROOT / given[0]).is_file() for given in part.arguments)
        else:
            assert hasattr(
                importlib.import_module(f"tools.experiments.cards.{part.module}"), "main"
            )


@pytest.fixture
def one_part(monkeypatch):
    """A part that is not run: `ended` of it is what its test says."""

    def named(part, ended):
        monkeypatch.setattr(ten_minutes, "PARTS", (part,))
        monkeypatch.setattr(ten_minutes, "_run_apart", lambda *_: ended)
        monkeypatch.setattr(ten_minutes, "card_name", lambda _: "RTX 3060")

    return named


def test_figures_are_written_into_the_page_also_when_a_part_fails(one_part, tmp_path):
    part = replace(PARTS[0], arguments=((), ()))
    one_part(part, "took over 30 s")
    for folder, value in zip(part.folders(tmp_path), (3.0, 2.0), strict=True):
        folder.mkdir(parents=True)
        figures = [vars_of(Figure("layer", value, "ms", 0.1, 1.0)), vars_of(Figure("name", "x"))]
        (folder / "facts.json").write_text(json.dumps({"figures": figures}))
    page = tmp_path / "page.md"
    page.write_text("<!-- make gpu -->\n<!-- end of make gpu -->\n")
    arguments = ["--out", str(tmp_path), "--page", str(page)]
    result = CliRunner().invoke(ten_minutes.main, arguments)
    assert result.exit_code != 0 and "facts took over 30 s" in result.output
    told = page.read_text()
    assert "### RTX 3060" in told and "| facts | what is this machine | took over 30 s |" in told
    assert "| layer | 3 ms | 0.1 to 1 | missed |" in told, "the worse of two"


def vars_of(figure: Figure) -> dict:
    return {name: getattr(figure, name) for name in Figure.__slots__}


def test_a_command_that_fails_and_one_that_takes_too_long(tmp_path):
    part = replace(PARTS[0], limit_s=60.0)
    with (tmp_path / "log").open("w") as log:
        assert ten_minutes._run_apart(part, [["no_such_module"]], log) == "failed (1)"
        late = replace(part, limit_s=0.0)
        assert ten_minutes._run_apart(late, [["http.server", "0"]] * 2, log) == "took over 0 s"
    assert "No module named no_such_module" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--only", "nothing"], "no part is called nothing"), (["--page", __file__], "say nothing")],
)
def test_what_makes_no_sense_is_refused(arguments, words, tmp_path):
    given = ["--device", "cpu", "--out", str(tmp_path), *arguments]
    result = CliRunner().invoke(ten_minutes.main, given)
    assert result.exit_code == 1 and words in result.output


def test_a_prediction_can_be_missed_on_either_side():
    figure = Figure("layer", 0.5, "ms", 0.1, 0.6)
    assert not figure.is_missed and figure.predicted == "0.1 to 0.6" and figure.shown == "0.5 ms"
    assert replace(figure, value=0.7).is_missed and replace(figure, value=0.05).is_missed
    assert not replace(figure, high=None, value=99.0).is_missed
    assert not Figure("name", "x", "", 0, 1).is_missed
    assert Outcome("a", "b", "ok", 1.0, (figure, replace(figure, value=9.0))).missed == 1
