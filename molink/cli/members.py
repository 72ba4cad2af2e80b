"""`molink invite` and `molink node`: who may join the cluster, and who has.

They open the coordinator's registry on disk, so they work on its machine whether it runs or not;
one that runs notices what they wrote. What the nodes do now only a running coordinator knows: the
list of nodes asks it, and does without if none answers.
"""

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from molink.cli.own_server import is_taken, live_nodes
from molink.cli.upkeep.moving import UNSEEN, move_nodes
from molink.printable import printable_line
from molink.terminal.amounts import layers_text
from molink.terminal.command_line import SentenceGroup, shown_option
from molink.terminal.key_link import qr_code
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
    from molink.control.registry.database import InviteRecord, NodeRecord
    from molink.control.registry.registry import Registry

MOVED = "It is handed to the coordinator beside: `molink node move` shows whether it has come."


@click.group(cls=SentenceGroup, invoke_without_command=True)
@shown_option("--expires", default="24h", metavar="24h", help="30m, 24h, 7d: until when.")
@shown_option("--uses", default=5, help="How many PCs may join with it.")
@click.option("--name", default="", help="To tell invites apart in lists.")
@click.option(
    "--url", help="Where agents reach the coordinator; without it as molink up said last."
)
@click.option("--qr", is_flag=True, help="Draw the command as a QR code, to carry it by phone.")
@data_dir_option
@click.pass_context
def invite(
    context: click.Context,
    expires: str,
    uses: int,
    name: str,
    url: str | None,
    qr: bool,
    data_dir: str | None,
) -> None:
    """Print the command with which volunteers join; keep it as secret as a password."""
    if context.invoked_subcommand is not None:
        context.obj = data_dir
        return

    expires_s = duration_s("--expires", expires)
    with _registry(data_dir, make=url is not None) as registry:
        made = registry.make_invite(expires_s, uses, name, time.time(), url)
    line = f"molink agent join {made.text}"
    click.echo(line)
    if qr:
        click.echo(qr_code(line), err=True)
    pcs = "One PC" if uses == 1 else f"{uses} PCs"
    until = f"{local_time(time.time() + expires_s):%Y-%m-%d %H:%M}"
    click.echo(
        f"{pcs} may join with it until {until}: send it as you would a password. "
        f"molink invite revoke {made.invite_id} ends it.",
        err=True,
    )


@invite.command("list")
@json_option
@data_dir_option
def list_invites(as_json: bool, data_dir: str | None) -> None:
    """Show invites, those that ended lately too; never their secrets."""
    with _registry(data_dir) as registry:
        now = time.time()
        rows = [_invite_fields(one, now) for one in registry.list_invites()]
    show_rows(rows, as_json, "There are no invites: molink invite makes one.")


@invite.command("revoke")
@click.argument("invite", metavar="ID|NAME")
@data_dir_option
def revoke_invite(invite: str, data_dir: str | None) -> None:
    """Let nobody else join with this invite; who has joined stays."""
    with _registry(data_dir) as registry:
        gone = registry.revoke(invite, time.time())
    click.echo(f"Invite {gone.invite_id} is revoked; it had {gone.uses_left} uses left.")


@click.group(cls=SentenceGroup)
def node() -> None:
    """See and remove the PCs that have joined."""


@node.command("list")
@json_option
@data_dir_option
def list_nodes(as_json: bool, data_dir: str | None) -> None:
    """Show every PC that has joined, and what each does now: removed ones until they are forgotten,
    further devices in lines of their own (`pc` is the id of the PC that they belong to)."""
    from molink.control.registry.succession import moved_pcs

    with _registry(data_dir) as registry:
        records, url = registry.list_nodes(), registry.api_url
        moved = moved_pcs(registry)
    live = live_nodes(url, data_dir) if records else {}
    rows = [_node_fields(one, live or {}) for one in records]
    if live is not None:
        rows = [
            {**row, **_absent(row, is_moved=one.pc in moved)}
            for row, one in zip(rows, records, strict=True)
        ]
    if not as_json:
        rows = [_node_row(row) for row in rows]
    show_rows(rows, as_json, "No PC has joined yet: molink invite prints what its owner runs.")
    if live is None and not as_json:
        click.echo(f"What they do now is not known: {_who_answers(url)}.", err=True)


