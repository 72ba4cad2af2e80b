"""`molink node move`: PCs handed to the coordinator that was started beside this one with
`molink up MODEL --replaces FOLDER`, and which of them have gone over."""

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from molink.cli.own_server import live_nodes, own_socket, socket_of
from molink.errors import UserError
from molink.terminal.tables import DATA_FOLDER, Row, data_dir_option, json_option, show_rows

if TYPE_CHECKING:
    from molink.control.registry.database import NodeRecord
    from molink.control.registry.registry import Registry
    from molink.control.registry.succession import Successor

Live = Mapping[str, Mapping[str, Any]] | None
"""`nodes` of GET /cluster by id; None: the coordinator does not answer."""

ENDED = (
    "The coordinator of {here} has ended, and its PCs are with that of {beside}: to have its model "
    "back, start it beside, `molink up MODEL --data-dir NEW --replaces {beside}`, and hand it PCs."
)
AWAY = "The coordinator of {beside} does not run, and nobody would take PCs in: start it again."

UNSEEN = "It has not come since the coordinator was started."
GOING = "Answers under way end first, or go on in another ring."
WAITING = (
    "It was let go and has not come: see that its PC is on, and reaches the --agents-port and the "
    "--broker-port of the other coordinator."
)
REMOVED = "It was removed, and its key is refused."
UNKNOWN = "The other coordinator does not answer: start it again with the same line."


@dataclass(frozen=True, slots=True)
class Pair:
    """A coordinator and the one beside it, as their folders tell."""

    here: "Registry"
    beside: "Registry"
    after: "Successor"

    @property
    def runs(self) -> bool:
        """Whether the first one runs."""
        port = urlsplit(self.here.api_url or "").port
        return port is not None and own_socket(port, str(self.here.path.parent)) is not None

    @property
    def runs_beside(self) -> bool:
        """Whether the one beside runs."""
        return own_socket(self.after.port, self.after.folder) is not None

    def error(self, sentence: str) -> UserError:
        """An error of this sentence, with the folders in it."""
        return UserError(sentence.format(here=self.here.path.parent, beside=self.after.folder))


@click.command("move")
@click.argument("node", metavar="[ID|NAME...]", nargs=-1)
@click.option("--back", is_flag=True, help="Take them back from there.")
@json_option
@data_dir_option
def move_nodes(node: tuple[str, ...], back: bool, as_json: bool, data_dir: str | None) -> None:
    """Hand PCs, with all their devices, to the coordinator that was started beside this one with
    `molink up MODEL --replaces FOLDER`; their owners need do nothing. Without a name: show which
    PCs have gone over, which have not, and why."""
    if back and not node:
        raise UserError("--back takes the names of PCs: molink node move shows who was moved.")
    with _pair(data_dir) as pair:
        if not pair.runs:
            raise pair.error(ENDED)
        if node:
            click.echo(_moved(pair, node, back=back))
            return
        rows = list(_rows(pair, data_dir))
    show_rows(rows, as_json, "No PC has joined yet.")


def _moved(pair: Pair, names: tuple[str, ...], *, back: bool) -> str:
    """Hand PCs over, or back; what the operator is told. Raises UserError where nobody is there to
    take them."""
    from molink.control.registry.succession import move, moved_pcs, pcs_called, set_successor

    if not back and not pair.runs_beside:
        raise pair.error(AWAY)
    pcs = pcs_called(pair.here, names)
    old, new = (pair.beside, pair.here) if back else (pair.here, pair.beside)
    move(old, new, pcs)
    told, several = " and ".join(pcs.values()), len(pcs) > 1
    if not back:
        return (
            f"{told} {'go' if several else 'goes'} over once answers under way have ended: `molink "
            "node move` shows how far, --back undoes it."
        )
    if not (moved_pcs(pair.here) or pair.runs_beside):
        set_successor(pair.here, None)  # As it would have done when it ended.
    return f"{told} {'come' if several else 'comes'} back: answers under way end first."


def handed_over(url: str, key: str | None, data_dir: str | None) -> list[Row]:
    """Rows of the PCs that the server at `url` was told to hand over; none where it is no
    coordinator of this data directory, or no other one stands beside."""
    if key or socket_of(url, data_dir) is None:
        return []
    try:
        with _pair(data_dir) as pair:
            return [row for row in _rows(pair, data_dir) if row["where"] != "here"]
    except UserError:
        return []


def _rows(pair: Pair, data_dir: str | None) -> Iterator[Row]:
    """A row for each member PC, and for each that was moved and is none any more."""
    from molink.control.registry.succession import moved_pcs

    moved = moved_pcs(pair.here)
    here = live_nodes(pair.here.api_url, data_dir)
    beside = live_nodes(pair.beside.api_url, pair.after.folder)
    gone = {one.pc for one in pair.beside.list_nodes(forgotten=True) if one.removed is not None}
    for one in pair.here.list_nodes():
        is_removed = one.removed is not None or one.node_id in gone
        if one.is_pc and (one.node_id in moved or not is_removed):
            yield _row(one, here, beside, is_moved=one.node_id in moved, is_removed=is_removed)


def _row(one: "NodeRecord", here: Live, beside: Live, *, is_moved: bool, is_removed: bool) -> Row:
    """Where a PC is: here, going, waiting, over or removed; its state there, and why."""
    left, come = (here or {}).get(one.node_id), (beside or {}).get(one.node_id)
    found: tuple[str, str | None, str]
    if is_removed:
        found = "removed", None, REMOVED
    elif not is_moved:
        found = "here", *_state(left)
    elif come is not None:
        found = "over", *_state(come)
    elif left is not None:
        found = "going", left["state"], GOING
    else:
        found = "waiting", None, UNKNOWN if beside is None else WAITING
    where, state, reason = found
    return {"id": one.node_id, "name": one.name, "where": where, "state": state, "reason": reason}


def _state(told: Mapping[str, Any] | None) -> tuple[str, str]:
    """State and reason as the coordinator tells of a node; it may not know of it."""
    return ("lost", UNSEEN) if told is None else (told["state"], told["reason"])


@contextmanager
def _pair(data_dir: str | None) -> Iterator[Pair]:
    """A coordinator and the one beside it. Raises UserError without one."""
    from molink.config.data_dir import data_dir as folder
    from molink.control.registry.registry import Registry
    from molink.control.registry.succession import NO_SUCCESSOR, successor_of

    with closing(Registry.open(folder(DATA_FOLDER, data_dir), make=False)) as here:
        after = successor_of(here)
        if after is None:
            raise UserError(NO_SUCCESSOR)
        with closing(Registry.open(Path(after.folder), make=False)) as beside:
            yield Pair(here, beside, after)
