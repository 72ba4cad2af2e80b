"""Interfaces for hosting a stage on a PC: a starter of its processes, and routes of its links.

An agent and a local node bring their own.
"""

from collections.abc import Callable
from typing import Protocol

from molink.control.messages.assignment import InRing
from molink.control.messages.payloads import AssignedWork, StageLink
from molink.node.stage_handle import StageHandle
from molink.stage_protocol.messages import EnterRing, LoadStage, MovePath, PathMoved, StageLoaded


class StageLauncher(Protocol):
    """Starter of one node's stages, with what only that node knows: weights, keys, address."""

    async def prepare(self, work: AssignedWork, report: Callable[[float], None]) -> str:
        """Get what the stage will load, and start already what takes time; the directory of its
        weights. `report` is called with the fraction that is done. Raises MolinkError."""

    async def start(
        self, work: AssignedWork, directory: str, allowed: tuple[str, ...]
    ) -> StageHandle:
        """Start the stage's process, which loads `directory` and accepts links of the peers whose
        public keys are `allowed`."""

    async def more(
        self, work: AssignedWork, allowed: tuple[str, ...], report: Callable[[float], None]
    ) -> LoadStage:
        """Get what a stage that runs will load beside what it holds; what it is to be told. Raises
        MolinkError."""

    async def stand_ready(self, work: AssignedWork) -> None:
        """Have a process wait for another stage like this one, should this one be lost, if there
        is room for it."""

    async def stand_down(self) -> None:
        """End what waits, and forget what the stage has cached: nobody counts on this node any
        more."""


MoveLink = Callable[[MovePath], None]
"""Has a stage lead one of its links over another address."""


class LinkRoutes(Protocol):
    """Routes of one node's stage: where its links lead, and what they may carry.

    An agent looks for paths, through a relay where none is direct; a local node takes the address
    of the command.
    """

    @property
    def upload_bytes_per_s(self) -> Callable[[], float | None]:
        """The cap on everything that leaves, as it is now; None: there is none."""

    @property
    def paths(self) -> dict[str, str]:
        """Path of each outgoing link: "direct" or "relay"."""

    def listen(self, loaded: StageLoaded) -> None:
        """Lead others to the ports at which the stage listens."""

    async def join_command(self, epoch: int, command: InRing, move: MoveLink) -> EnterRing:
        """The stage's place in the ring, once each link has a route; `move` is called when one has
        a better one later. Raises StageError when one has none."""

    async def shadow_address(self, link: StageLink, move: MoveLink) -> tuple[str, str | None]:
        """Address of the next stage's shadow, and its public key where links are encrypted.
        Raises MolinkError when there is no way."""

    def path_moved(self, moved: PathMoved) -> None:
        """Take note that the stage has moved a link, or could not."""

    async def leave(self) -> None:
        """End the routes: the stage is in no ring any more."""
