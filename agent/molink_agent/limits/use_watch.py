"""For how long has nobody used this PC: neither touched it nor computed on its GPU?

A film that is watched without touching anything shows on the GPU only, a text that is written on
the input only; the later of the two counts. Answers come now and then and some fail, so what is
remembered is the time of last use: it stays true while nobody answers, for a while.

Without `only_when_idle_minutes` nobody is asked anything: an idle agent starts no processes.
"""

import asyncio
from dataclasses import dataclass

from molink_agent.limits.limits import Limits
from molink_agent.probe.commands import Ask, answer_of
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.input_idle import InputSource, ask_input_idle

__all__ = ["INPUT_POLL_S", "IdleTime", "UseWatch"]

INPUT_POLL_S = 20.0
"""How often to ask: an owner who comes back has the PC alone after this at the latest, and asking
costs a process of about 10 ms."""

INPUT_POLL_WSL_S = 60.0
"""Under WSL: starting PowerShell costs about half a second of a core, 1 % at this rate."""

UNKNOWN_AFTER_S = 200.0
"""Three answers in a row may be missing; then the idle time is unknown."""

GPU_USED_FROM_PERCENT = 15.0
"""A desktop with a browser draws 1 to 10 %; games and renderers start at 30."""

GPU_FREE_BELOW_PERCENT = 8.0
"""Under the other, so that a load about the threshold does not come and go with every poll."""


@dataclass(slots=True)
class IdleTime:
    """Time since the PC was last used, pure. Times are of any one clock that does not jump."""

    _input_at_s: float | None = None
    _answered_at_s: float = 0.0
    _gpu_used: bool = False
    _gpu_used_at_s: float | None = None

    def observe(
        self, now_s: float, input_idle_s: float | None, gpu_others_percent: float | None = None
    ) -> None:
        """Take answers into account; None is no answer."""
        if input_idle_s is not None:
            self._input_at_s, self._answered_at_s = now_s - input_idle_s, now_s
        if gpu_others_percent is not None:
            threshold = GPU_FREE_BELOW_PERCENT if self._gpu_used else GPU_USED_FROM_PERCENT
            self._gpu_used = gpu_others_percent >= threshold
        if gpu_others_percent is not None and self._gpu_used:
            self._gpu_used_at_s = now_s

    def idle_s(self, now_s: float) -> float | None:
        """Since the last use; None while it is unknown."""
        if self._input_at_s is None or now_s - self._answered_at_s > UNKNOWN_AFTER_S:
            return None
        used_at_s = max(self._input_at_s, self._gpu_used_at_s or self._input_at_s)
        return max(0.0, now_s - used_at_s)


class UseWatch:
    """Asks desktop and GPU driver whether the PC is in use, where its owner cares, now and then."""

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
        self._idle = IdleTime()
        self._asked_at_s: float | None = None

    async def poll(
        self, limits: Limits, now_s: float, own_pids: frozenset[int] = frozenset()
    ) -> float | None:
        """How long nobody has used the PC, None if unknown; asks if it is time to, which may take
        seconds. `own_pids`: our stages that use a GPU."""
        is_due = self._asked_at_s is None or now_s - self._asked_at_s >= self._every_s
        if limits.only_when_idle_minutes is not None and is_due:
            self._asked_at_s = now_s
            answer = await ask_input_idle(self._sources, self._ask)
            report = await asyncio.to_thread(self._gpus.read, own_pids)
            self._idle.observe(now_s, answer.seconds, report.others_percent)
        return self._idle.idle_s(now_s)
