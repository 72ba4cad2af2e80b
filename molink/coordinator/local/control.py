"""The control plane of `molink serve`: broker, registry, hub and local nodes in one process.

Everything of it lies in a temporary folder and ends with the server; the broker listens on loopback
and lets in nobody but these nodes. Tokens and tensors never pass here.
"""

import asyncio
import logging
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from molink import __version__
from molink.config.ring_hosts import LOCAL_ADDRESS
from molink.control.addresses import Credentials
from molink.control.broker.broker import Broker, open_broker
from molink.control.identity import KeyPair
from molink.control.messages.joining import request_to_join
from molink.control.registry.registry import Registry
from molink.coordinator.local.fixed_plan import RingPlan, stage_name
from molink.coordinator.local.local_node import LocalNode
from molink.coordinator.members.hub import ControlHub
from molink.coordinator.members.joining import let_in
from molink.coordinator.members.node_book import Node, NodeBook
from molink.errors import ControlError, MolinkError, UserError

__all__ = ["LocalControl"]

INVITE_S = 60.0
"""Its nodes are admitted in the same moment."""

FOLDER_MODE = 0o711
"""The broker may run as a user of its own, which must get to its folder inside; each file there is
closed to others."""

log = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(slots=True)
class LocalControl:
    """Running within `start`'s block."""

    hub: ControlHub
    nodes: Sequence[LocalNode]
    running: "asyncio.Task[None]"
    """Ends only by an error."""

    @classmethod
    @asynccontextmanager
    async def start(cls, plan: RingPlan) -> AsyncIterator["LocalControl"]:
        """With a local node for each stage of a plan, all of them there.

        Raises UserError when the broker or its folder cannot be had, ControlError when it refuses
        somebody.
        """
        async with AsyncExitStack() as stack:
            folder = stack.enter_context(_folder())
            registry = Registry.open(Path(folder))
            stack.callback(registry.close)
            nodes = _admitted(registry, plan)
            broker = await _started_broker(registry, Path(folder))
            stack.push_async_callback(broker.stop)
            # One that was held up for seconds finds its nodes as alive as itself.
            hub = await stack.enter_async_context(
                ControlHub.open(broker, registry, NodeBook(), lasting=True)
            )
            arrived = _Arrival(hub, nodes)
            model = plan.works[0].weights.model
            running = asyncio.create_task(_run(hub, nodes, broker, model))
            stack.push_async_callback(_end, running)
            control = cls(hub, nodes, running)
            await control.unless_lost(arrived.wait())
            yield control

    @property
    def members(self) -> list[Node]:
        """The nodes as the coordinator knows them, in order of the stages."""
        return [self.hub.book.nodes[node.node_id] for node in self.nodes]

    async def unless_lost(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of `work`. Raises what has ended the control plane if that comes first."""
        working = asyncio.ensure_future(work)
        try:
            await asyncio.wait({working, self.running}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                await self.watch()
            return working.result()
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

    async def watch(self) -> None:
        """Until it has ended, then raises MolinkError."""
        await asyncio.wait({self.running})
        self.running.result()


@dataclass(slots=True)
class _Arrival:
    """When all nodes have said who they are and where."""

    hub: ControlHub
    nodes: Sequence[LocalNode]

    async def wait(self) -> None:
        changed = asyncio.Event()
        self.hub.noticed = lambda node_id: changed.set()
        while not all(self._is_here(node) for node in self.nodes):
            await changed.wait()
            changed.clear()

    def _is_here(self, local: LocalNode) -> bool:
        node = self.hub.book.nodes.get(local.node_id)
        return node is not None and node.is_here and node.profile is not None


def _folder() -> "tempfile.TemporaryDirectory[str]":
    try:
        folder = tempfile.TemporaryDirectory(prefix="molink-serve-")
    except OSError as error:
        raise UserError(
            f"No temporary folder can be made ({error.strerror}): set TMPDIR to one that can."
        ) from None
    Path(folder.name).chmod(FOLDER_MODE)
    return folder


def _admitted(registry: Registry, plan: RingPlan) -> list[LocalNode]:
    """A node for each stage, let in as an agent is, with keys of its own."""
    now, places = time.time(), range(len(plan.works))
    url = f"http://{LOCAL_ADDRESS}"
    invite = registry.make_invite(INVITE_S, len(places), "", now, url)
    nodes = []
    for place in places:
        request = request_to_join(invite, stage_name(place), __version__, now)
        member = registry.admit(KeyPair.generate().public, request, now).node
        nodes.append(LocalNode.of(plan, place, Credentials(member.node_id, member.password)))
    return nodes


async def _started_broker(registry: Registry, folder: Path) -> Broker:
    """Mosquitto where it is installed and starts; else the one in this process."""
    try:
        return await _start(open_broker(None, LOCAL_ADDRESS, 0, folder), registry)
    except UserError as error:
        log.warning("%s The broker runs inside this process instead.", error)
    return await _start(open_broker("embedded", LOCAL_ADDRESS, 0, folder), registry)


async def _start(broker: Broker, registry: Registry) -> Broker:
    await let_in(broker, registry)
    await broker.start()
    return broker


async def _run(hub: ControlHub, nodes: Sequence[LocalNode], broker: Broker, model: str) -> None:
    """Raises MolinkError, whatever goes wrong."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(hub.run(model))
            for node in nodes:
                group.create_task(node.run(broker.address))
    except ExceptionGroup as failures:
        first = failures.exceptions[0]
        if isinstance(first, MolinkError):
            raise first from None
        log.error("the control plane has stopped", exc_info=first)
        raise ControlError(f"The control plane stopped on {type(first).__name__}.") from None


async def _end(running: "asyncio.Task[None]") -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
