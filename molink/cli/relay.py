"""`molink relay`: carries links between nodes that cannot reach each other, on a rented server."""

import asyncio

import click

from molink.terminal.command_line import shown_option


@click.command()
@shown_option("--host", default="0.0.0.0", help="Where the relay listens.")
@click.option("--port", type=click.IntRange(0, 65535), required=True, help="0 takes a free one.")
@click.option(
    "--secret-file",
    required=True,
    metavar="FILE",
    help="The secret that it shares with the coordinator, by which it knows the nodes.",
)
def relay(host: str, port: int, secret_file: str) -> None:
    """Carry links between nodes that cannot reach each other.

    Nodes dial in; nothing that passes can be read here. Ctrl-C ends it.
    """
    from molink.tasks import until_stopped
    from molink.transport.relay.protocol import read_secret

    asyncio.run(until_stopped(_serve(read_secret(secret_file), host, port)))


async def _serve(secret: bytes, host: str, port: int) -> None:
    from molink.terminal.status_line import StatusLine
    from molink.transport.relay.server import RelayServer

    async with RelayServer(secret, host, port) as server:
        StatusLine().result(f"ready relay {server.address}")
        await asyncio.Event().wait()
