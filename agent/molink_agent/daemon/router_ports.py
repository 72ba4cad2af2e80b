"""The ports of all seats at the home's router: a PC has one mapper."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field

from molink_agent.network.port_mapping import PortMapper

__all__ = ["RouterPorts"]


@dataclass(slots=True)
class RouterPorts:
    """What each seat wants, put together."""

    is_wanted: Callable[[], bool]
    """Whether the owner lets the router be asked at all, when the agent starts."""
    mapper: PortMapper = field(default_factory=PortMapper)
    _wanted: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def mapped(self) -> Mapping[int, str]:
        """host:port at the router, by this PC's port."""
        return self.mapper.mapped

    def want(self, node_id: str, ports: Iterable[int]) -> None:
        """All the ports of a seat that shall be mapped from now on."""
        self._wanted[node_id] = tuple(ports)
        self.mapper.want(port for wanted in self._wanted.values() for port in wanted)

    async def run(self, changed: Callable[[], Awaitable[None]]) -> None:
        """Until cancelled: keep the mappings, and tell when addresses have changed."""
        if not self.is_wanted():
            await asyncio.Event().wait()
        mapping = asyncio.create_task(self.mapper.run())
        try:
            while True:
                await self.mapper.changed.wait()
                self.mapper.changed.clear()
                await changed()
        finally:
            mapping.cancel()
            await asyncio.gather(mapping, return_exceptions=True)
