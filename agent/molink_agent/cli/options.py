"""Options that several commands take."""

from pathlib import Path

import click

__all__ = ["data_dir_option", "directory", "json_option"]

data_dir_option = click.option(
    "--data-dir",
    metavar="FOLDER",
    help="Of the agent; without it $XDG_DATA_HOME/molink-agent. Each agent of a PC has its own.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, for programs.")


def directory(data_dir: str | None) -> Path:
    """The agent's data directory."""
    from molink_agent.data_dir import default_data_dir

    return Path(data_dir).absolute() if data_dir else default_data_dir()
