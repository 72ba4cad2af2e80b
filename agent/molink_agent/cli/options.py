"""Options that several commands take, and the directory that they lead to."""

from pathlib import Path

import click

from molink.config.data_dir import data_dir
from molink.errors import UserError

data_dir_option = click.option(
    "--data-dir",
    metavar="FOLDER",
    help="Folder of the agent, each of a PC has its own; without it $XDG_DATA_HOME/molink-agent.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")


def directory(given: str | None) -> Path:
    """The agent's data directory: the given one, or the user's only one."""
    return Path(given).absolute() if given else data_dir("molink-agent")


def joined_directory(given: str | None, remedy: str) -> Path:
    """The data directory of an agent that has joined. Raises UserError, ending in `remedy`."""
    from molink_agent.data_files import MEMBERSHIP_FILE

    where = directory(given)
    if not (where / MEMBERSHIP_FILE).exists():
        raise UserError(
            f"This PC has not joined a cluster, or has left it ({where} holds no membership): "
            f"`molink agent join INVITE` {remedy}"
        )
    return where
