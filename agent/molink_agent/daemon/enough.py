"""Is what the owner lends enough for one layer of the cluster's model? If not, the PC pauses and
says so: to its owner, and to the coordinator, which else would wait for it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from molink.control.messages.payloads import ModelSize

__all__ = ["Enough"]

LOOK_S = 30.0
"""Memory comes and goes with the owner's programs; looking reads all of /proc/cpuinfo."""

AGAIN_MARGIN = 1.1
"""Layers that must fit before a PC that lent too little lends again: no going to and fro for the
bytes of a browser's page."""


@dataclass(slots=True)
class Enough:
    """Asked whenever the agent looks at what its owner allows."""

    shortage: Callable[[ModelSize, float], str]
    """Of this PC (`ThisPc.shortage`)."""
    model: ModelSize | None = None
    """None: not known yet; then anything is enough."""
    sentence: str = ""
    """What is too little and what to change; empty: enough."""
    _looked_at: float = 0.0
    _looked_for: ModelSize | None = None

    async def look(self, now: float, *, changed: bool, busy: bool) -> None:
        """Look if it is time, or if limits have `changed`. While a stage is here (`busy`), what it
        holds was enough, and its memory is not free at once when it ends."""
        if busy or self.model is None:
            self.sentence, self._looked_at, self._looked_for = "", now, self.model
            return
        news = changed or self.model != self._looked_for
        if not news and now - self._looked_at < LOOK_S:
            return
        self._looked_at, self._looked_for = now, self.model
        margin = AGAIN_MARGIN if self.sentence and not changed else 1.0
        self.sentence = await asyncio.to_thread(self.shortage, self.model, margin)
