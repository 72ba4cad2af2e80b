"""What every command line of MoLink shares: help in whole sentences, and an orderly end.

Click cuts a command's summary off in the middle; `SentenceGroup` shows the first sentence whole.
Ctrl-C and SIGTERM end a server in order: what was started is stopped, then the command ends.
"""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

import click

__all__ = ["SentenceGroup", "until_stopped"]

SENTENCE_CHARACTERS_MAX = 300
"""Of a summary; longer than any first sentence of ours."""


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


async def until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """Run `work` until it ends or a stop signal cancels it; its errors are raised as they are."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    for stop in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stop, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
