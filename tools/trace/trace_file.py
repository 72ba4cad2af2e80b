"""File in Chrome's trace format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

A *process* of the format is a group of tracks, a *thread* is one track. Times are microseconds
since the trace began. The form is the array of events, whose closing bracket may be missing: what
was written before the writer was killed opens all the same.

The format: "Trace Event Format", Google, kept by the Chromium project.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from molink.errors import UserError
from molink.printable import printable_line

__all__ = ["BYTES_MAX", "Group", "TraceFile"]

BYTES_MAX = 256 * 2**20
"""Bytes of a file: some million events, as many as a browser tab opens; hours of a busy ring."""

NAME_CHARS_MAX = 120
"""Most characters of a name from afar."""

Group = Literal["requests", "stages", "links", "cluster"]

GROUPS: dict[Group, int] = {"requests": 1, "stages": 2, "links": 3, "cluster": 4}
"""Numbers of the processes, in the order in which they are shown."""


@dataclass(slots=True)
class TraceFile:
    """Writer of events, which are kept until they are flushed."""

    file: IO[str]
    began_at: float
    bytes_max: int = BYTES_MAX
    is_full: bool = False
    """Whether events are dropped, because the file has its size."""
    _pending: list[str] = field(default_factory=list)
    _tracks: dict[tuple[Group, str], int] = field(default_factory=dict)
    _bytes: int = 0

    @classmethod
    def create(cls, path: Path, began_at: float) -> "TraceFile":
        """A new file. Raises UserError when it cannot be written."""
        try:
            file = path.open("w", encoding="utf-8")
        except OSError as error:
            raise UserError(
                f"--out {path} cannot be written ({error.strerror}): choose another place."
            ) from None
        trace = cls(file, began_at)
        for name, number in GROUPS.items():
            trace._add({"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}})
            order = {"sort_index": number}
            trace._add({"ph": "M", "name": "process_sort_index", "pid": number, "args": order})
        trace.instant("cluster", "events", "trace begins", began_at, {"at": began_at})
        return trace

    def slice(
        self, group: Group, track: str, name: str, at: float, took_s: float, args: dict[str, Any]
    ) -> None:
        """Add an event that took a while on a track; those of one track follow or contain each
        other."""
        place, named = self._place(group, track), self._named(name, at)
        took_us = max(0, self._ts(at + took_s) - named["ts"])
        self._add({"ph": "X", **place, **named, "dur": took_us, "args": args})

    def instant(self, group: Group, track: str, name: str, at: float, args: dict[str, Any]) -> None:
        """Add an event that happened on a track at one time."""
        place = self._place(group, track)
        self._add({"ph": "i", "s": "p", **place, **self._named(name, at), "args": args})

    def counter(self, group: Group, name: str, at: float, values: dict[str, float]) -> None:
        """Figures that go up and down, in a track of their own."""
        self._add({"ph": "C", "pid": GROUPS[group], **self._named(name, at), "args": values})

    def begin(self, group: Group, row: str, name: str, at: float, args: dict[str, Any]) -> None:
        """Begin a span of a row, within the span that was begun before it; rows may overlap."""
        self._add({"ph": "b", **self._row(group, row), **self._named(name, at), "args": args})

    def end(self, group: Group, row: str, name: str, at: float) -> None:
        """End the span of a row that was begun last."""
        self._add({"ph": "e", **self._row(group, row), **self._named(name, at)})

    def flush(self) -> None:
        """Write what was added since the last time. Raises OSError when the disk is full."""
        lines, self._pending = self._pending, []
        self.file.write("".join(lines))
        self.file.flush()

    def close(self) -> None:
        """Write what is left, and end the file. Raises OSError when the disk is full."""
        try:
            self._pending.append("\n]\n")
            self.flush()
        finally:
            self.file.close()

    def _place(self, group: Group, track: str) -> dict[str, int]:
        """Numbers of a track; its name is told when it is first used."""
        key = (group, track)
        if key not in self._tracks:
            self._tracks[key] = len(self._tracks) + 1
            place = {"pid": GROUPS[group], "tid": self._tracks[key]}
            self._add({"ph": "M", "name": "thread_name", **place, "args": {"name": _name(track)}})
        return {"pid": GROUPS[group], "tid": self._tracks[key]}

    def _named(self, name: str, at: float) -> dict[str, Any]:
        return {"name": _name(name), "ts": self._ts(at)}

    def _ts(self, at: float) -> int:
        """Whole microseconds since the beginning. Ends are rounded as beginnings are: of two slices
        that follow each other the first would else end within the second now and then."""
        return max(0, round((at - self.began_at) * 1e6))

    def _row(self, group: Group, row: str) -> dict[str, Any]:
        return {"cat": group, "id": _name(row), "pid": GROUPS[group], "tid": 0}

    def _add(self, event: dict[str, Any]) -> None:
        line = json.dumps(event, separators=(",", ":"))
        self.is_full = self.is_full or self._bytes + len(line) > self.bytes_max
        if not self.is_full:
            self._pending.append((",\n" if self._bytes else "[\n") + line)
            self._bytes += len(line) + 2


def _name(text: str) -> str:
    return printable_line(text)[:NAME_CHARS_MAX]
