"""Homes with slow uploads for a benchmark to put a ring into; gone when the block is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from molink.config.link_schedule import LinkShape
from molink.errors import UserError
from molink.node.stage_handle import ChildProcess
from tools.experiments.harness.hosts import RingHosts, StageAddress
from tools.experiments.homes.home_network import HomeNetwork, check_available

__all__ = ["HomeLines", "home_lines"]

LINES_MODULE = "tools.experiments.homes.delay_lines"


@dataclass(frozen=True, slots=True)
class HomeLines:
    """A network of homes, and the process that carries its packets."""

    network: HomeNetwork
    process: ChildProcess

    @property
    def hosts(self) -> RingHosts:
        """Hosts of a ring: each stage in its home."""
        coordinator, *others = self.network.homes
        stages = (
            StageAddress(home.address, ("ip", "netns", "exec", str(home.namespace)))
            for home in others
        )
        return RingHosts(tuple(stages), coordinator.address)

    async def packets_lost(self) -> int:
        """Packets lost in all queues so far. Raises UserError when the lines have ended."""
        return await self.order("")

    async def order(self, words: str) -> int:
        """Have an order of `line_faults` obeyed; packets lost so far. Raises UserError when the
        lines have ended."""
        self.process.write_line(f"{words}\n".encode())
        return int(await _line(self.process))


@asynccontextmanager
async def home_lines(shape: LinkShape, stages: int, congestion: str) -> AsyncIterator[HomeLines]:
    """Make homes for a coordinator and so many stages, each with an upload of this shape.

    `congestion` is a congestion control that this machine's kernel has. Raises UserError when the
    network cannot be made here.
    """
    check_available()
    arguments = (f"{shape.rate_mbps!r}:{shape.one_way_ms!r}", str(shape.queue_bytes))
    process = await ChildProcess.start(LINES_MODULE, [*arguments, str(stages), congestion])
    network = HomeNetwork.of(process.pid, stages)
    try:
        await _line(process)
        yield HomeLines(network, process)
    finally:
        await process.stop()
        await asyncio.to_thread(network.tear_down)  # Finds something only when it was killed.


async def _line(process: ChildProcess) -> bytes:
    line = await process.read_line()
    if not line:
        raise UserError("the lines between homes ended: what is wrong stands above")
    return line
