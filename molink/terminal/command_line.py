"""Base of every command line of MoLink: help in whole sentences.

Click cuts a command's summary off in the middle; `SentenceGroup` shows the first sentence whole.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

quiet_option = click.option("--quiet", is_flag=True, help="Show no progress.")

SENTENCE_CHARACTERS_MAX = 300
"""Length of a summary; longer than any first sentence of ours."""


def shown_option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """An option whose default its command's help shows."""
    return click.option(*names, show_default=True, **settings)


class SentenceGroup(click.Group):
    """Group of commands whose help shows a whole sentence of each, wrapped as options are."""

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
