"""`molink agent tray`: an icon on the owner's desktop that says what the PC does, and pauses it."""

import click

from molink_agent.cli.options import data_dir_option, joined_directory


@click.command()
@click.option(
    "--at-login/--not-at-login",
    default=None,
    help="Show it from the next login on, or no more, instead of now.",
)
@data_dir_option
def tray(at_login: bool | None, data_dir: str | None) -> None:
    """Show an icon in the desktop's tray: what this PC does, a pause button, its page.

    It needs `pip install 'molink[tray]'`, and a desktop with a tray. It runs until its menu ends
    it; the agent goes on without.
    """
    from molink_agent.tray.at_login import not_at_login, start_at_login
    from molink_agent.tray.icon import Tray, desktop

    where = joined_directory(data_dir, "does it, or give --data-dir.")
    if at_login is None:
        Tray(where).run()
    elif at_login:
        desktop()
        click.echo(f"The icon is shown from the next login on: {start_at_login(where)}")
    elif not_at_login():
        click.echo("The icon is shown at login no more.")
    else:
        click.echo("The icon was not shown at login.")
