"""`molink status`: what a running server serves, in a few lines."""

import asyncio
import json
from collections.abc import Iterator

import click

from molink.cli.options import key_option, url_option
from molink.cli.upkeep.moving import handed_over
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.printable import printable_line
from molink.terminal.amounts import layers_text
from molink.terminal.tables import data_dir_option, json_option

EXIT_UNREADY = 1
"""The server answers, and takes no requests now."""

SILENCE_S_MAX = 5.0
"""A server answers in milliseconds."""


@click.command()
@url_option
@key_option
@data_dir_option
@json_option
def status(url: str, key: str | None, data_dir: str | None, as_json: bool) -> None:
    """Show what a running server serves, on which PCs, and how busy it is.

    Needs a key to watch, but for a server of your own on this machine. The exit code is 1 while the
    server takes no requests.
    """
    report = asyncio.run(_asked(url, key, data_dir))
    try:
        summary = _summary(report, url) | {"handed_over": handed_over(url, key, data_dir)}
    except (KeyError, TypeError, ValueError, IndexError):
        raise UserError(f"What answers at {url} is no server of MoLink: check the --url.") from None
    click.echo(json.dumps(summary, indent=2) if as_json else "\n".join(_lines(summary)))
    if summary["unready_reason"]:
        raise click.exceptions.Exit(EXIT_UNREADY)


async def _asked(url: str, key: str | None, data_dir: str | None) -> JsonObject:
    from molink.cli.own_server import client_of

    async with client_of(url, key, data_dir, silence_s_max=SILENCE_S_MAX) as client:
        report: JsonObject = await client.get("/cluster")
    return report


def _summary(report: JsonObject, url: str) -> JsonObject:
    """What of `GET /cluster` the command tells; layers are [first, behind the last]."""
    counts = [ring["requests"] for ring in report["rings"]]
    return {
        "url": url,
        "model": report["model"],
        "unready_reason": report["unready_reason"],
        "running": sum(one["running"] for one in counts),
        "waiting": sum(one["waiting"] for one in counts),
        "rings": [
            [{"node": one["node"], "layers": one["layers"]} for one in ring["stages"]]
            for ring in report["rings"]
        ],
        "trouble": list(report["trouble"]),
    }


def _lines(summary: JsonObject) -> Iterator[str]:
    state = summary["unready_reason"] or "It serves."
    yield printable_line(f"{summary['model']} at {summary['url']}. {state}")
    yield f"Requests: {summary['running']} running, {summary['waiting']} waiting."
    for number, stages in enumerate(summary["rings"]):
        held = ", ".join(f"{one['node']} {layers_text(one['layers'])}" for one in stages)
        yield printable_line(f"Ring {number}, layers: {held}.")
    yield from map(printable_line, summary["trouble"])
    for one in summary["handed_over"]:
        where = f"{one['where']}, {one['state']}" if one["state"] else one["where"]
        yield printable_line(
            f"{one['name']} is handed to the other coordinator: {where}. {one['reason']}"
        )
