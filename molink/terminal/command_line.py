"""Base of every command line of MoLink: help in whole sentences, in sections, with examples.

Click cuts a command's summary off in the middle; `SentenceGroup` shows the first sentence whole. It
takes `ls` for `list`, and for a word that it does not know it names those that are like it.
"""

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")

EXIT_STOPPED = 130
"""What a shell expects of a command that Ctrl-C ended before it was done."""

ALIASES = {"ls": "list"}
"""Words that stand for a command where there is none of that name; help does not show them."""

Examples = Mapping[str, tuple[str, ...]]
"""Command lines by the words of a command without `molink`, each as one would type it."""

SENTENCE_CHARACTERS_MAX = 300
"""Length of a summary; longer than any first sentence of ours."""


def shown_option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """An option whose default its command's help shows."""
    return click.option(*names, show_default=True, **settings)


def with_examples(command: click.Command, words: str, examples: Examples) -> click.Command:
    """The command, and all below it, with their examples at the end of their help."""
    if found := examples.get(words):
        command.epilog = "\n".join(["\b", "Examples:", *(f"  {one}" for one in found)])
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            with_examples(one, f"{words} {name}", examples)
    return command


class SectionedCommand(click.Command):
    """Command whose help has its options in sections, `sections`: names of options by title."""

    def __init__(self, *args: Any, sections: Mapping[str, str], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.sections = {title: names.split() for title, names in sections.items()}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections, and what is in none under "Options"."""
        for title, records in self._sections(ctx):
            with formatter.section(title):
                formatter.write_dl(records)

    def _sections(self, ctx: click.Context) -> Iterator[tuple[str, list[tuple[str, str]]]]:
        options = [one for one in self.get_params(ctx) if isinstance(one, click.Option)]
        left = {one.opts[-1]: one.get_help_record(ctx) for one in options}
        for title, names in self.sections.items():
            records = [left.pop(name) for name in names]
            yield title, [record for record in records if record is not None]
        yield "Options", [record for record in left.values() if record is not None]


class SentenceGroup(click.Group):
    """Group of commands whose help shows a whole sentence of each, wrapped as options are."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of the first word. Raises UsageError that names those that are like it."""
        name, *rest = args
        alias = ALIASES.get(name, name)
        if self.get_command(ctx, name) is None and self.get_command(ctx, alias) is not None:
            return super().resolve_command(ctx, [alias, *rest])
        if self.get_command(ctx, name) or name.startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        raise click.UsageError(self.unknown_word(ctx, name), ctx)

    def unknown_word(self, ctx: click.Context, name: str) -> str:
        """What is said of a word that is no command."""
        like = [repr(one) for one in get_close_matches(name, self.list_commands(ctx))]
        return f"No such command {name!r}." + f" Did you mean {' or '.join(like)}?" * bool(like)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list under "Commands"."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(SENTENCE_CHARACTERS_MAX))
            for name, command in found
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
