"""Verdict on whether the PC may be used now, from what its owner has set and what it is doing.

It is evaluated every few seconds, so it must not flap: to begin lending the PC must have been idle
for as long as its owner set, to go on it need only be idle for half of that. A touch is an idle
time of nought and ends it at once; an idle time that is rounded, late or told by two desktops in
turn does not.

A film that is watched without touching anything shows on the GPU only, a text that is written on
the input only; the later of the two counts. Answers come now and then and some fail, so what is
remembered is the time of last use: it stays true while nobody answers, for a while. Without
`only_when_idle_minutes` nobody is asked anything: an idle agent starts no processes.
"""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from molink.control.messages.payloads import NodeWish
from molink_agent.limits.game_watch import GameWatch
from molink_agent.limits.hours import is_open, next_change
from molink_agent.limits.limits import OwnerLimits
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.probe.commands import Ask, answer_of
from molink_agent.probe.gpus import GpuProbe
from molink_agent.probe.input_idle import InputSource, ask_input_idle
from molink_agent.probe.machine import runs_on_battery

PAUSED_FILE = "paused"
"""Name of the file that exists while the owner has paused: it outlives a restart."""

IDLE_KEEP_SHARE = 0.5
"""Part of the idle time that the owner asks for: with less, what is lent is given back."""


INPUT_POLL_S = 20.0
"""How often to ask: an owner who comes back has the PC alone after this at the latest, and asking
costs a process of about 10 ms."""

INPUT_POLL_WSL_S = 60.0
"""Seconds between two questions under WSL: starting PowerShell costs about half a second of a core,
1 % at this rate."""

UNKNOWN_AFTER_S = 200.0
"""Three answers in a row may be missing; then the idle time is unknown."""

GPU_USED_FROM_PERCENT = 15.0
"""A desktop with a browser draws 1 to 10 %; games and renderers start at 30."""

GPU_FREE_BELOW_PERCENT = 8.0
"""Use below which a GPU is free again, so that load about one threshold does not come and go."""


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
        """Seconds since the last use; None while it is unknown."""
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
        self, limits: OwnerLimits, now_s: float, own_pids: frozenset[int] = frozenset()
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


@dataclass(frozen=True, slots=True)
class UseFacts:
    """Facts about the PC's use on which the verdict depends."""

    lending: bool = False
    """Whether the last verdict allowed it."""
    idle_s: float | None = None
    """Seconds since anybody used it; None: unknown."""
    on_battery: bool | None = None
    """None: no battery, or unknown."""
    paused: bool = False
    """Whether its owner has paused it."""
    game: str = ""
    """Why its owner seems to play on it; empty: he does not."""


@dataclass(frozen=True, slots=True)
class OwnerVerdict:
    """Judgement whether the PC may be used now, and why."""

    allowed: bool
    reason: str
    """A sentence for the owner: what keeps it from being lent, or that nothing does."""
    until: datetime | None = None
    """Local time at which it may change if nobody does anything; None: it depends on people."""
    is_urgent: bool = False
    """Whether its owner waits for the PC: answers under way go on elsewhere at once."""


