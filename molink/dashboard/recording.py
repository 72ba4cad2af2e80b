"""Recordings: what the dashboard saw, one observation a line, and how to step through them.

A file is JSON lines, compressed with gzip where its name ends in .gz: a first line that says what
it is, then the answers as they came. Each line is flushed, so that a recording that was cut off by
a crash is good up to there. Of a file that is read only the place and the time of each line are
held; a step to any time rebuilds the minutes before it, so that sparklines and what stands out are
those of that moment.
"""

import gzip
import json
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO

from molink.dashboard.model.history import History
from molink.dashboard.model.observation import Observation
from molink.errors import UserError
from molink.findings.series import HISTORY_S
from molink.printable import printable_line

FIRST_LINE = "molink_recording"
VERSION = 1

RECORD_BYTES_MAX = 4_000_000_000
"""Most bytes before compression; of ten PCs more than a day at two looks a second. Then recording
ends and the dashboard says so: a disk must not fill because somebody forgot it."""

LINE_BYTES_MAX = 64 * 2**20
"""Most bytes of one line that is read: as much as the largest answer that is taken."""

FRAMES_MAX = 2_000_000
"""Most looks of a recording that is read: eleven days at two a second, 32 MB of their places."""


class DashboardRecorder:
    """Writer of one recording. Raises UserError when the file cannot be made."""

    def __init__(self, path: Path, url: str) -> None:
        self.trouble = ""
        """Why it has ended early; empty: it goes on."""
        self._left = RECORD_BYTES_MAX
        try:
            self._file: IO[bytes] | gzip.GzipFile = _opened(path, "xb")
        except FileExistsError:
            raise UserError(f"{path} exists: choose another --record, or delete it") from None
        except OSError as error:
            raise UserError(
                f"cannot write {path} ({error.strerror}): choose another --record"
            ) from None
        self._write(json.dumps({FIRST_LINE: VERSION, "url": url}))

    def take(self, seen: Observation) -> None:
        """Write one observation; a full disk ends the recording and nothing else."""
        if not self.trouble:
            self._write(seen.line())

    def _write(self, line: str) -> None:
        raw = line.encode() + b"\n"
        self._left -= len(raw)
        if self._left < 0:
            self.trouble = "The recording is full and has ended."
            return
        try:
            self._file.write(raw)
            self._file.flush()
        except OSError as error:
            self.trouble = f"The recording has ended: {error.strerror}."

    def close(self) -> None:
        """Close the file; a recording that was not closed is good up to its last second."""
        try:
            self._file.close()
        except OSError as error:
            self.trouble = f"The recording may lack its end: {error.strerror}."

    def __enter__(self) -> "DashboardRecorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(slots=True)
class DashboardRecording:
    """Recording that is read, by the number of a look."""

    path: Path
    url: str
    times_s: list[float]
    """Times of the looks, seconds since 1970, rising."""
    _places: list[int]
    _file: IO[bytes] | gzip.GzipFile

    @classmethod
    def open(cls, path: Path) -> "DashboardRecording":
        """Open a recording. Raises UserError when the file cannot be read, or is no recording."""
        try:
            file = _opened(path, "rb")
            url, places, times = _index(file)
        except (OSError, EOFError, gzip.BadGzipFile) as error:
            why = getattr(error, "strerror", None) or "it is cut off at its beginning"
            raise UserError(f"cannot read {path} ({why}): give a recording") from None
        if not times:
            raise UserError(f"{path} holds no look at a cluster: record for longer than a second")
        return cls(path, url, times, places, file)

    def observation(self, index: int) -> Observation:
        """The look of this number. Raises UserError when its line cannot be read."""
        try:
            self._file.seek(self._places[index])
            return Observation.of_line(self._file.readline(LINE_BYTES_MAX))
        except (OSError, EOFError):
            raise UserError(f"{self.path} cannot be read any more: is its disk there?") from None

    def history_at(self, index: int) -> History:
        """History at a look: it and the minutes before it."""
        history = History()
        first = bisect_right(self.times_s, self.times_s[index] - HISTORY_S)
        for one in range(min(first, index), index + 1):
            history.take(self.observation(one))
        return history


@dataclass(slots=True)
class DashboardReplay:
    """Place in a recording, which goes on by steps, back and to a time."""

    recording: DashboardRecording
    index: int = 0
    history: History = field(default_factory=History)

    def __post_init__(self) -> None:
        self.history = self.recording.history_at(self.index)

    @property
    def is_at_end(self) -> bool:
        """Whether there is no later look."""
        return self.index == len(self.recording.times_s) - 1

    @property
    def pause_s(self) -> float:
        """Time until the next look, as it was when recorded; 0 at the end."""
        times = self.recording.times_s
        return 0.0 if self.is_at_end else max(0.0, times[self.index + 1] - times[self.index])

    def step(self, looks: int) -> None:
        """Go on by so many looks, or back; not beyond either end."""
        target = min(max(0, self.index + looks), len(self.recording.times_s) - 1)
        if target == self.index + 1:
            self.index = target
            self.history.take(self.recording.observation(target))
        elif target != self.index:
            self.index, self.history = target, self.recording.history_at(target)

    def go_to(self, at_s: float) -> None:
        """Go to the last look at or before a time, seconds since 1970."""
        self.step(max(0, bisect_right(self.recording.times_s, at_s) - 1) - self.index)


def _opened(path: Path, mode: str) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path, mode) if path.suffix == ".gz" else path.open(mode)  # type: ignore[return-value]


def _index(file: IO[bytes] | gzip.GzipFile) -> tuple[str, list[int], list[float]]:
    """The URL that was recorded, and place and time of each look; a line that was cut off ends
    it."""
    url = _url_of(file.readline(LINE_BYTES_MAX))
    places: list[int] = []
    times: list[float] = []
    while len(times) < FRAMES_MAX:
        place = file.tell()
        try:
            line = file.readline(LINE_BYTES_MAX)
        except EOFError:
            break
        if not line.endswith(b"\n"):
            break
        at_s = Observation.of_line(line).at_s
        places.append(place)
        times.append(max(at_s, times[-1] if times else 0.0))
    return url, places, times


def _url_of(line: bytes) -> str:
    try:
        first = json.loads(line)
        if first[FIRST_LINE] > VERSION:
            raise UserError("the recording is of a newer molink: update this one")
        return printable_line(str(first["url"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(
            "that is no recording: give a file that `molink dashboard --record` wrote"
        ) from None
