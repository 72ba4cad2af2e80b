"""Checks of Chrome's trace event format, by which Perfetto reads a file."""

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

NEEDED = {
    "M": {"name", "pid", "args"},
    "X": {"name", "pid", "tid", "ts", "dur"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "C": {"name", "pid", "ts", "args"},
    "b": {"name", "pid", "tid", "ts", "cat", "id"},
    "e": {"name", "pid", "tid", "ts", "cat", "id"},
}
"""Fields of each phase that is written."""

METADATA = {"process_name", "process_sort_index", "thread_name"}


def checked(path: Path) -> list[dict[str, Any]]:
    """The events of a whole file, each of which follows the format."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    for event in events:
        assert NEEDED[event["ph"]] <= event.keys(), event
        assert event["ph"] != "M" or event["name"] in METADATA
        assert event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        assert event["ph"] != "C" or all(
            type(one) in (int, float) for one in event["args"].values()
        )
    _check_tracks_are_named(events)
    _check_slices_nest(events)
    _check_spans_nest(events)
    return events


def _check_tracks_are_named(events: list[dict[str, Any]]) -> None:
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert {event["pid"] for event in events} <= processes
    assert {(e["pid"], e["tid"]) for e in events if e["ph"] in "Xi"} <= threads


def _check_slices_nest(events: list[dict[str, Any]]) -> None:
    """Slices of one track follow or contain each other."""
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in tracks.values():
        open_ends: list[float] = []
        for begins, ends in sorted(slices, key=lambda one: (one[0], -one[1])):
            while open_ends and open_ends[-1] <= begins:
                open_ends.pop()
            assert not open_ends or ends <= open_ends[-1]
            open_ends.append(ends)


def _check_spans_nest(events: list[dict[str, Any]]) -> None:
    """Of one row each end closes what was begun last, and time does not go back."""
    rows = defaultdict(list)
    for event in events:
        if event["ph"] in "be":
            rows[event["pid"], event["cat"], event["id"]].append(event)
    for row in rows.values():
        assert all(before["ts"] <= after["ts"] for before, after in pairwise(row))
        begun: list[str] = []
        for event in row:
            if event["ph"] == "b":
                begun.append(event["name"])
            else:
                assert begun.pop() == event["name"]
        assert not begun
