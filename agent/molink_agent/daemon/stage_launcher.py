"""The weights on this PC's disk: one place for all seats.

They fetch one after the other, as only one may write there at a time, and a layer that two of them
hold lies there once. What a seat's stage runs from, another one's download never removes.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from molink.control.messages.payloads import StageWork
from molink_agent.daemon.this_pc import WEIGHTS_DIR
from molink_agent.limits.lent import lent_disk_bytes
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.probe.machine import disk_free_bytes
from molink_agent.weights import CoordinatorSource, HubSource, WeightsLimits, ensure_weights

__all__ = ["Shelf"]


@dataclass(slots=True)
class Shelf:
    """One for each agent."""

    data_dir: Path
    limits: LimitsFile
    is_busy: Callable[[int], bool] = field(default=lambda seat: False)
    """Whether a seat's stage runs, or is to."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _used: dict[int, Path] = field(default_factory=dict)
    """What each seat asked for last."""

    async def get(
        self, seat: int, token: str, work: StageWork, report: Callable[[float], None]
    ) -> str:
        """Fetch what is missing of a stage's layers; the directory to load them from. `token` is
        the seat's for the coordinator's weights. Raises MolinkError."""
        weights = work.weights
        source = CoordinatorSource(weights.url, token) if weights.url else HubSource(weights.model)
        async with self._turn:
            path = await ensure_weights(
                source,
                range(*work.layers),
                self.data_dir / WEIGHTS_DIR,
                WeightsLimits(disk_bytes_max=self._cap(), keep=self._kept(seat)),
                lambda fraction, rate: report(fraction),
            )
        self._used[seat] = path
        return str(path)

    def _cap(self) -> int | None:
        limits, free = self.limits.limits, disk_free_bytes(self.data_dir)
        return lent_disk_bytes(limits, free, 0) if limits.disk_gb else None

    def _kept(self, seat: int) -> frozenset[Path]:
        others = {other: path for other, path in self._used.items() if other != seat}
        return frozenset(path for other, path in others.items() if self.is_busy(other))
