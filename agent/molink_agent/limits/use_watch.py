"""Asks whether the PC is in use, but only where its owner cares, and no oftener than it is worth.

Without `only_when_idle_minutes` nobody is asked anything: an idle agent starts no processes.
"""

import asyncio

from molink_agent.limits.limits import Limits
from molink_agent.probe.commands import Ask, answer_of
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.idle import INPUT_POLL_S, INPUT_POLL_WSL_S, IdleWatch
from molink_agent.probe.input_idle import InputSource, ask_input_idle

__all__ = ["UseWatch"]


class UseWatch:
    """One for each agent. Times are of a clock that does not jump (`time.monotonic`)."""

    def __init__(
        self,
        sources: tuple[InputSource, ...],
        gpus: GpuProbe,
        *,
        wsl: bool = False,
        ask: Ask = answer_of,
    ) -> None:
        self._sources = sources
        self._gpus = gpus
        self._ask = ask
        self._every_s = INPUT_POLL_WSL_S if wsl else INPUT_POLL_S
        self._watch = IdleWatch()
        self._asked_at_s: float | None = None

    async def look(
        self, limits: Limits, now_s: float, own_pids: frozenset[int] = frozenset()
    ) -> None:
        """Ask if it is time to; may take seconds. `own_pids`: our stages that use a GPU."""
        if limits.only_when_idle_minutes is None or not self._due(now_s):
            return
        self._asked_at_s = now_s
        answer = await ask_input_idle(self._sources, self._ask)
        report = await asyncio.to_thread(self._gpus.read, own_pids)
        self._watch.observe(now_s, answer.seconds, report.others_percent)

    def idle_s(self, now_s: float) -> float | None:
        """For `UseFacts.idle_s`."""
        return self._watch.idle_s(now_s)

    def _due(self, now_s: float) -> bool:
        return self._asked_at_s is None or now_s - self._asked_at_s >= self._every_s
