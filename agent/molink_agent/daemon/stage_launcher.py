"""Starts the stages of this PC's nodes: fetches weights and starts the process meanwhile.

All nodes share one directory of weights. They fetch one after the other, as only one process may
write there at a time, and a layer that two of them hold lies there once. What a node's stage runs
from, another one's download never removes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from molink.control.messages.payloads import AssignedWork
from molink.node.stage_handle import StageHandle, WarmStage
from molink.stage_protocol.messages import LoadStage
from molink.wire.curve_keys import CurveKeys
from molink_agent.daemon.membership import Admission
from molink_agent.daemon.routes import ListenAddress
from molink_agent.daemon.this_pc import ThisPc
from molink_agent.data_files import WEIGHTS_DIR
from molink_agent.limits.lent import lent_disk_bytes
from molink_agent.probe.machine import disk_free_bytes
from molink_agent.weights import CoordinatorSource, HubSource, WeightsLimits, ensure_weights

__all__ = ["AgentStageLauncher", "WeightsCache"]


@dataclass(slots=True)
class WeightsCache:
    """The weights on this PC's disk, shared by all its nodes."""

    pc: ThisPc
    _fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    _used: dict[int, Path] = field(default_factory=dict)
    """What each node asked for last, by its number."""

    async def get(
        self, number: int, token: str, work: AssignedWork, report: Callable[[float], None]
    ) -> str:
        """Fetch what is missing of a stage's layers; the directory to load them from. `token` is
        the node's for the coordinator's weights. Raises MolinkError."""
        weights = work.weights
        source = CoordinatorSource(weights.url, token) if weights.url else HubSource(weights.model)
        async with self._fetching:
            path = await ensure_weights(
                source,
                range(*work.layers),
                self.pc.data_dir / WEIGHTS_DIR,
                WeightsLimits(disk_bytes_max=self._cap(), keep=self._kept(number)),
                lambda fraction, rate: report(fraction),
            )
        self._used[number] = path
        return str(path)

    def _cap(self) -> int | None:
        limits, free = self.pc.limits.limits, disk_free_bytes(self.pc.data_dir)
        return lent_disk_bytes(limits, free, 0) if limits.disk_gb else None

    def _kept(self, number: int) -> frozenset[Path]:
        """What the stages of other nodes run from."""
        return frozenset(
            path
            for other, path in self._used.items()
            if other != number and self.pc.stages[other].manager.busy
        )


@dataclass(slots=True)
class AgentStageLauncher:
    """Starts the stages of one node; an agent's StageLauncher."""

    number: int
    """The node's."""
    admission: Admission
    listen_address: ListenAddress
    cache: WeightsCache
    _warm: WarmStage = field(default_factory=WarmStage)

    async def prepare(self, work: AssignedWork, report: Callable[[float], None]) -> str:
        """Start the stage's process, and download meanwhile what is missing of its layers."""
        token = self.admission.membership.answer.weights_token
        await self._warm.begin(work.threads)
        try:
            return await self.cache.get(self.number, token, work, report)
        except BaseException:
            await self._warm.drop()
            raise

    async def start(
        self, work: AssignedWork, directory: str, allowed: tuple[str, ...]
    ) -> StageHandle:
        """Tell the process what to load."""
        pair = self.admission.pair
        load = LoadStage(
            model=directory,
            work=work,
            address=self.listen_address.host,
            keys=CurveKeys(pair.public_z85, pair.secret_z85, allowed),
        )
        return await self._warm.start("This PC's stage", load)
