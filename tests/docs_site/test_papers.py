"""The pages of papers name places that are in the code, and commands that can be typed."""

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.docs_site.pages import ROOT, SPAN
from tests.docs_site.test_commands_of_pages import objection
from tools.papers.__main__ import Run, page_text, run
from tools.papers.rows import INDEX, Row, all_rows, commands_to_run, is_run, pages, rows_of

VERDICTS = ("works", "answered", "open")

PLACE = re.compile(r"`([\w./-]+\.\w+)`(?:: (`[\w.-]+`(?:, `[\w.-]+`)*))?")
COUNTED = re.compile(r"^\| \[[^]]+\]\(([\w-]+\.md)\) \|[^|]*\|(.*)\|$", re.MULTILINE)
PROGRAMS = re.compile(r"^(?:molink|python -m) \S|^tests/\S+\.py$")


def places(where: str) -> Iterator[tuple[str, list[str]]]:
    """Each path that a cell names, and the names in it."""
    for path, names in PLACE.findall(where):
        yield path, SPAN.findall(names)


@cache
def defined(path: Path) -> frozenset[str]:
    """Names that a Python file defines at its top, and those of its classes as CLASS.NAME."""
    found: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        names = _names(node)
        found.update(names)
        if isinstance(node, ast.ClassDef):
            found.update(f"{node.name}.{one}" for part in node.body for one in _names(part))
    return frozenset(found)


def _names(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=targets):
            parts = (part for target in targets for part in ast.walk(target))
            return [part.id for part in parts if isinstance(part, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
    return []


def missing_place(path: str, names: list[str]) -> str:
    """What of a named place is not there; empty where all of it is."""
    file = ROOT / path
    if not file.is_file():
        return f"there is no {path}"
    if file.suffix == ".py":
        lacking = [name for name in names if name not in defined(file)]
    else:
        text = file.read_text(encoding="utf-8")
        lacking = [name for name in names if not re.search(rf"\b{re.escape(name)}\b", text)]
    return f"{path} has no {', '.join(lacking)}" if lacking else ""


def missing_command(command: str) -> str:
    """Why a command or the path of a test cannot be typed; empty where it can."""
    if command.startswith("tests/"):
        return "" if (ROOT / command).is_file() else f"there is no {command}"
    if command.startswith("python -m "):
        module = ROOT / Path(*shlex.split(command)[2].split("."))
        is_there = module.with_suffix(".py").is_file() or (module / "__main__.py").is_file()
        return "" if is_there else f"there is no module {module.name}"
    return objection(command.removeprefix("molink "))


ROWS = all_rows()
NAMES = [page.name for page in pages()]


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    """The reader's own files, by the names that the pages give them."""
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)


def test_all_five_systems_have_rows_that_are_numbered_through():
    numbers = {page: [row.number for row in ROWS if row.page == page] for page in NAMES}
    assert len(numbers) == 5 and all(numbers.values())
    assert all(found == [*range(1, len(found) + 1)] for found in numbers.values())


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.page}-{row.number}")
def test_a_row_is_held_by_the_code(row):
    named, commands = list(places(row.where)), row.commands
    assert [missing_place(*place) for place in named] == [""] * len(named)
    assert all(PROGRAMS.match(command) for command in commands), "no command and no test"
    assert [missing_command(command) for command in commands] == [""] * len(commands)
    assert row.verdict in VERDICTS
    assert named or row.where == "-"
    if row.verdict == "works":
        assert commands and any(names for _, names in named), "nobody can look it up"
    if row.verdict == "answered":
        assert commands and named and re.search(r"\d", row.ours), "an answer is a figure"


def test_the_index_counts_the_rows():
    text = INDEX.read_text(encoding="utf-8")
    told = {page: _numbers(cells) for page, cells in COUNTED.findall(text)}
    of = {page: [row for row in ROWS if row.page == page] for page in NAMES}
    assert told == {page: _counts(rows) for page, rows in of.items()}
    [total] = re.findall(r"^\| all \|[^|]*\|(.*)\|$", text, re.MULTILINE)
    assert _numbers(total) == _counts(ROWS)


