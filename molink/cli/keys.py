"""`molink key`: who may use the API, how often, and how much he has.

The commands open the file of keys on disk, so they work on the server's machine whether it runs or
not; one that runs notices what they wrote at its next request.
"""

import csv
import re
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.errors import UserError
from molink.terminal.command_line import SentenceGroup, shown_option
from molink.terminal.key_link import can_show_blocks, key_link, qr_code
from molink.terminal.tables import (
    DATA_FOLDER,
    Row,
    data_dir_option,
    duration_s,
    json_option,
    local_time,
    show_rows,
)

if TYPE_CHECKING:
    from molink.api.keys.store import KeyRecord, KeyStore, Scope

RATE = re.compile(r"(\d{1,9})(?:/min)?")
"""60/min, or 60."""

DAY_FIELDS = ("day", "key_id", "name", "requests", "prompt_tokens", "answer_tokens", "refused")
"""Columns of a key's usage by day."""

NOTHING_WRITTEN = (
    "Nothing is written down that was asked with a key within the last {since}: a server that runs "
    "writes every {period_s:.0f} s."
)
SHOWN_ONCE = "Nobody can show this key again: keep it like a password. It holds from now on."


@click.group(cls=SentenceGroup)
def key() -> None:
    """Make, list and revoke the keys with which people use the API."""


@key.command("create")
@click.option("--name", default="", help="Whose it is, to tell keys apart in lists.")
@click.option("--rate", metavar="R/min", help="Requests a minute; without it no limit.")
@click.option(
    "--tokens-per-day",
    type=int,
    metavar="N",
    help="Tokens of prompts and answers within a day of UTC; without it no limit.",
)
@click.option(
    "--concurrency",
    type=int,
    metavar="N",
    help="Requests that it may have under way at the same time; without it no limit.",
)
@click.option("--expires", metavar="30d", help="12h, 30d: until when; without it never.")
@click.option(
    "--scope",
    type=click.Choice(["inference", "watch", "admin"]),
    default="inference",
    show_default=True,
    help="inference: answers; watch: read /cluster, /metrics and /plan; admin: everything, and "
    "orders.",
)
@click.option("--admin", "is_admin", is_flag=True, help="Short for --scope admin.")
@click.option(
    "--priority",
    type=int,
    default=0,
    help="Priority of its requests that do not say one, and the best they may say; lower goes "
    "first.",
)
@click.option(
    "--url",
    help="Address of the page, for a link with the key; without it as molink up said last.",
)
@data_dir_option
def create_key(
    name: str,
    rate: str | None,
    tokens_per_day: int | None,
    concurrency: int | None,
    expires: str | None,
    scope: "Scope",
    is_admin: bool,
    priority: int,
    url: str | None,
    data_dir: str | None,
) -> None:
    """Print a new key, once, and a link that opens the page with it."""
    if url is not None:
        key_link(url, "")  # A URL that is none makes no key.
    expires_s = None if expires is None else duration_s("--expires", expires)
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise UserError(f"There is no cluster in {data_dir}: run molink up first, or check it.")
    with _store(data_dir) as store:
        made, secret = store.create(
            time.time(),
            name=name,
            scope="admin" if is_admin else scope,
            rate_per_min=None if rate is None else _rate_per_min(rate),
            expires_s=expires_s,
            priority=priority,
            tokens_per_day=tokens_per_day,
            concurrency=concurrency,
        )
    click.echo(secret)
    click.echo(f"{SHOWN_ONCE} Its id is {made.key_id}.", err=True)
    _show_link(url, secret, data_dir)


@key.command("list")
@json_option
@data_dir_option
def list_keys(as_json: bool, data_dir: str | None) -> None:
    """Show keys with what was asked with each, those that ended lately too; never their secrets."""
    now = time.time()
    with _store_if_any(data_dir) as store:
        rows = [_fields(one, now) for one in store.list_keys()] if store else []
    show_rows(rows, as_json, "There are no keys: molink key create makes one.")


