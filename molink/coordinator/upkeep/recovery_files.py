"""Files of rings' recoveries, which `molink sim replay` plays again.

They hold ids of nodes and requests, and no token: nobody else may read them all the same.
"""

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from molink.coordinator.upkeep.recovery import Note
from molink_scheduler.recording.recovery_log import RecoveryLog

FILES_KEPT = 16
"""Logs of rings that have lost stages; the oldest are removed."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryFiles:
    """Keeper of a folder of logs."""

    folder: Path | None = None
    """None: nothing is written."""

    def note_of(self, ring: int) -> Note | None:
        """What writes the log of one ring, which has no file until it loses a stage."""
        if self.folder is None:
            return None
        return RecoveryLog(_Lines(self.folder / f"ring-{ring}-{os.getpid()}.recovery")).note


@dataclass(slots=True)
class _Lines:
    """Writer of one file; a disk that is full ends it."""

    path: Path
    _is_begun: bool = False
    _is_ended: bool = False

    def __call__(self, line: str) -> None:
        if self._is_ended:
            return
        try:
            self._write(line)
        except OSError as error:
            self._is_ended = True
            log.warning("the log %s ends: %s", self.path, error)

    def _write(self, line: str) -> None:
        path = self.path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        how = os.O_APPEND if self._is_begun else os.O_TRUNC
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600), "w") as file:
            file.write(f"{line}\n")
        if not self._is_begun:
            self._is_begun = True
            _prune(path.parent)


def _prune(folder: Path) -> None:
    """Remove the oldest. Raises OSError."""
    for old in sorted(folder.iterdir(), key=_modified)[:-FILES_KEPT]:
        old.unlink(missing_ok=True)


def _modified(path: Path) -> float:
    return path.stat().st_mtime