@pytest.mark.parametrize("page", ["README.md", "docs/comparison.md"])
def test_the_systems_stand_on_the_pages_that_users_read_first(page):
    """By name in one table, the first of the README, and with the way to what is typed."""
    text = (ROOT / page).read_text(encoding="utf-8")
    tables = re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE)
    naming = [one for one in tables if all(f"papers/{two.name})" in one for two in pages())]
    assert naming and "papers/README.md#switch-it-on" in text
    if page == "README.md":
        assert naming == tables[:1]


def _numbers(cells: str) -> list[int]:
    return [int(cell) for cell in cells.split("|")]


def _counts(rows: list[Row]) -> list[int]:
    of = Counter(row.verdict for row in rows)
    return [len(rows), *(of[verdict] for verdict in VERDICTS)]


def test_each_bad_input_names_a_test_that_is_there():
    text = INDEX.read_text(encoding="utf-8").partition("## Bad input")[2].partition("\n## ")[0]
    rows = [line for line in text.splitlines() if re.search(r"test_\w+`", line)]
    assert len(rows) == 9
    file = ""
    for names in (re.findall(r"`([\w/]+\.py)`|`(test_\w+)`", row) for row in rows):
        for path, name in names:
            file = path or file
            assert not name or missing_place(file, [name]) == ""


def test_make_papers_runs_what_is_simulated_and_can_be_typed():
    commands = commands_to_run(ROWS)
    assert len(commands) > 8 and all(is_run(command) for command in commands)
    assert [missing_command(command) for command in commands] == [""] * len(commands)
    assert len(set(commands)) == len(commands)


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("molink sim cell --paper lamina", True),
        ("molink sim cache --trace FILE --show hit-rate --out DIR", False),
        ("molink bench --url URL --trace FILE", False),
        ("python -m tools.experiments.links.contention --out DIR", False),
        ("tests/stage/test_next_decode.py", False),
    ],
)
def test_what_needs_a_file_a_model_or_a_ring_is_not_run(command, runs):
    assert is_run(command) is runs


def test_what_a_command_prints_stands_below_the_rows_that_name_it():
    line = "| 3 | a mechanism | - | `molink sim cell --paper cuts` | 0.5 s | 0.6 s | answered |"
    [row] = rows_of("x.md", line)
    done = Run("molink sim cell --paper cuts", 0, 1.0, "a table\n")
    failed = replace(done, status=2, printed="a sentence\n")
    other = replace(done, command="molink sim cell --paper long")
    text = page_text("x.md", [row], [done, other])
    assert "row 3, a mechanism. The paper: 0.5 s. The page: 0.6 s" in text
    assert "a table" in text and "long" not in text and "failed" not in text
    assert "failed with status 2" in page_text("x.md", [row], [failed])


def test_a_command_is_run_as_it_is_typed():
    assert run("molink sim cell --help").status == 0
    wrong = run("molink sim cell --paper lamia")
    assert wrong.status != 0 and "lamia" in wrong.printed


@pytest.mark.parametrize(
    ("path", "names", "says"),
    [
        ("molink/stage/loop.py", ["StageLoop", "StageLoop.run"], ""),
        ("molink/stage/lop.py", [], "no molink/stage/lop.py"),
        ("molink/stage/loop.py", ["StageLop"], "has no StageLop"),
        ("molink/stage/loop.py", ["StageLoop.walk"], "has no StageLoop.walk"),
        ("windows/install.ps1", ["no_such_word"], "has no no_such_word"),
    ],
)
def test_a_wrong_place_is_noticed(path, names, says):
    found = missing_place(path, names)
    assert says in found and bool(says) == bool(found)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("molink sim cell --paper lamina", ""),
        ("molink sim cell --paper lamia", "lamia"),
        ("python -m tools.experiments.links.contention", ""),
        ("python -m tools.experiments.links.contentions", "no module"),
        ("tests/end_to_end/test_cells.py", ""),
        ("tests/end_to_end/test_cell.py", "there is no"),
    ],
)
def test_a_wrong_command_is_noticed(command, says):
    found = missing_command(command)
    assert says in found and bool(says) == bool(found)