@key.command("usage")
@shown_option("--since", default="30d", metavar="30d", help="How far back: 7d, 30d, 365d.")
@click.option("--csv", "as_csv", is_flag=True, help="As CSV, for spreadsheets.")
@json_option
@data_dir_option
def show_usage(since: str, as_csv: bool, as_json: bool, data_dir: str | None) -> None:
    """Show what was asked with each key on each day (of UTC), ended keys too."""
    from molink.api.keys.live_keys import PERIOD_S

    begins = time.time() - duration_s("--since", since)
    with _store_if_any(data_dir) as store:
        rows = [asdict(one) for one in store.days_since(begins)] if store else []
    if as_csv:
        writer = csv.DictWriter(sys.stdout, DAY_FIELDS)
        writer.writeheader()
        writer.writerows(rows)
        return
    show_rows(rows, as_json, NOTHING_WRITTEN.format(since=since, period_s=PERIOD_S))


@key.command("rotate")
@click.argument("key", metavar="ID|NAME")
@data_dir_option
def rotate_key(key: str, data_dir: str | None) -> None:
    """Print a new secret for a key; the one until now is good for a day more."""
    with _store_with_keys(key, data_dir) as store:
        rotated, secret = store.rotate(key, time.time())
    click.echo(secret)
    click.echo(f"{SHOWN_ONCE} The secret until now of {rotated.key_id} ends in a day.", err=True)


@key.command("revoke")
@click.argument("key", metavar="ID|NAME")
@data_dir_option
def revoke_key(key: str, data_dir: str | None) -> None:
    """Refuse every further request with this key; answers under way are finished."""
    with _store_with_keys(key, data_dir) as store:
        gone = store.revoke(key, time.time())
    click.echo(f"Key {gone.key_id} is revoked.")


def _show_link(url: str | None, secret: str, data_dir: str | None) -> None:
    """Show how the page is opened with a key: to whoever sees a terminal, or has asked for it."""
    from molink.config.data_dir import data_dir as folder

    if url is None and sys.stderr.isatty():
        url = known_url(folder(DATA_FOLDER, data_dir))
    if url is None:
        return
    link = key_link(url, secret)
    click.echo(f"Whoever opens this link has the key: {link}", err=True)
    if can_show_blocks():
        click.echo(qr_code(link), err=True)


def known_url(directory: Path) -> str | None:
    """Address of the API, as `molink up` said it last with this data directory; None: it never
    did."""
    from molink.control.registry.registry import Registry

    try:
        registry = Registry.open(directory, make=False)
    except UserError:
        return None
    with closing(registry):
        return registry.api_url


def _rate_per_min(text: str) -> int:
    match = RATE.fullmatch(text)
    if match is None:
        raise UserError(f"--rate takes requests a minute such as 60/min, got {text!r:.40}.")
    return int(match[1])


@contextmanager
def _store(data_dir: str | None) -> Iterator["KeyStore"]:
    from molink.api.keys.store import KeyStore
    from molink.config.data_dir import data_dir as folder

    where = folder(DATA_FOLDER, data_dir)
    with closing(KeyStore.open(where)) as store:
        try:
            yield store
        except sqlite3.Error as error:
            raise UserError(
                f"The keys in {where} cannot be written ({error}): is its disk full or gone?"
            ) from None


@contextmanager
def _store_if_any(data_dir: str | None) -> Iterator["KeyStore | None"]:
    """None where no key was ever made: a folder that was mistyped is not made."""
    from molink.api.keys.store import KeyStore
    from molink.config.data_dir import data_dir as folder

    if not KeyStore.exists(folder(DATA_FOLDER, data_dir)):
        yield None
        return
    with _store(data_dir) as store:
        yield store


@contextmanager
def _store_with_keys(key: str, data_dir: str | None) -> Iterator["KeyStore"]:
    with _store_if_any(data_dir) as store:
        if store is None:
            raise UserError(f"There is no usable key {key!r:.80}, nor any other: give --data-dir.")
        yield store


def _fields(record: "KeyRecord", now: float) -> Row:
    key, usage = record.key, record.usage
    return {
        "id": key.key_id,
        "name": key.name,
        "state": key.state(now),
        "scope": key.scope,
        "rate": None if key.rate_per_min is None else f"{key.rate_per_min}/min",
        "tokens_per_day": key.tokens_per_day,
        "concurrency": key.concurrency,
        "priority": key.priority,
        "requests": usage.requests,
        "refused": usage.refused,
        "prompt_tokens": usage.prompt_tokens,
        "answer_tokens": usage.answer_tokens,
        "last_used": None if usage.last_used is None else local_time(usage.last_used),
        "created": local_time(key.created),
        "expires": None if key.expires is None else local_time(key.expires),
    }
