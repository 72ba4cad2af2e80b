"""`molink models`: which models there are, and which of them given cards or a cluster can run."""

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from molink.cli.options import key_option
from molink.errors import UserError
from molink.terminal.command_line import shown_option
from molink.terminal.tables import Row, data_dir_option, json_option, show_rows

if TYPE_CHECKING:
    from molink.json_object import JsonObject

CLUSTER = "cluster"
"""The word for the PCs of a running coordinator."""

ANSWER_TIMEOUT_S = 150.0
"""A plan of each model for the PCs of a cluster: some seconds, two minutes at most."""

NAMES_MAX = 12
"""Names of what does not fit that are written out."""


@click.command()
@click.argument("words", nargs=-1)
@click.option(
    "--for",
    "cards",
    metavar="CARDS",
    help="Cards such as '3090, 3060 12GB, 4080 laptop' or '2x 3090', each in a PC of its own; or "
    "`cluster`: the PCs of the coordinator at --url.",
)
@shown_option(
    "--line",
    default="40/100/30",
    metavar="UP/DOWN/MS",
    help="Line of each PC that --for names: Mbit/s up and down, and round trip to another.",
)
@click.option("--url", metavar="URL", envvar="MOLINK_URL", help="URL of the coordinator to ask.")
@key_option
@json_option
@data_dir_option
def models(
    words: Sequence[str],
    cards: str | None,
    line: str,
    url: str | None,
    key: str | None,
    as_json: bool,
    data_dir: str | None,
) -> None:
    """List models to run, or with --for those that given cards can run, the most useful first.

    WORDS narrow the list to models with all of them in their name, licence or state.
    """
    if cards is None:
        answer = _known()
    elif cards.strip().lower() == CLUSTER:
        answer = asyncio.run(_of_cluster(url, key, data_dir))
    else:
        answer = _of_cards(cards, line, words)
    found = _chosen(answer["models"], words)
    if as_json:
        click.echo(json.dumps({**answer, "models": found}, indent=2))
    elif cards is None:
        _show_known(found)
    else:
        _show_fits(answer["pcs"], found)


def _chosen(found: Sequence["JsonObject"], words: Sequence[str]) -> list["JsonObject"]:
    """The one model that is named, or all that have the words."""
    named = [one for one in found if words in ((one["name"],), (one["hub"],))]
    return named or [one for one in found if _has(one, words)]


def _has(model: "JsonObject", words: Sequence[str]) -> bool:
    text = " ".join(str(model[key]) for key in ("name", "title", "hub", "licence", "state"))
    return all(word.lower() in text.lower() for word in words)


def _known() -> "JsonObject":
    from molink.catalogue.fields import entry_fields
    from molink.checkpoint.catalogue.entries import catalogue

    newest = sorted(catalogue(), key=lambda one: (one.released, one.name), reverse=True)
    return {"pcs": [], "models": [entry_fields(one) for one in newest]}


def _of_cards(cards: str, line: str, words: Sequence[str]) -> "JsonObject":
    from molink.catalogue.asked import asked_pcs, card_facts, home_line
    from molink.catalogue.fields import answer_fields, entry_fields
    from molink.catalogue.fits import catalogue_rows, plans_here
    from molink.checkpoint.catalogue.entries import catalogue

    pcs = asked_pcs(cards, home_line(line))
    chosen = {one["name"] for one in _chosen([*map(entry_fields, catalogue())], words)}
    entries = (one for one in catalogue() if one.name in chosen)
    rows = catalogue_rows(entries, plans_here(card_facts(pcs)))
    return answer_fields(((pc.name, pc.lent_bytes) for pc in pcs.nodes), rows)


async def _of_cluster(url: str | None, key: str | None, data_dir: str | None) -> "JsonObject":
    from molink.cli.own_server import client_of

    if url is None:
        raise UserError("--for cluster asks a coordinator: give its --url, or MOLINK_URL.")
    async with client_of(url, key, data_dir, silence_s_max=ANSWER_TIMEOUT_S) as client:
        answer: JsonObject = await client.get("/catalogue")
    if not isinstance(answer.get("models"), list) or not isinstance(answer.get("pcs"), list):
        raise UserError(
            f"What answers at {url} is no coordinator: give the URL that `molink up` printed."
        )
    return answer


def _show_known(found: Sequence[Any]) -> None:
    from molink.terminal.catalogue_report import known_line, known_row

    click.echo(known_line(found))
    if found:
        show_rows([known_row(one) for one in found], False, "")


def _show_fits(pcs: Sequence[Any], found: Sequence[Any]) -> None:
    from molink.terminal.catalogue_report import fit_row, fits_line, left_out_line

    click.echo(fits_line(pcs, found))
    fitting: list[Row] = [fit_row(one) for one in found if one["fit"]]
    if fitting:
        show_rows(fitting, False, "")
    rest = [one for one in found if not one["fit"]]
    if len(rest) == 1:
        click.echo(f"{rest[0]['name']}: {rest[0]['why']}")
    elif rest:
        click.echo(left_out_line(rest, NAMES_MAX))
