"""`molink agent page`: the owner's page of a running agent, in the browser."""

import asyncio
import os
import sys
import webbrowser

import click

from molink.errors import UserError
from molink_agent.cli.options import data_dir_option, joined_directory


@click.command()
@click.option("--open/--no-open", "opens", default=True, help="Open it in the browser, if any.")
@data_dir_option
def page(opens: bool, data_dir: str | None) -> None:
    """Show this PC's page: what it does, what it has given, its limits, a pause button.

    Only this PC can open it, and only with the address that is printed: keep that to yourself.
    """
    from molink_agent.local_socket import agent_runs
    from molink_agent.page.server import PagePlace

    where = joined_directory(data_dir, "does it, or give --data-dir.")
    place = PagePlace.load(where)
    if not asyncio.run(agent_runs(where)) or not place.port:
        raise UserError("No agent runs here: start it with `molink agent run`, then ask again.")
    click.echo(place.url)
    if opens and has_browser():
        webbrowser.open(place.url)


def has_browser() -> bool:
    """Whether a browser would open in a window, rather than in this terminal."""
    shown = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return bool(shown) or sys.platform == "darwin"
