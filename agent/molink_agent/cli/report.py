"""Report of what a PC gave, night by night: `molink agent report`."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.errors import UserError
from molink.printable import printable_line
from molink.terminal.amounts import duration_text
from molink_agent.cli.options import data_dir_option, directory, joined_directory, json_option
from molink_agent.status_text import given_text
from molink_scheduler.units import MB

if TYPE_CHECKING:
    from molink_agent.daemon.given import GivenLedger, Night
    from molink_agent.thanks.fetched import Thanks

NIGHTS = 7

ROW = "{:<16} {:>9} {:>17} {:>13}"
HEADS = ("night", "serving", "tokens x layers", "sent")


@click.command()
@click.option(
    "--nights",
    type=click.IntRange(min=1),
    default=NIGHTS,
    show_default=True,
    help="How many to show, the newest last; nights that gave nothing are left out.",
)
@json_option
@data_dir_option
def report(nights: int, as_json: bool, data_dir: str | None) -> None:
    """Show what this PC gave night by night, from noon to noon.

    All figures are the coordinator's count.
    """
    from molink_agent.daemon.given import GIVEN_FILE
    from molink_agent.thanks.fetched import Thanks

    where = directory(data_dir)
    if not (where / GIVEN_FILE).exists():  # What a PC gave outlives its membership.
        where = joined_directory(data_dir, "does it, or give --data-dir.")
    ledger = given_until_now(where, connected=True)
    shown, thanks = ledger.nights[-nights:], Thanks.load(where)
    if as_json:
        entries = [night.model_dump(mode="json") for night in shown]
        totals = ledger.totals.model_dump() if ledger.totals is not None else None
        told = None if thanks is None else thanks.model_dump()
        click.echo(json.dumps({"nights": entries, "since_joined": totals, "thanks": told}))
        return
    layers = model_layers(where)
    for line in (*_lines(ledger, shown, layers), *_thanks_lines(thanks, layers)):
        click.echo(printable_line(line))


def given_until_now(data_dir: Path, *, connected: bool) -> "GivenLedger":
    """The ledger as the agent last wrote it, with what the coordinator says now if it is asked.

    It is not written: only the agent does that. Raises UserError when it cannot be read.
    """
    from molink_agent.daemon.given import GIVEN_FILE, GivenLedger, ask_totals
    from molink_agent.daemon.membership import load_membership

    try:
        ledger = GivenLedger.load(data_dir)
    except OSError as error:
        raise UserError(
            f"{data_dir / GIVEN_FILE} cannot be read ({error.strerror}): check its owner and its "
            "disk; the nights in it are kept."
        ) from None
    if not connected:
        return ledger
    try:
        membership = load_membership(data_dir)
    except UserError:  # The agent itself says what is wrong with it.
        return ledger
    return ledger.later(datetime.now(), ask_totals(membership))


def model_layers(data_dir: Path) -> int | None:
    """Layers of the cluster's model; None where the PC is no member, or was not told."""
    from molink_agent.daemon.membership import load_membership

    try:
        membership = load_membership(data_dir)
    except UserError:  # The agent itself says what is wrong with it.
        return None
    model = None if membership is None else membership.answer.model
    return None if model is None else model.layers


def _lines(ledger: "GivenLedger", shown: "Sequence[Night]", layers: int | None) -> Iterator[str]:
    if not shown:
        yield "This PC has given nothing yet: `molink agent status` says what it waits for."
        return
    yield ROW.format(*HEADS)
    for night in shown:
        yield _row(night)
    if ledger.totals is not None:
        yield f"Since it joined: {given_text(ledger.totals.model_dump(), layers)}"


def _thanks_lines(thanks: "Thanks | None", layers: int | None) -> Iterator[str]:
    from molink_agent.thanks.words import ranking_lines, thanks_text

    if sentence := thanks_text(thanks, datetime.now()):
        yield sentence
    if ranks := list(ranking_lines(thanks, layers)):
        yield "Who gave most, of those who agree to be named:"
        yield from ranks


def _row(night: "Night") -> str:
    ends = night.begins + timedelta(days=1)
    return ROW.format(
        f"{night.begins:%d %b} to {ends:%d %b}",
        duration_text(night.uptime_s),
        f"{night.token_layers:,}",
        f"{night.bytes_sent / MB:,.1f} MB",
    )
