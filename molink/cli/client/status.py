"""`molink status`: what a running server serves, in a few lines."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress

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
    report, called = asyncio.run(_asked(url, key, data_dir))
    try:
        summary = _summary(report, called, url)
        summary["handed_over"] = handed_over(url, key, data_dir)
    except (KeyError, TypeError, ValueError, IndexError):
        raise UserError(f"What answers at {url} is no server of MoLink: check the --url.") from None
    click.echo(json.dumps(summary, indent=2) if as_json else "\n".join(_lines(summary)))
    if summary["unready_reason"]:
        raise click.exceptions.Exit(EXIT_UNREADY)


async def _asked(url: str, key: str | None, data_dir: str | None) -> tuple[JsonObject, str | None]:
    """`GET /cluster`, and the name by which users call the model; None: the key is only to watch,
    and does not list models."""
    from molink.cli.own_server import client_of

    async with client_of(url, key, data_dir, silence_s_max=SILENCE_S_MAX) as client:
        report: JsonObject = await client.get("/cluster")
        with suppress(UserError, KeyError, TypeError, IndexError):
            return report, str((await client.get("/v1/models"))["data"][0]["id"])
    return report, None


def _summary(report: JsonObject, called: str | None, url: str) -> JsonObject:
    """What of `GET /cluster` the command tells; layers are [first, behind the last]."""
    counts = [ring["requests"] for ring in report["rings"]]
    return {
        "url": url,
        "model": report["model"],
        "served_name": called,
        "unready_reason": report["unready_reason"],
        "running": sum(one["running"] for one in counts),
        "waiting": sum(one["waiting"] for one in counts),
        "rings": [
            [
                {"ring": ring["ring"], "node": one["node"], "layers": one["layers"]}
                for one in ring["stages"]
            ]
            for ring in sorted(report["rings"], key=lambda ring: ring["ring"])
        ],
        "trouble": list(report["trouble"]),
    }


def _lines(summary: JsonObject) -> Iterator[str]:
    state = summary["unready_reason"] or "It serves."
    model, called = summary["model"], summary["served_name"] or summary["model"]
    shown = model if called == model else f"{called} ({model})"
    yield printable_line(f"{shown} at {summary['url']}. {state}")
    yield f"Requests: {summary['running']} running, {summary['waiting']} waiting."
    for stages in summary["rings"]:
        held = ", ".join(f"{one['node']} {layers_text(one['layers'])}" for one in stages)
        yield printable_line(f"Ring {stages[0]['ring']}, layers: {held}.")
    yield from map(printable_line, summary["trouble"])
    for one in summary["handed_over"]:
        where = f"{one['where']}, {one['state']}" if one["state"] else one["where"]
        yield printable_line(
            f"{one['name']} is handed to the other coordinator: {where}. {one['reason']}"
        )
