"""Detector of games that the owner plays: the card is theirs at once (`pause_on_game`).

Three signs, any of which counts: a program fills the screen; a program that draws keeps a lent card
busy; what is free of a card on which our stage computes has fallen below half of what it left free,
so other programs have grown into the rest. The last matters most where a full card does not fail:
under Windows and WSL its driver moves pages to the main memory, and game and stage crawl.

A sign lasts for a while after it was last seen: a stage that ends frees its memory, and a game
shows its menu, so that both would come and go. PCs that lend no card are asked nothing.
"""

import asyncio
from dataclasses import dataclass, field

from molink.hardware.card_memory import kept_free_bytes
from molink_agent.limits.lent import lending_card
from molink_agent.limits.limits import OwnerLimits
from molink_agent.probe.full_screen import FullScreenProbe
from molink_agent.probe.gpus import DriverGpu, GpuProbe

CARD_POLL_S = 5.0
"""Seconds between two questions to the driver, which take a millisecond: a game that starts fills a
card within some ten seconds."""

SCREEN_POLL_S = 20.0
SCREEN_POLL_WSL_S = 60.0
"""Seconds between two looks at the screen, here and under WSL, as for input: asking the desktop
starts a process, under WSL half a second of a core."""

GAME_KEEP_S = 90.0
"""Seconds since a sign was last seen: longer than a game loads or shows a menu."""

DRAWING_FROM_PERCENT = 30.0
"""Games and renderers start there; a desktop with a browser draws 1 to 10 %."""

PRESSURE_SHARE = 0.5
"""Part of the memory that stays free of a loan: below it others have taken what was left to them,
and want more."""


@dataclass(slots=True)
class GameWatch:
    """Watch for signs of a game; what it saw counts for a while."""

    gpus: GpuProbe
    """Probe of its own: a probe tells what has been used since it was last asked."""
    screen: FullScreenProbe
    screen_every_s: float = SCREEN_POLL_S
    _card_asked_at_s: float | None = None
    _screen_asked_at_s: float | None = None
    _seen: dict[str, float] = field(default_factory=dict)
    """When each sign was seen last, by its sentence."""

    @classmethod
    def on(cls, gpus: GpuProbe, screen: FullScreenProbe, *, wsl: bool) -> "GameWatch":
        """The watch of a PC, which asks Windows less often."""
        return cls(gpus, screen, SCREEN_POLL_WSL_S if wsl else SCREEN_POLL_S)

    async def poll(self, limits: OwnerLimits, now_s: float, own_pids: frozenset[int]) -> str:
        """Why the PC is its player's now, a sentence; empty: it is not. May take seconds.

        `own_pids`: our stages; none while nothing is lent.
        """
        if not limits.pause_on_game or limits.lends_cpu_only:
            self._seen.clear()
            return ""
        if _is_due(self._card_asked_at_s, CARD_POLL_S, now_s):
            self._card_asked_at_s = now_s
            await self._ask(limits, now_s, own_pids)
        self._seen = {one: at for one, at in self._seen.items() if now_s - at < GAME_KEEP_S}
        return next(iter(self._seen), "")

    async def _ask(self, limits: OwnerLimits, now_s: float, own_pids: frozenset[int]) -> None:
        report = await asyncio.to_thread(self.gpus.read, own_pids)
        apart = lending_card(limits, report)
        lent = [gpu for gpu in report.gpus if gpu == apart or _is_lent(limits, gpu)]
        for gpu in lent:
            if sign := sign_of_game(gpu, holds=bool(own_pids)):
                self._seen[sign] = now_s
        if lent and _is_due(self._screen_asked_at_s, self.screen_every_s, now_s):
            self._screen_asked_at_s = now_s
            if await self.screen.fills():
                self._seen["A program fills the screen (pause_on_game)."] = now_s


def sign_of_game(gpu: DriverGpu, *, holds: bool) -> str:
    """Sentence about a sign of a game on a lent card; empty: there is none. `holds`: whether stages
    of ours compute here; on which card the driver need not tell."""
    if gpu.drawing_percent is not None and gpu.drawing_percent >= DRAWING_FROM_PERCENT:
        return f"A game or another program draws on cuda:{gpu.index} (pause_on_game)."
    least = PRESSURE_SHARE * kept_free_bytes(gpu.memory_bytes)
    if holds and gpu.free_bytes < least:
        return f"Other programs need the memory of cuda:{gpu.index} (pause_on_game)."
    return ""


def _is_lent(limits: OwnerLimits, gpu: DriverGpu) -> bool:
    return limits.device == "auto" or f"cuda:{gpu.index}" in limits.device_names


def _is_due(asked_at_s: float | None, every_s: float, now_s: float) -> bool:
    return asked_at_s is None or now_s - asked_at_s >= every_s
