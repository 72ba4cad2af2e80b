"""`molink cache`: an operator's order about what a running server has cached."""

import asyncio

import click

from molink.cli.options import key_option, url_option
from molink.errors import UserError
from molink.terminal.command_line import SentenceGroup
from molink.terminal.tables import data_dir_option


@click.group(cls=SentenceGroup)
def cache() -> None:
    """Empty the prefix cache of a running server."""


@cache.command("clear")
@url_option
@key_option
@data_dir_option
def clear_cache(url: str, key: str | None, data_dir: str | None) -> None:
    """Forget what all rings have cached of prompts and answers.

    What a request under way uses goes with it, and nobody else finds it. Needs an admin key, but
    for a server of your own on this machine.
    """
    rings = asyncio.run(_clear(url, key, data_dir))
    if rings == 0:
        click.echo("No ring serves, so nothing is cached.")
        return
    click.echo(f"The prefix cache of {rings} {'ring' if rings == 1 else 'rings'} is cleared.")


async def _clear(url: str, key: str | None, data_dir: str | None) -> int:
    """How many rings were told. Raises UserError with the server's sentence."""
    from molink.api.admin import CLEAR_CACHE_PATH
    from molink.cli.own_server import client_of

    async with client_of(url, key, data_dir) as client:
        answer = await client.post(CLEAR_CACHE_PATH, {})
    rings = answer.get("rings") if isinstance(answer, dict) else None
    if not isinstance(rings, int):
        raise UserError(f"{url} gave an answer that is not MoLink's: give --url of its server.")
    return rings