@dataclass(slots=True)
class OwnerPolicy:
    """Evaluates what the owner of one agent's PC allows: limits, hours, idle time, pause, leave."""

    data_dir: Path
    limits: LimitsFile
    watch: UseWatch
    games: GameWatch | None = None
    """None: nobody plays here."""
    leaving: bool = False
    now: OwnerVerdict = field(default_factory=lambda: OwnerVerdict(True, "The agent is starting."))
    """The latest verdict."""

    @property
    def paused(self) -> bool:
        """Whether the owner has paused lending."""
        return (self.data_dir / PAUSED_FILE).exists()

    def pause(self) -> None:
        """Lend nothing until `resume`."""
        (self.data_dir / PAUSED_FILE).touch()

    def resume(self) -> None:
        """Lend again, and stay in the cluster."""
        (self.data_dir / PAUSED_FILE).unlink(missing_ok=True)
        self.leaving = False

    @property
    def wish(self) -> NodeWish:
        """Wish that the coordinator is told: serve, pause or leave, with the reason."""
        if self.leaving:
            return NodeWish(wish="leave", reason="Its owner has taken it out of the cluster.")
        if not self.now.allowed:
            return NodeWish(wish="pause", reason=self.now.reason[:500])
        return NodeWish(wish="serve")

    async def evaluate(self, own_pids: frozenset[int]) -> bool:
        """Bring the verdict up to date; True when the limits have changed. `own_pids`: our stages,
        whose use of a GPU is not the owner's."""
        changed = await asyncio.to_thread(self.limits.reload)
        limits, now_s = self.limits.limits, time.monotonic()
        games = self.games
        facts = UseFacts(
            lending=self.now.allowed,
            idle_s=await self.watch.poll(limits, now_s, own_pids),
            game="" if games is None else await games.poll(limits, now_s, own_pids),
            on_battery=await asyncio.to_thread(runs_on_battery),
            paused=self.paused,
        )
        self.now = verdict(limits, facts, datetime.now())
        return changed


def verdict(limits: OwnerLimits, facts: UseFacts, now_local: datetime) -> OwnerVerdict:
    """Judge without side effects. `now_local` has no time zone: it is the clock on the wall."""
    found = (
        _paused(facts),
        _played_on(limits, facts),
        _battery_verdict(limits, facts),
        _closed(limits, now_local),
        _use_verdict(limits, facts, now_local),
    )
    hindrances = [hindrance for hindrance in found if hindrance is not None]
    if not hindrances:
        until = next_change(limits.hours, now_local)
        return OwnerVerdict(True, "Nothing keeps it from being lent.", until)
    ends = [hindrance.until for hindrance in hindrances if hindrance.until is not None]
    known = len(ends) == len(hindrances)
    is_urgent = any(hindrance.is_urgent for hindrance in hindrances)
    return OwnerVerdict(False, hindrances[0].reason, max(ends) if known else None, is_urgent)


def _paused(facts: UseFacts) -> OwnerVerdict | None:
    if not facts.paused:
        return None
    return OwnerVerdict(False, "Paused by its owner, until `molink agent resume`.")


def _played_on(limits: OwnerLimits, facts: UseFacts) -> OwnerVerdict | None:
    if not (limits.pause_on_game and facts.game):
        return None
    return OwnerVerdict(False, facts.game, is_urgent=True)


def _battery_verdict(limits: OwnerLimits, facts: UseFacts) -> OwnerVerdict | None:
    if not (limits.pause_on_battery and facts.on_battery):
        return None
    return OwnerVerdict(False, "The PC runs on its battery (pause_on_battery).")


def _closed(limits: OwnerLimits, now_local: datetime) -> OwnerVerdict | None:
    if is_open(limits.hours, now_local):
        return None
    opens = next_change(limits.hours, now_local)
    assert opens is not None, "closed hours open some time in the week"
    reason = f"Outside the hours that its owner lends; next at {opens:%a %H:%M}."
    return OwnerVerdict(False, reason, opens)


def _use_verdict(limits: OwnerLimits, facts: UseFacts, now_local: datetime) -> OwnerVerdict | None:
    wanted = limits.only_when_idle_minutes
    if wanted is None:
        return None
    if facts.idle_s is None:
        return OwnerVerdict(
            False,
            "It cannot be told whether somebody uses this PC, and only_when_idle_minutes is set: "
            "see `molink agent doctor`, or unset it.",
        )
    needed_s = wanted * 60 * (IDLE_KEEP_SHARE if facts.lending else 1)
    if facts.idle_s >= needed_s:
        return None
    missing = timedelta(seconds=wanted * 60 - facts.idle_s)
    reason = f"Somebody uses the PC: lent again after {wanted:g} idle minutes."
    return OwnerVerdict(False, reason, now_local + missing)
