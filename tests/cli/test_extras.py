"""Commands whose extra is not installed end with one sentence, and 2; all others need none."""

import sys
import tomllib
from pathlib import Path

import pytest

from molink.cli import main
from molink.cli.extras import PACKAGES, SIMULATOR
from molink.importing.planned import planned_gguf
from tests.checkpoint.gguf.written import write_gguf
from tests.cli.test_importing import DOWN, LLAMA, SMALLEST, WHOLE

ROOT = Path(__file__).parents[2]
NAMED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


@pytest.fixture
def gguf_file(tmp_path):
    return str(write_gguf(tmp_path / "m.gguf", LLAMA | SMALLEST, [*WHOLE, DOWN]))


@pytest.fixture
def said(monkeypatch, capsys):
    """What `molink` says where no extra is installed, and what it exits with."""
    for package in PACKAGES.values():
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(main, "_brought", dict)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["molink", *words])
        with pytest.raises(SystemExit) as ended:
            main.main()
        told = capsys.readouterr()
        return ended.value.code, told.out + told.err

    return run


def sentence(command):
    return (
        f"molink: The command {command} needs more packages: run "
        f"`sh deploy/install.sh --coordinator`, or `pip install 'molink[{command}]'`.\n"
    )


def test_the_simulator_says_what_brings_it(said):
    assert said("sim", "run") == (2, sentence("sim"))
    assert "  sim " not in said("--help")[1]


def test_the_dashboard_says_what_brings_its_screen(said, monkeypatch):
    monkeypatch.setattr("molink.cli.dashboard._has_terminal", lambda: True)
    for words in ((), ("--replay", "none")):
        assert said("dashboard", *words) == (2, sentence("dashboard"))


def test_the_dashboards_lines_need_nothing_more(said):
    assert "cannot read none" in said("dashboard", "--replay", "none")[1]


def test_an_import_of_a_gguf_file_says_what_brings_it_before_it_writes(said, gguf_file, tmp_path):
    assert said("import", gguf_file) == (2, sentence("import"))
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_a_folder_in_fewer_bits_and_a_plan_of_a_gguf_file_need_nothing_more(
    said, gguf_file, tmp_path
):
    words = ("demo", "--weights", "int8", "--out", str(tmp_path))
    assert "is there already" in said("import", *words)[1]
    assert planned_gguf(Path(gguf_file)).name == "m.gguf"


def test_the_extras_are_named_as_the_sentences_say():
    assert {*PACKAGES, SIMULATOR} <= NAMED.keys()
    assert {name: NAMED[name][0].split(">=")[0] for name in PACKAGES} == PACKAGES
    assert NAMED[SIMULATOR] == ["molink-sim"]
