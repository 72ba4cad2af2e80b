"""`molink up MODEL --replaces FOLDER`: a coordinator of the same cluster beside one that runs, for
another model; and `molink node move`, which hands it PCs.

At its first start it copies the cluster. While the old one runs it has ports of its own, and the
old one leads PCs and users on to it; once that has ended it listens at the old one's ports as well.
"""

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from molink.errors import ErrorGuard, UserError
from molink.terminal.tables import DATA_FOLDER, data_dir_option

if TYPE_CHECKING:
    from molink.control.registry.registry import Registry
    from molink.control.registry.succession import Successor

SOCKET_PATH_MAX = 107
"""Bytes of a socket's path (Linux, unix(7))."""

LOOK_S = 0.5
"""Seconds between two looks whether the old coordinator has ended: its ports answer nobody then."""


def copy_cluster(old: Path, new: Path) -> None:
    """Copy the cluster of one folder into another that holds none, for a coordinator beside; one
    that holds the same cluster stays as it is. Raises UserError where either cannot be."""
    from molink.cli.upkeep.backup import backup_contents
    from molink.control.backup import read_backup, restore_backup, write_backup
    from molink.control.registry.registry import FILE_NAME, Registry, skip_revisions
    from molink.control.registry.succession import set_moved, set_successor
    from molink.version import version

    if old.resolve() == new.resolve():
        raise UserError("--replaces takes another folder than --data-dir: give each its own.")
    with closing(Registry.open(old, make=False)) as before:
        key = before.coordinator.public
        if (new / FILE_NAME).exists():
            with closing(Registry.open(new)) as here:
                if here.coordinator.public != key:
                    raise UserError(f"{new} holds another cluster than {old}: give a new folder.")
            return
    new.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=new) as aside:
        path, copy = Path(aside) / "cluster", Path(aside) / "copy"
        write_backup(path, old, backup_contents(), version())
        copy.mkdir()
        names = restore_backup(read_backup(path, backup_contents()), copy, backup_contents())
        with closing(Registry.open(copy)) as registry:
            skip_revisions(registry)
            set_successor(registry, None)
            set_moved(registry, ())
        for name in names:  # Members last: without those it holds no cluster, and is copied anew.
            (copy / name).replace(new / name)


def check_sockets(own: "Successor") -> None:
    """Raise UserError where the other coordinator could pass nothing on to this one."""
    from molink.config.data_dir import api_socket

    folder = Path(own.folder)
    for port in (own.port, own.agents_port):
        path = api_socket(folder, port)
        if not path.exists() or len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise UserError(
                f"No socket can be made and found in {folder}: give a --data-dir whose path is "
                "shorter, on a disk of this machine."
            )


@dataclass(slots=True)
class TakingOver:
    """The last step of a change: the ports of the coordinator that was replaced, once it ends."""

    old: Path
    own: "Successor"
    """What the old one is told of this one."""
    registry: "Registry"
    """Registry of this one."""
    listen: Callable[[int, int], Awaitable[None]]
    """Listens at these ports of the API and for agents, too. Raises UserError."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Taking the old ports over"))

    async def run(self) -> None:
        """Be known to the old coordinator while it runs, take its ports when it has ended, and keep
        it from being started again; until cancelled."""
        from molink.control.registry.registry import Registry

        with ExitStack() as stack:
            before = stack.enter_context(closing(Registry.open(self.old, make=False)))
            stack.callback(_no_more, before)
            while not self._has_ended(stack):
                with self.guard:
                    self._be_known(before)
                await asyncio.sleep(LOOK_S)
            while True:
                with self.guard:
                    await self._listen(before)
                    await asyncio.Event().wait()
                await asyncio.sleep(LOOK_S)

    def _has_ended(self, stack: ExitStack) -> bool:
        """Whether nobody commands with the old folder; then nobody can, until the stack ends."""
        from molink.config.data_dir import only_one
        from molink.coordinator.start import LOCK_FILE

        try:
            stack.enter_context(only_one("A coordinator", self.old / LOCK_FILE))
        except UserError:
            return False
        return True

    def _be_known(self, before: "Registry") -> None:
        from molink.control.registry.succession import rest_is_left, set_successor, successor_of

        rest_is_left(self.registry)
        if successor_of(before) != self.own:
            set_successor(before, self.own)

    async def _listen(self, before: "Registry") -> None:
        from molink.control.registry.succession import take_rest

        await asyncio.to_thread(take_rest, before, self.registry)
        await self.listen(_port(before.api_url), _port(before.url))
        if before.url is not None:
            self.registry.url = before.url


def _no_more(before: "Registry") -> None:
    """Lead nobody on to a coordinator that ends, unless PCs were handed to it: it comes back."""
    from molink.control.registry.succession import moved_pcs, set_successor

    if not moved_pcs(before):
        set_successor(before, None)


def _port(url: str | None) -> int:
    from urllib.parse import urlsplit

    return (urlsplit(url).port if url else None) or 0


@click.command("move")
@click.argument("node", metavar="ID|NAME...", nargs=-1, required=True)
@click.option("--back", is_flag=True, help="Take them back from there.")
@data_dir_option
def move_nodes(node: tuple[str, ...], back: bool, data_dir: str | None) -> None:
    """Hand PCs, with all their devices, to the coordinator that was started beside this one with
    `molink up MODEL --replaces FOLDER`; their owners need do nothing."""
    from molink.control.registry.succession import move, pcs_called

    with _both(data_dir) as (here, beside):
        pcs = pcs_called(here, node)
        old, new = (beside, here) if back else (here, beside)
        move(old, new, pcs)
    names = " and ".join(pcs.values())
    click.echo(
        f"{names} {'comes' if len(pcs) == 1 else 'come'} back: answers under way end first."
        if back
        else f"{names} {'goes' if len(pcs) == 1 else 'go'} over once answers under way have ended; "
        "--back undoes it."
    )


@contextmanager
def _both(data_dir: str | None) -> Iterator[tuple["Registry", "Registry"]]:
    """The registries of a coordinator and of the one beside it. Raises UserError without one."""
    from molink.config.data_dir import data_dir as folder
    from molink.control.registry.registry import Registry
    from molink.control.registry.succession import NO_SUCCESSOR, successor_of

    with closing(Registry.open(folder(DATA_FOLDER, data_dir), make=False)) as here:
        after = successor_of(here)
        if after is None:
            raise UserError(NO_SUCCESSOR)
        with closing(Registry.open(Path(after.folder), make=False)) as beside:
            yield here, beside
