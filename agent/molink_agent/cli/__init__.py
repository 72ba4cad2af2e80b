"""`molink agent`: lend this PC, and stay its master. Each command imports what it needs when it
runs."""

import click

from molink.terminal.command_line import SentenceGroup, with_examples
from molink_agent.cli import owner
from molink_agent.cli.examples import EXAMPLES
from molink_agent.cli.join import join, run
from molink_agent.cli.page import page
from molink_agent.cli.report import report
from molink_agent.cli.service import service
from molink_agent.cli.tray import tray

__all__ = ["main"]


@click.group(cls=SentenceGroup)
def main() -> None:
    """Lend this PC to a cluster, and stay its master."""


for command in (
    join,
    run,
    owner.status,
    page,
    tray,
    report,
    owner.pause,
    owner.resume,
    owner.drain,
    owner.leave,
    owner.logs,
    owner.set_limit,
    owner.doctor,
    service,
):
    main.add_command(with_examples(command, f"agent {command.name}", EXAMPLES))
