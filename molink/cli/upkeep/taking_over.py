"""`molink up MODEL --replaces FOLDER`: a coordinator of the same cluster beside one that runs, for
another model; `molink node move` hands it PCs.

At its first start it copies the cluster, and later it follows what is made or revoked there. While
the old one runs it has ports of its own, and the old one leads PCs and users on to it; once that
has ended it listens at the old one's ports as well. So both are of one machine.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from molink.errors import ErrorGuard, UserError

if TYPE_CHECKING:
    from molink.api.keys.store import KeyStore
    from molink.control.registry.registry import Registry
    from molink.control.registry.succession import Ports, Successor

SOCKET_PATH_MAX = 107
"""Bytes of a socket's path (Linux, unix(7))."""

LOOK_S = 0.5
"""Seconds between two looks whether the old coordinator has ended: its ports answer nobody then."""

ELSEWHERE = (
    "The coordinator of {old} runs, but not at port {port} here: start this one on its machine, "
    "with its --host and once it listens, since it is to take that port over."
)
OTHER_SCHEME = (
    "Users ask the coordinator of {old} by {scheme}://, and this one is to answer them at the same "
    "address: {do} --api-tls."
)


def check_old(old: Path, new: Path, host: str, *, api_tls: bool) -> None:
    """Raise UserError where a coordinator of the folder `new`, which listens at this host with or
    without TLS, could not take over from the one of the folder `old`."""
    from molink.api.server import is_free
    from molink.cli.own_server import own_socket
    from molink.control.registry.registry import Registry
    from molink.control.registry.succession import successor_of

    with closing(Registry.open(old, make=False)) as before:
        url, ports = (
            before.api_url,
            [urlsplit(one or "").port for one in (before.api_url, before.url)],
        )
        other = successor_of(before)
    if url and url.startswith("https:") != api_tls:
        scheme, do = ("http", "leave out") if api_tls else ("https", "give it")
        raise UserError(OTHER_SCHEME.format(old=old, scheme=scheme, do=do))
    if other and other.folder != str(new.absolute()) and own_socket(other.port, other.folder):
        raise UserError(f"The coordinator of {other.folder} takes over from {old}: end it first.")
    free = [port for port in ports if port and is_free(host, port)]
    if free and runs(old):
        raise UserError(ELSEWHERE.format(old=old, port=free[0]))


def runs(old: Path) -> bool:
    """Whether a coordinator runs with this folder."""
    from molink.config.data_dir import only_one
    from molink.coordinator.start import LOCK_FILE

    try:
        with only_one("A coordinator", old / LOCK_FILE):
            return False
    except UserError:
        return True


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
class Following:
    """Keys, invites and removals of the coordinator that is replaced, which hold here, too."""

    before: "Registry"
    here: "Registry"
    keys_before: "KeyStore"
    keys_here: "KeyStore"
    _is_behind: bool = True

    @classmethod
    @contextmanager
    def open(cls, old: Path, before: "Registry", here: "Registry") -> Iterator["Following"]:
        """Open the keys beside both registries, until the block ends. Raises UserError."""
        from molink.api.keys.store import KeyStore

        with (
            closing(KeyStore.open(old)) as keys_before,
            closing(KeyStore.open(here.path.parent)) as keys_here,
        ):
            yield cls(before, here, keys_before, keys_here)

    def look(self) -> None:
        """Take over what is new there. Raises StorageError or sqlite3.Error; what is missed is
        taken over by the next call."""
        from molink.control.registry.succession import follow

        changed = self.before.changed(), self.keys_before.changed_elsewhere()
        self._is_behind |= any(changed)
        if self._is_behind:
            now = time.time()
            follow(self.before, self.here, now)
            self.keys_here.adopt(self.keys_before, now)
            self._is_behind = False


@dataclass(slots=True)
class TakingOver:
    """The last step of a change: the ports of the coordinator that was replaced, once it ends."""

    old: Path
    own: "Successor"
    """What the old one is told of this one."""
    registry: "Registry"
    """Registry of this one."""
    listen: Callable[["Ports"], Awaitable[None]]
    """Listens at these ports, too. Raises UserError."""
    guard: ErrorGuard = field(default_factory=lambda: ErrorGuard("Taking the old ports over"))

    async def run(self) -> None:
        """Be known to the old coordinator while it runs, and follow it; take its ports when it has
        ended, and keep it from being started again; until cancelled."""
        from molink.control.registry.registry import Registry

        with ExitStack() as stack:
            before = stack.enter_context(closing(Registry.open(self.old, make=False)))
            stack.callback(_no_more, before)
            following = stack.enter_context(Following.open(self.old, before, self.registry))
            while not self._has_ended(stack):
                with self.guard:
                    self._be_known(before)
                    await asyncio.to_thread(following.look)
                await asyncio.sleep(LOOK_S)
            while True:
                with self.guard:
                    await asyncio.to_thread(following.look)
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
        from molink.control.registry.succession import take_ports, take_rest

        await asyncio.to_thread(take_rest, before, self.registry)
        await self.listen(await asyncio.to_thread(take_ports, before, self.registry))


def _no_more(before: "Registry") -> None:
    """Lead nobody on to a coordinator that ends, unless PCs were handed to it: it comes back."""
    from molink.control.registry.succession import moved_pcs, set_successor

    if not moved_pcs(before):
        set_successor(before, None)
