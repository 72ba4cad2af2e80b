"""What a server says of its requests, links, stages and events, as events of a trace file.

All times are seconds since 1970: requests and events have them of the coordinator, links and stages
of the machine that asks. Single steps of stages are in no answer, so a stage is told by the share
of its time in which it computes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tools.trace.trace_file import TraceFile

__all__ = ["Recorder", "began_unix_s"]

Report = Mapping[str, Any]
"""JSON object of an answer."""

Part = tuple[str, float, float]
"""Name, when it began and when it ended."""


def began_unix_s(requests: list[Report], events: list[Report], now: float) -> float:
    """When the earliest of what is known already began."""
    began = [one["received_unix_s"] for one in requests]
    return min([*began, *(one["unix_s"] for one in events), now])


@dataclass(slots=True)
class _LinkTrack:
    """What one link had sent at the last look."""

    bytes_sent: int
    at: float


@dataclass(slots=True)
class Recorder:
    """Recorder of what a server answers into a trace file; each thing is told once."""

    trace: TraceFile
    _links: dict[tuple[int, str, str], _LinkTrack] = field(default_factory=dict)
    """By epoch, source and target."""
    _told: set[str] = field(default_factory=set)
    """Rows of the requests that had ended at the last look."""

    def cluster(self, report: Report, now: float) -> None:
        """Take an answer of `GET /cluster` that came now."""
        present = set()
        for ring in report["rings"]:
            for stage in ring["stages"]:
                busy = {"busy": stage["busy_share"]}
                self.trace.counter("stages", f"{stage['node']} busy share", now, busy)
            for link in ring["links"]:
                present.add(key := (ring["epoch"], link["from"], link["to"]))
                self._link(key, link, now)
        self._links = {key: one for key, one in self._links.items() if key in present}

    def _link(self, key: tuple[int, str, str], link: Report, now: float) -> None:
        track = self._links.setdefault(key, _LinkTrack(link["bytes_sent"], now))
        sent, name = link["bytes_sent"] - track.bytes_sent, f"{link['from']} to {link['to']}"
        if sent > 0:
            figures = {"bytes": sent, "rate_mbps": link["rate_mbps"], "rtt_ms": link["rtt_ms"]}
            self.trace.slice("links", name, f"{sent:,} bytes", track.at, now - track.at, figures)
        track.bytes_sent, track.at = link["bytes_sent"], now
        waiting = {"decode": link["decode_queued_bytes"], "prompts": link["prefill_queued_bytes"]}
        self.trace.counter("links", f"{name} waiting bytes", now, waiting)

    def events(self, events: list[Report]) -> None:
        """Take the new ones of an answer of `GET /cluster/events`."""
        for event in events:
            figures = {name: event[name] for name in ("kind", "node", "ring")}
            self.trace.instant("cluster", "events", event["text"], event["unix_s"], figures)

    def requests(self, requests: list[Report], *, at_the_end: bool = False) -> None:
        """Take an answer of `GET /cluster/requests`: those that have ended, at the end all."""
        told = set()
        for request in requests:
            has_ended = request["total_s"] is not None
            row = f"{request['id']} {request['choice']} {request['received_unix_s']}"
            if row not in self._told and (has_ended or at_the_end):
                self._request(row, request)
            if has_ended:
                told.add(row)
        self._told = told  # Whoever is in no answer any more never comes back.

    def _request(self, row: str, request: Report) -> None:
        """Tell of a request, from its arrival to its end or to now."""
        began, name = request["received_unix_s"], f"request {request['id']}"
        length_s = request["age_s"] if request["total_s"] is None else request["total_s"]
        figures = ("prompt_tokens", "tokens", "finish_reason", "error")
        self.trace.begin("requests", row, name, began, {one: request[one] for one in figures})
        for attempt in request["attempts"]:
            self._attempt(row, attempt, began, length_s)
        self.trace.end("requests", row, name, began + length_s)

    def _attempt(self, row: str, attempt: Report, began: float, length_s: float) -> None:
        nodes = ", ".join(stage["node"] for stage in attempt["stages"])
        name, figures = f"ring {attempt['ring']}: {nodes}", ("tokens", "moved_because")
        ended_s = length_s if attempt["ended_s"] is None else attempt["ended_s"]
        at = began + attempt["submitted_s"]
        self.trace.begin("requests", row, name, at, {one: attempt[one] for one in figures})
        for part, begins, ends in _parts(attempt, ended_s):
            self.trace.begin("requests", row, part, began + begins, {})
            for inner, inner_begins, inner_ends in _within(part, attempt, begins, ends):
                self.trace.begin("requests", row, inner, began + inner_begins, {})
                self.trace.end("requests", row, inner, began + inner_ends)
            self.trace.end("requests", row, part, began + ends)
        self.trace.end("requests", row, name, began + ended_s)


def _parts(attempt: Report, ended_s: float) -> Iterator[Part]:
    """Wait, prefill and decode of one attempt, as far as it came."""
    submitted_s, first_s = attempt["submitted_s"], attempt["first_token_s"]
    started_s = submitted_s if attempt["started_s"] is None else attempt["started_s"]
    if started_s > submitted_s:
        yield "wait", submitted_s, started_s
    yield "prefill", started_s, ended_s if first_s is None else first_s
    if first_s is not None:
        yield "decode", first_s, ended_s


def _within(part: str, attempt: Report, begins: float, ends: float) -> Iterator[Part]:
    """Pieces of the prompt within prefill, pauses within decode."""
    if part == "prefill":
        pieces = [one for one in attempt["pieces"] if begins <= one["sent_s"] <= ends]
        until = [*(piece["sent_s"] for piece in pieces[1:]), ends]
        for piece, end in zip(pieces, until, strict=False):
            first, last = piece["tokens"]
            yield f"tokens {first} to {last}", piece["sent_s"], end
    elif part == "decode":
        for pause in attempt["rounds"]["pauses"]:
            end = min(pause["began_s"] + pause["length_s"], ends)
            yield "pause", pause["began_s"], end
