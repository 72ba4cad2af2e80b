"""Files of a stage's event log: one that grows while the stage serves, one that a failure leaves.

Both hold token ids, so nobody but the user of the stage may read them.
"""

import json
import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from molink.config.data_dir import state_dir
from molink_scheduler.recording.event_log import EventLog

STREAM_BYTES_MAX = 64 * 1024**2
"""Bytes of a file that grows: hours of a home ring. From there on it becomes FILE.old, and a new
one begins, so a stage keeps little more than twice as much."""

FAILURES_KEPT = 8
"""Logs of failed stages of this user; the oldest are removed."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EventFiles:
    """Writer of one stage's event log."""

    events: EventLog
    stage: str
    """Name of the stage, as in `layers 0-12`."""
    path: Path | None = None
    """The file that grows; None: only a failure is written."""
    _bytes: int = field(init=False, default=0)

    def write_new(self) -> None:
        """Append what happened since the last time; a disk that is full ends it."""
        if self.path is None:
            return
        lines = list(self.events.take_lines())
        try:
            states = [number for number, line in enumerate(lines) if line.startswith("{")]
            if self._bytes > STREAM_BYTES_MAX and states:
                self._append(self.path, lines[: states[0]])
                self.path.replace(f"{self.path}.old")
                self._bytes, lines = 0, lines[states[0] :]
            self._append(self.path, lines)
        except OSError as error:
            log.warning("%s stops its event log %s: %s", self.stage, self.path, error)
            self.path, self.events.is_streamed = None, False

    def write_failure(self, error: Exception) -> None:
        """Leave the last minute, and why it ended; a line of the log says where."""
        end = json.dumps({"failed": f"{type(error).__name__}: {error}"})
        try:
            path = _failure_path(self.stage)
            _write(path, (*self.events.lines(), end), anew=True)
            for old in sorted(path.parent.iterdir(), key=_modified)[:-FAILURES_KEPT]:
                old.unlink(missing_ok=True)
        except (OSError, RuntimeError) as reason:
            log.warning("%s failed, and cannot leave its event log: %s", self.stage, reason)
        else:
            log.error("%s failed; the events before are in %s", self.stage, path)

    def _append(self, path: Path, lines: Iterable[str]) -> None:
        self._bytes += _write(path, lines, anew=self._bytes == 0)


def _failure_path(stage: str) -> Path:
    """Path where this process leaves its log. Raises RuntimeError for a user without a home."""
    folder = state_dir() / "failed-stages"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"{stage.replace(' ', '-')}-{os.getpid()}.events"


def _write(path: Path, lines: Iterable[str], *, anew: bool) -> int:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if anew else os.O_APPEND)
    with os.fdopen(os.open(path, flags, 0o600), "w") as file:
        return file.write("".join(f"{line}\n" for line in lines))


def _modified(path: Path) -> float:
    return path.stat().st_mtime
