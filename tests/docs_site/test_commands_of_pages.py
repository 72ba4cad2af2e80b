"""Every command in every page is one that can be typed: its words, options and values are parsed.

They are parsed as the command line parses them, those between backticks too; what stands in a block
is executed in test_commands_run. What a page lets the reader fill in (MODEL, INVITE) is a value;
files that must exist are made.
"""

import re
import shlex

import click
import pytest

from molink.cli.main import cli
from tests.docs_site.pages import PAGES, ROOT, mentions, of_all_pages, typed_lines

PLACEHOLDERS = {"N": "1", "<kind>": "link-cut"}
"""Of values that are no free text."""

SHOWN_BY_A_PROGRAM = "agent join molink1-DgB7cKyW..."


TYPED = of_all_pages(typed_lines)
MENTIONED = of_all_pages(mentions)


def called(line: str) -> tuple[click.Context, list[str]]:
    """The command that a line calls, and the words that are left for it."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(line)]
    context = click.Context(cli, info_name="molink")
    while isinstance(group := context.command, click.Group) and words:
        child = group.get_command(context, words[0])
        if child is None:
            break
        context = click.Context(child, context, words.pop(0))
    bare_group = isinstance(context.command, click.Group) and words and words[0][0] != "-"
    assert not bare_group, f"{context.command_path} has no command {words[0]}"
    return context, words


def objection(line: str) -> str:
    """What the command line objects to in a line; empty where it can be typed so."""
    context, words = called(line)
    if not {"--help", "--version", "-h"} & set(words):
        try:
            context.command.make_context(context.info_name, words, context.parent)
        except click.UsageError as error:
            return error.format_message()
    return ""


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    """In the reader's folder there are the files of which the pages speak."""
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    for line, _ in TYPED:
        for word in shlex.split(line):
            if re.fullmatch(r"FILE|events\.\d|[\w-]+\.(?:toml|csv|secret|pem)", word):
                (tmp_path / word).touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("line", "page"), TYPED, ids=[f"{page}: {line}" for line, page in TYPED])
def test_a_line_can_be_typed(line, page):
    assert line == SHOWN_BY_A_PROGRAM or objection(line) == ""


@pytest.mark.parametrize(
    ("line", "page"), MENTIONED, ids=[f"{page}: {line}" for line, page in MENTIONED]
)
def test_what_is_mentioned_is_there(line, page):
    context, words = called(line)
    options = {name for option in context.command.params for name in option.opts} | {"--help"}
    assert {word for word in words if word.startswith("--")} <= options


def test_commands_are_found_and_wrong_ones_noticed():
    assert len(TYPED) > 50 and len(MENTIONED) > 50
    blocks = "Text:\n\n    molink up demo | cat\n\n```\nx/molink serve demo \\\n  --port 0\n```\n"
    page = f"{blocks}`molink up`"
    assert list(typed_lines(page)) == ["up demo", "serve demo --port 0"]
    assert list(mentions(page)) == ["up"]
    assert "'--nodse'" in objection("serve demo --nodse 3")
    assert "'three'" in objection("serve demo --nodes three")
    with pytest.raises(AssertionError):
        objection("agent jion INVITE")


def test_targets_of_make_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        word
        for page in PAGES
        for word in re.findall(r"(?m)(?:`|^ *)make ([a-z]+)", page.read_text(encoding="utf-8"))
    }
    assert named and named <= targets
