"""`molink cell`: an operator's word on which PCs of a LAN lend each other memory for KV."""

import asyncio
import json
from collections.abc import Callable, Sequence

import click

from molink.cli.options import key_option, url_option
from molink.errors import UserError
from molink.json_object import JsonObject
from molink.report.cell import CellPairReport, CellPcReport, CellReport
from molink.terminal.command_line import SentenceGroup
from molink.terminal.tables import Row, data_dir_option, json_option, show_rows
from molink_scheduler.units import gb_text


def pair_options(order: Callable[..., None]) -> Callable[..., None]:
    """Decorator of an order about two PCs, of a server."""
    named = url_option(key_option(data_dir_option(order)))
    named = click.argument("other", metavar="ID|NAME")(named)
    return click.argument("one", metavar="ID|NAME")(named)


@click.group(cls=SentenceGroup)
def cell() -> None:
    """Say which PCs of a LAN lend each other memory."""


@cell.command("list")
@url_option
@key_option
@data_dir_option
@json_option
def list_cells(url: str, key: str | None, data_dir: str | None, as_json: bool) -> None:
    """Show which PCs may lend to each other, which could, and what is lent.

    Needs an admin key, but for a server of your own on this machine.
    """
    _show(asyncio.run(_asked(url, key, data_dir)), as_json=as_json)


@cell.command()
@pair_options
def confirm(one: str, other: str, url: str, key: str | None, data_dir: str | None) -> None:
    """Let two PCs lend each other memory, as far as their owners lend any.

    Who lends can infer text of users from what lies there: confirm owners whom you trust with that.
    """
    _show(asyncio.run(_asked(url, key, data_dir, "confirm", (one, other))), as_json=False)


@cell.command()
@pair_options
def forget(one: str, other: str, url: str, key: str | None, data_dir: str | None) -> None:
    """End what two PCs have lent each other; what lay there is computed anew."""
    _show(asyncio.run(_asked(url, key, data_dir, "forget", (one, other))), as_json=False)


async def _asked(
    url: str, key: str | None, data_dir: str | None, order: str = "", pcs: Sequence[str] = ()
) -> CellReport:
    """What the server tells of its cells, after an order if there is one. Raises UserError with its
    sentence."""
    from molink.cli.own_server import client_of
    from molink.report.plain import from_plain

    async with client_of(url, key, data_dir) as client:
        if order:
            answer = await client.post(f"/cell/{order}", {"pcs": [*pcs]})
        else:
            answer = await client.get("/cell")
    if not isinstance(answer, dict) or "pairs" not in answer:
        raise UserError(
            f"{url} gave an answer that is no coordinator's: give --url of `molink up`."
        )
    return from_plain(CellReport, answer)


def _show(report: CellReport, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_plain(report), indent=2))
        return
    nothing = "No two PCs are near each other: molink cell confirm takes any two by their names."
    show_rows([_pair_row(pair) for pair in report.pairs], False, nothing)
    if report.pcs:
        click.echo()
        show_rows([_pc_row(pc) for pc in report.pcs], False, "")


def _plain(report: CellReport) -> JsonObject:
    from molink.report.plain import to_plain

    return to_plain(report)


def _pair_row(pair: CellPairReport) -> Row:
    return {
        "pcs": " and ".join(pair.names),
        "confirmed": "yes" if pair.confirmed else "no",
        "round trip": _milliseconds(pair.rtt_ms),
        "echoes": _milliseconds(pair.echo_ms),
        "near": "yes" if pair.near else "no",
        "reason": pair.reason,
    }


def _pc_row(pc: CellPcReport) -> Row:
    return {
        "pc": pc.name,
        "own": gb_text(pc.own_bytes, 2),
        "lent": gb_text(pc.lent_bytes, 2),
        "held": gb_text(pc.held_bytes, 2),
        "borrowed": gb_text(pc.borrowed_bytes, 2),
        "lends": gb_text(pc.lendable_bytes, 2),
        "reason": pc.reason,
    }


def _milliseconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f} ms"
