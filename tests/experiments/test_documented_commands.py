"""Every experiment is a command that its module and the documentation name alike."""

import importlib
import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"python -m (tools\.experiments\.[\w.]+)([^`|\n]*)")
MADE_A_COMMAND = re.compile(r"^@(?:ring_)?experiment", re.MULTILINE)

DOCUMENTED = sorted(
    {
        (module, words.strip())
        for page in (ROOT / "docs").rglob("*.md")
        for module, words in COMMAND.findall(page.read_text(encoding="utf-8"))
    }
)
EXPERIMENTS = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "tools" / "experiments").rglob("*.py")
    if file.parent.name != "harness" and MADE_A_COMMAND.search(file.read_text(encoding="utf-8"))
)


def options_of(module: str) -> set[str]:
    command = importlib.import_module(module).main
    return {name for option in command.params for name in option.opts if name.startswith("--")}


@pytest.mark.parametrize("module", EXPERIMENTS)
def test_each_starts_and_is_named_in_its_module(module):
    command = importlib.import_module(module)
    assert isinstance(command.main, click.Command)
    result = CliRunner().invoke(command.main, ["--help"])
    assert result.exit_code == 0 and "--out" in result.output
    arguments = [p for p in command.main.params if isinstance(p, click.Argument)]
    words = "".join(f" {str(one.name).upper()}" for one in arguments)
    assert f"python -m {module}{words} --out DIR\n" in command.__doc__


@pytest.mark.parametrize(("module", "words"), DOCUMENTED)
def test_documented_options_are_there(module, words):
    typed = {word for word in words.split() if word.startswith("--")}
    assert module in EXPERIMENTS
    assert "--out" in typed and typed <= options_of(module)


def test_all_are_documented():
    assert set(EXPERIMENTS) == {module for module, _ in DOCUMENTED}
