"""A group of commands whose help says of each one whole sentence; click cuts them off in the
middle."""

import click

__all__ = ["SentenceGroup"]

SENTENCE_CHARACTERS_MAX = 300
"""Of a summary; longer than any first sentence of ours."""


class SentenceGroup(click.Group):
    """For `cls=` of a group; the lines are wrapped, as those of options are."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list under "Commands"."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [
            (name, command.get_short_help_str(SENTENCE_CHARACTERS_MAX))
            for name, command in found
            if command is not None and not command.hidden
        ]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
