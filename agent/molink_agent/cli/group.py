"""The group of commands; each imports what it needs when it runs."""

import click

from molink.cli.sentence_group import SentenceGroup
from molink_agent.cli.join import join, run
from molink_agent.cli.owner import drain, leave, logs, pause, resume, set_limit, status
from molink_agent.cli.service import service
from molink_agent.doctor.command import doctor

__all__ = ["main"]


@click.group(cls=SentenceGroup)
def main() -> None:
    """Lend this PC to a cluster, and stay its master."""


for command in (
    join,
    run,
    status,
    pause,
    resume,
    drain,
    leave,
    logs,
    set_limit,
    doctor,
    service,
):
    main.add_command(command)