def _who_answers(url: str | None) -> str:
    if url is None or not is_taken(url):
        return f"no coordinator answers at {url}"
    return f"no coordinator of this --data-dir answers, but another server does at {url}"


node.add_command(move_nodes)


@node.command("forget")
@click.argument("node", metavar="ID|NAME")
@data_dir_option
def forget_node(node: str, data_dir: str | None) -> None:
    """Leave a removed PC out of lists from now on; its key stays refused. One whose owner has taken
    it out needs no removal, and may come back with an invite."""
    with _registry(data_dir) as registry:
        live = live_nodes(registry.api_url, data_dir) or {}
        left = {one for one, told in live.items() if told.get("state") == "left"}
        gone = registry.forget_node(node, time.time(), left)
    click.echo(f"Node {gone.node_id} ({printable_line(gone.name)}) is in no list any more.")


@node.command("remove")
@click.argument("node", metavar="ID|NAME")
@data_dir_option
def remove_node(node: str, data_dir: str | None) -> None:
    """Throw a PC out with all its devices; its key is refused from now on, even with a new
    invite. At a terminal it is asked first."""
    with _registry(data_dir) as registry:
        if _at_terminal():
            click.confirm(f"Remove {printable_line(node)}, whose key is then refused?", abort=True)
        now = time.time()
        gone = registry.remove_node(node, now)
        devices = [one for one in registry.list_nodes() if one.pc == gone.node_id]
        invites = [one for one in registry.list_invites() if one.invite_id == gone.invite_id]
    further = len(devices) - 1
    ending = f", with {further} further device{'s' * (further > 1)}" if further else ""
    click.echo(f"Node {gone.node_id} ({printable_line(gone.name)}) is removed{ending}.")
    if any(one.state(now) == "usable" for one in invites):
        click.echo(
            f"Its owner could join anew: molink invite revoke {gone.invite_id} prevents that."
        )


def _at_terminal() -> bool:
    """Whether a person can be asked; a script knows what it does."""
    return sys.stdin.isatty()


@contextmanager
def _registry(data_dir: str | None, *, make: bool = False) -> Iterator["Registry"]:
    from molink.config.data_dir import data_dir as folder
    from molink.control.registry.registry import Registry

    before_subcommand = click.get_current_context().obj
    registry = Registry.open(folder(DATA_FOLDER, data_dir or before_subcommand), make=make)
    try:
        yield registry
    finally:
        registry.close()


def _invite_fields(invite: "InviteRecord", now: float) -> Row:
    return {
        "id": invite.invite_id,
        "name": invite.name,
        "state": invite.state(now),
        "uses_left": invite.uses_left,
        "uses_total": invite.uses_total,
        "created": local_time(invite.created),
        "expires": local_time(invite.expires),
    }


def _node_fields(node: "NodeRecord", live: Mapping[str, Mapping[str, Any]]) -> Row:
    now = live.get(node.node_id, {})
    return {
        "id": node.node_id,
        "name": node.name,
        "joined": local_time(node.joined),
        "pc": None if node.is_pc else node.pc,
        "invite": node.invite_id,
        "removed": None if node.removed is None else local_time(node.removed),
        "state": now.get("state"),
        "layers": now.get("layers"),
        "device": now.get("device"),
        "version": now.get("version"),
        "protocol": now.get("protocol"),
        "reason": now.get("reason"),
    }


def _absent(row: Row, *, is_moved: bool) -> Row:
    """State and reason of a member that its coordinator does not know of."""
    if row["state"] is not None or row["removed"] is not None:
        return {}
    return {"state": "moved", "reason": MOVED} if is_moved else {"state": "lost", "reason": UNSEEN}


def _node_row(node: Mapping[str, Any]) -> Row:
    """Row for people: what a node does comes before where it is from."""
    layers = node["layers"]
    shown = {
        "state": "removed" if node["removed"] else node["state"],
        "layers": layers_text(layers) if layers and node["state"] != "lost" else None,
    }
    names = ("id", "name", "state", "layers", "device", "version", "joined", "pc", "invite")
    return {name: shown.get(name, node[name]) for name in (*names, "reason")}
