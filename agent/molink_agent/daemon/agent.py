"""One agent from its start to its end: everything that runs on a volunteer's PC but the stages.

An agent has a node for each device that it lends, and evaluates every few seconds what its owner
allows; that holds for all nodes. Devices come and go with the limits, and with drivers.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from molink.errors import ControlError, MolinkError
from molink.tasks import task_group
from molink_agent.daemon.device_node import DeviceNode
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.limits.limits import DEVICES_MAX
from molink_agent.limits.owner_policy import OwnerPolicy
from molink_agent.network.port_mapping import PortMapper

REFRESH_S = 2.0
"""An owner who comes back waits no longer than this for the agent to notice."""

DEVICES_EVERY_S = 60.0
"""Seconds between two questions which devices there are, while the limits stay the same: drivers
are installed seldom, and asking one need not be free."""

NO_DEVICE = ""
"""Device of a node that lends nothing now: its own was taken back, or is broken."""


class LeftError(MolinkError):
    """Raised when the owner's wish to leave is fulfilled."""


@dataclass(slots=True)
class Agent:
    """The device nodes of one PC, and what its owner allows them."""

    pc: ThisPc
    owner: OwnerPolicy
    mapper: PortMapper
    maps_ports: Callable[[], bool]
    """Whether the owner lets the router be asked at all, when the agent starts."""
    make_node: Callable[[int], DeviceNode]
    """Function that makes the node with this number."""
    nodes: list[DeviceNode] = field(default_factory=list)
    _group: asyncio.TaskGroup | None = None
    _devices_checked_at: float | None = None
    _refreshing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self._add_node()

    @property
    def first(self) -> DeviceNode:
        """The PC's own node; there always is one."""
        return self.nodes[0]

    async def run(self) -> None:
        """Run until cancelled, until it has left, or until the coordinator or another agent ends
        it. Raises LeftError, JoinRefusedError, ReplacedError, UserError.
        """
        async with task_group() as self._group:
            await self.refresh()
            self._start(self.first)
            self._group.create_task(self._keep_fresh())
            if self.maps_ports():
                self._group.create_task(self.mapper.run())
                self._group.create_task(self._publish_mapped())

    async def refresh(self) -> None:
        """Evaluate what the owner allows, and have each node do it."""
        async with self._refreshing:
            limits_changed = await self.owner.evaluate(self.pc.own_pids)
            self.pc.lend_cache_ram(is_lent=self.owner.now.allowed)  # First: it is back at once.
            await self._check_devices(limits_changed=limits_changed)
            for node in self.nodes:
                with suppress(ControlError):  # The node itself finds out.
                    await node.refresh(limits_changed=limits_changed)

    async def _keep_fresh(self) -> None:
        while True:
            if self.owner.leaving and not (self.pc.busy or self.first.lends):
                raise LeftError("This PC has left the cluster.")
            await asyncio.sleep(REFRESH_S)
            await self.refresh()

    async def _check_devices(self, *, limits_changed: bool) -> None:
        """Have a node for each lent device. One that computes is not taken for gone only because
        its driver does not answer."""
        now = time.monotonic()
        checked_at = self._devices_checked_at
        is_due = checked_at is None or now - checked_at >= DEVICES_EVERY_S
        if self._group is None or not (is_due or limits_changed):
            return
        self._devices_checked_at = now
        lent = [part.device for part in await asyncio.to_thread(self.pc.lent)][:DEVICES_MAX]
        busy = [node.device for node in self.nodes if node.stage.busy and not limits_changed]
        there = [*lent, *(device for device in busy if device not in lent)]
        devices = assign_devices([node.device for node in self.nodes], there)
        for node, device in zip(self.nodes, devices, strict=False):
            await node.set_device(device)
        for device in devices[len(self.nodes) :]:
            self._add_node()
            await self.nodes[-1].set_device(device)
            self._start(self.nodes[-1])

    def _add_node(self) -> None:
        self.nodes.append(self.make_node(len(self.nodes)))

    def _start(self, node: DeviceNode) -> None:
        assert self._group is not None, "nodes run while the agent does"
        self._group.create_task(node.run())

    async def _publish_mapped(self) -> None:
        """Publish the nodes' addresses whenever the router's mappings have changed."""
        while True:
            await self.mapper.changed.wait()
            self.mapper.changed.clear()
            for node in self.nodes:
                with suppress(ControlError):
                    await node.probes.addresses_changed()


def assign_devices(now: Sequence[str], lent: Sequence[str]) -> tuple[str, ...]:
    """The device of each node, by its number, when these devices are lent. Pure. `now`: as it has
    been.

    The keys of a node follow from its number and its stage computes on its device, so a node keeps
    a device that is still lent. A node without a device takes the next that no other has; devices
    that are left get further nodes, behind the others. There is always one node.
    """
    kept = [device if device in lent else NO_DEVICE for device in now or (NO_DEVICE,)]
    free = [device for device in lent if device not in kept]
    nodes = [device or (free.pop(0) if free else NO_DEVICE) for device in kept]
    return (*nodes, *free)
