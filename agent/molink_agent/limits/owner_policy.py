"""What the owner allows now: limits, hours, idle time, battery, his own word.

Looked at every few seconds. The answer is a wish to the coordinator: serve, or pause, with the
reason; `leave` is the owner's last word.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from molink.control.messages.payloads import NodeWish
from molink_agent.limits.limits_file import LimitsFile
from molink_agent.limits.use_watch import UseWatch
from molink_agent.limits.verdict import UseFacts, Verdict, verdict
from molink_agent.probe.machine import runs_on_battery

__all__ = ["Owner"]

LOOK_S = 2.0
"""An owner who comes back to his PC waits no longer than this for the agent to notice."""

PAUSED_FILE = "paused"
"""While it exists the owner has paused: it outlives a restart."""


@dataclass(slots=True)
class Owner:
    """The owner of one agent's PC."""

    data_dir: Path
    limits: LimitsFile
    watch: UseWatch
    own_pids: Callable[[], frozenset[int]]
    leaving: bool = False
    now: Verdict = field(default_factory=lambda: Verdict(True, "The agent is starting."))
    """The latest answer."""

    @property
    def paused(self) -> bool:
        """Whether the owner has said so."""
        return (self.data_dir / PAUSED_FILE).exists()

    def pause(self) -> None:
        """Until `resume`."""
        (self.data_dir / PAUSED_FILE).touch()

    def resume(self) -> None:
        """Lend again."""
        (self.data_dir / PAUSED_FILE).unlink(missing_ok=True)

    @property
    def wish(self) -> NodeWish:
        """What the coordinator is told."""
        if self.leaving:
            return NodeWish(wish="leave", reason="Its owner has taken it out of the cluster.")
        if not self.now.allowed:
            return NodeWish(wish="pause", reason=self.now.reason[:500])
        return NodeWish(wish="serve")

    async def look(self) -> bool:
        """Look once; True when the limits have changed."""
        changed = await asyncio.to_thread(self.limits.reload)
        await self.watch.look(self.limits.limits, time.monotonic(), self.own_pids())
        battery = await asyncio.to_thread(runs_on_battery)
        facts = UseFacts(
            lending=self.now.allowed,
            idle_s=self.watch.idle_s(time.monotonic()),
            on_battery=battery,
            paused=self.paused,
        )
        self.now = verdict(self.limits.limits, facts, datetime.now())
        return changed
