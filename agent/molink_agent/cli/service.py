"""`molink agent service`: keep the agent running after logon."""

import asyncio

import click

from molink.errors import UserError
from molink.terminal.command_line import SentenceGroup
from molink_agent.cli.options import data_dir_option, directory, joined_directory
from molink_agent.local_socket import agent_runs


@click.group(cls=SentenceGroup)
def service() -> None:
    """Run the agent as a service of your account (systemd)."""


@service.command("install")
@data_dir_option
def install(data_dir: str | None) -> None:
    """Start the agent at logon, and again when it crashes."""
    from molink_agent.service.manage import install_service, service_status

    where = joined_directory(data_dir, "first; with --no-run it ends when it has joined.")
    if asyncio.run(agent_runs(where)) and not service_status(where).active:
        raise UserError(
            "An agent runs in a terminal: end it there with Ctrl-C, then install the service."
        )
    for line in install_service(where):
        click.echo(line)


@service.command("remove")
@data_dir_option
def remove(data_dir: str | None) -> None:
    """Stop the service; the agent's data stay."""
    from molink_agent.service.manage import remove_service

    for line in remove_service(directory(data_dir)):
        click.echo(line)


@service.command("status")
@data_dir_option
def status(data_dir: str | None) -> None:
    """Whether it is installed and runs."""
    from molink_agent.service.manage import service_status

    for line in service_status(directory(data_dir)).sentences:
        click.echo(line)
