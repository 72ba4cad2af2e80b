"""Help in sections with examples, and a sentence for names that other programs have."""

import shlex

import click
import pytest
from click.testing import CliRunner

from molink.cli.help import foreign_names
from molink.cli.main import cli
from molink.terminal.command_line import SectionedCommand
from tests.architecture.test_contracts import commands_of

COMMANDS = commands_of(cli)


def said(*words: str) -> str:
    """What is said of a command line that is refused, as one line."""
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2, result.output
    return " ".join(result.output.split())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("run", "llama3"), "`molink serve MODEL` serves a model on this PC"),
        (("list",), "`molink node list` the PCs that joined"),
        (("join", "x"), "`molink agent join INVITE`"),
        (("serve", "demo", "--tensor-parallel-size", "2"), "--nodes N"),
        (("serve", "demo", "--tensor-parallel-size=2"), "--nodes N"),
        (("serve", "demo", "--gpus", "2"), "--device cuda:N"),
        (("serve", "demo", "-ngl", "99"), "There is no -ngl here."),
        (("up", "demo", "--weights", "int4"), "molink import FOLDER --weights int4"),
        (("serve", "demo", "--api-key", "x"), "`molink key create`"),
        (("chat", "-m", "llama3"), "leave --model out"),
        (("chat", "--host", "x"), "--url"),
        (("-v",), "--log-format json"),
        (("sevre", "demo"), "Did you mean 'serve' or 'service'?"),
        (("node", "lost"), "Did you mean 'list'?"),
        (("nothing-like-it",), "No such command 'nothing-like-it'."),
        (("serve", "demo", "--nothing-like-it"), "No such option '--nothing-like-it'."),
        (("serve",), "Missing argument 'MODEL'."),
    ],
)
def test_what_there_is_not_gets_a_sentence(words, sentence):
    assert sentence in said(*words)


def test_words_of_others_are_no_commands_of_ours():
    assert not set(foreign_names.WORDS) & set(COMMANDS)
    assert not set(foreign_names.SAME_WORDS) & set(COMMANDS)
    assert set(foreign_names.SAME_WORDS.values()) <= set(COMMANDS)


@pytest.mark.parametrize("words", [("node", "ls"), ("key", "ls"), ("ls",), ("ps",)])
def test_ls_lists(words):
    assert CliRunner().invoke(cli, [*words, "--help"]).exit_code == 0


def test_model_may_be_an_option():
    by_option = CliRunner().invoke(cli, ["serve", "-m", "no such model", "--threads", "0"])
    as_argument = CliRunner().invoke(cli, ["serve", "no such model", "--threads", "0"])
    assert str(by_option.exception) == str(as_argument.exception)
    assert "--threads" in str(by_option.exception)
    twice = CliRunner().invoke(cli, ["serve", "one", "--model", "two"])
    assert "given twice" in str(twice.exception)


def leaves():
    return {name: one for name, one in COMMANDS.items() if not isinstance(one, click.Group)}


@pytest.mark.parametrize("name", sorted(set(leaves()) - {"agent set"}))
def test_each_command_has_two_examples_that_can_be_typed(name):
    epilog = leaves()[name].epilog or ""
    lines = [line.strip() for line in epilog.splitlines() if line.startswith("  molink ")]
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line.partition(" < ")[0])[1:]
        assert " ".join(words).startswith(name)
        leaves()[name].make_context(name, words[len(name.split()) :])


@pytest.mark.parametrize("name", ["serve", "up", "plan", "bench"])
def test_each_option_stands_in_a_section(name):
    command = COMMANDS[name]
    assert isinstance(command, SectionedCommand)
    shown = CliRunner().invoke(cli, [name, "--help"]).output
    rest = shown.partition("\nOptions:\n")[2].partition("Examples:")[0]
    assert rest.split()[-6:] == ["--help", "Show", "this", "message", "and", "exit."]
    assert rest.count("--") == 1


def test_help_of_an_option_is_a_sentence_of_its_own():
    fragments = [
        f"{name} {one.opts[-1]}: {one.help}"
        for name, command in leaves().items()
        for one in command.params
        if isinstance(one, click.Option) and (one.help or "").startswith(("Of ", "In ", "And "))
    ]
    assert not fragments
