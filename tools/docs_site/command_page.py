"""The reference of the command line: what `--help` says of every command, on one page.

The help is shown as the terminal shows it. Tables made from options were rejected: what they say
beyond the help somebody would have to write, and it would be another text to keep true.
"""

from collections.abc import Iterator

import click

from molink.cli.main import cli

__all__ = ["command_page", "commands"]

WIDTH = 84
"""Columns that fit a page without scrolling."""

INTRODUCTION = """\
# Commands

What `molink COMMAND --help` says of every command. A mistake ends with one sentence on standard
error and exit code 2.
"""


def command_page() -> str:
    """All commands with their help, as Markdown."""
    return INTRODUCTION + "".join(_section(context) for context in commands())


def commands() -> Iterator[click.Context]:
    """A context of each command that is not hidden, groups before what they hold."""
    return _below(cli, "molink", None)


def _below(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[click.Context]:
    context = click.Context(
        command, parent, name, terminal_width=WIDTH, help_option_names=["-h", "--help"]
    )
    yield context
    if not isinstance(command, click.Group):
        return
    for child_name in command.list_commands(context):
        child = command.get_command(context, child_name)
        if child is not None and not child.hidden:
            yield from _below(child, child_name, context)


def _section(context: click.Context) -> str:
    marks = "##" if context.parent is None or context.parent.parent is None else "###"
    text = context.command.get_help(context)
    return f"\n{marks} {context.command_path}\n\n```text\n{text}\n```\n"
