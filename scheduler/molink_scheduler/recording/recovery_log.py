"""Log of one ring's recovery: its first state, then what happened and what was to be done for it.

`molink sim replay FILE` plays it again. Losses are rare and lines short, so nothing is forgotten
until a ring has had very many. It holds ids of nodes and requests, and no token.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from molink_scheduler.recording.writing import encode
from molink_scheduler.recovery.events import Event
from molink_scheduler.recovery.instructions import Instruction
from molink_scheduler.recovery.state import RingRecovery

RECOVERY_FORMAT = 1
"""Raised whenever older logs cannot be replayed any more."""

LINES_MAX = 10_000
"""Lines of one log, some 3 MB: a loss makes about twenty; then it ends."""


@dataclass(slots=True)
class RecoveryLog:
    """Writer of one ring's log."""

    write: Callable[[str], object]
    """Takes a line."""
    _lines: int = 0

    def note(
        self, before: RingRecovery, event: Event, now: float, instructions: Sequence[Instruction]
    ) -> None:
        """Write what an event led to, and the state `before` it at first."""
        if self._lines == 0:
            self._write({"format": RECOVERY_FORMAT, "at": now, "recovery": encode(before)})
        if self._lines < LINES_MAX:
            self._write([now, encode(event), encode(tuple(instructions))])

    def _write(self, value: object) -> None:
        self._lines += 1
        self.write(json.dumps(value, separators=(",", ":")))
