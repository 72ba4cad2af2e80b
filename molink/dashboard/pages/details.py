"""Details of one node, request or link, as lines; a request's life as a timeline.

wait     ▓▓▓                                        0.41 s
prefill     ▓▓▓▓▓▓▓▓▓                               1.20 s
decode               ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓     6.10 s  48 rounds
"""

import textwrap
from collections.abc import Iterator
from datetime import tzinfo

from molink.dashboard.model.cluster import Link, Node
from molink.dashboard.model.figures import (
    data,
    day_and_clock,
    duration,
    mbps,
    percent,
    seconds,
)
from molink.dashboard.model.history import Event, History
from molink.dashboard.model.requests import Attempt, Request
from molink.dashboard.pages.lines import Glyphs, Line, Span, Style, line

__all__ = ["details"]

TIMELINE_WIDTH = 40
TEXT_WIDTH = 78
"""Of an event's sentence, so that all of it is seen on the smallest terminal."""


def details(
    history: History, view: str, key: str, glyphs: Glyphs, zone: tzinfo | None = None
) -> list[Line]:
    """What there is to know about a row's subject; empty when it is gone."""
    if view == "requests":
        found = [one for one in history.requests or () if f"{one.id} {one.choice}" == key]
        lines = [one for request in found[:1] for one in _request(history, request, glyphs, zone)]
    elif view == "links":
        links = [link for ring in history.state.rings for link in ring.links]
        chosen = [link for link in links if f"{link.source}>{link.target}" == key]
        lines = [one for link in chosen[:1] for one in _link(history, link)]
    elif view == "events":
        events = [one for one in history.events if str(one.seq) == key]
        lines = [one for event in events[-1:] for one in _event(event, zone)]
    else:
        nodes = [node for node in history.state.nodes if node.id == key]
        lines = [one for node in nodes[:1] for one in _node(history, node)]
    return [tuple(Span(glyphs.text(span.text), span.style) for span in one) for one in lines]


def _event(event: Event, zone: tzinfo | None) -> Iterator[Line]:
    yield line(Span(day_and_clock(event.unix_s, zone), "title"), Span(f"  {event.kind}", "accent"))
    if event.node:
        yield _field("node", event.node)
    if event.ring is not None:
        yield _field("ring", str(event.ring))
    for piece in textwrap.wrap(event.text, TEXT_WIDTH):
        yield line(piece)


def _field(name: str, value: str, style: Style = "") -> Line:
    return line(Span(f"{name:<15}", "dim"), Span(value, style))


def _node(history: History, node: Node) -> Iterator[Line]:
    yield line(Span(node.name, "title"), Span(f"  {node.id}", "dim"))
    yield _field("state", f"{node.state}{' (drained by the operator)' if node.drained else ''}")
    if node.reason:
        yield _field("why", node.reason, "warning")
    if node.loaded is not None and node.state == "loading":
        yield _field("loaded", percent(node.loaded), "accent")
    if node.pc != node.id:
        yield _field("further device", f"of the PC {node.pc}")
    held = f"{node.layers[0]} to {node.layers[1] - 1}" if node.layers else "none"
    yield _field("layers", f"{held}, ring {node.ring}" if node.ring is not None else held)
    yield _field("device", f"{node.device or '-'}, {_memory(node)}")
    yield from _stage(history, node)
    cap = f", capped at {mbps(node.upload_cap_mbps)}" if node.upload_cap_mbps else ""
    yield _field("upload", f"{mbps(node.upload_mbps)}{cap}")
    yield _field("download", mbps(node.download_mbps))
    rtt = None if node.coordinator_rtt_ms is None else node.coordinator_rtt_ms / 1000
    yield _field("network", f"{seconds(rtt)} to the coordinator, NAT {node.nat or 'unknown'}")
    for name, kind in node.paths[:8]:
        yield _field("path", f"{name}: {kind}")
    given = f"{duration(node.uptime_s)} here, {node.token_layers:,} tokens x layers"
    yield _field("has given", f"{given}, {data(node.bytes_sent)} sent")
    for doubt in node.doubts:
        yield _field("doubt", doubt, "warning")


def _memory(node: Node) -> str:
    if not node.total_bytes:
        return "memory not known"
    return f"lends {data(node.lent_bytes)} of {data(node.total_bytes)}"


def _stage(history: History, node: Node) -> Iterator[Line]:
    for ring in history.state.rings:
        for stage in ring.stages:
            if stage.node == node.name:
                step = f"{seconds(stage.decode_step_s)} a decode step"
                yield _field("computes", f"{step}, busy {percent(stage.busy_share)}")
                kv = f"{stage.kv_used:,} of {stage.kv_capacity:,} tokens"
                yield _field("KV cache", f"{kv} ({percent(stage.kv_share)})")
                if stage.frames_refused:
                    yield _field("refused", f"{stage.frames_refused} messages", "warning")


def _link(history: History, link: Link) -> Iterator[Line]:
    yield line(Span(f"{link.source} to {link.target}", "title"))
    yield _field("rate", f"{mbps(link.rate_mbps)}, {percent(history.link_busy(link.ends))} used")
    rtt = None if link.rtt_ms is None else link.rtt_ms / 1000
    delay = None if link.queueing_delay_ms is None else link.queueing_delay_ms / 1000
    yield _field("round trip", f"{seconds(rtt)}, and {seconds(delay)} of queueing on the way")
    yield _field("decode waits", f"{data(link.decode_queued_bytes)} in {link.decode_waiting}")
    yield _field("prefill waits", f"{data(link.prefill_queued_bytes)} in {link.prefill_waiting}")
    yield _field("in flight", data(link.in_flight_bytes))
    yield _field("sent", data(link.bytes_sent))
    if link.codec:
        yield _field("packed as", f"{link.codec}, {data(link.bytes_saved)} saved")
    if link.foreign_upload:
        yield _field("shares its line", "with uploads that are not ours", "warning")


def _request(
    history: History, request: Request, glyphs: Glyphs, zone: tzinfo | None
) -> Iterator[Line]:
    choice = f", choice {request.choice}" if request.choice else ""
    yield line(Span(f"{request.id}{choice}", "title"), Span(f"  {request.state}", "accent"))
    came = day_and_clock(request.received_unix_s, zone)
    yield _field("received", f"{came}, {request.key_id or 'without a key'}")
    prompt = f"{request.prompt_tokens_done:,} of {request.prompt_tokens:,} tokens computed"
    yield _field("prompt", prompt)
    answer = f"{request.tokens:,} of at most {request.answer_tokens_max:,} tokens"
    yield _field("answer", f"{answer}, {seconds(request.tpot_s)} a token")
    if request.finish_reason:
        style: Style = "bad" if request.finish_reason == "error" else ""
        yield _field("ended", f"{request.finish_reason} {request.error}".strip(), style)
    pause_s = history.longest_pause_s(request)
    if pause_s is not None:
        yield _field("longest pause", f"{seconds(pause_s)}, as seen from here")
    yield line("")
    yield from _timeline(request, glyphs)
    for attempt in request.attempts:
        yield line("")
        yield from _attempt(attempt)


def _timeline(request: Request, glyphs: Glyphs) -> Iterator[Line]:
    """Wait, prefill and decode under each other, on one axis."""
    whole_s = request.total_s or request.age_s
    rounds = f"{max(0, request.tokens - 1)} rounds" if request.tokens else ""
    waited_s = request.queue_s if request.queue_s is not None else whole_s
    parts: list[tuple[Style, str, float | None, str]] = [
        ("warning", "wait", waited_s, ""),
        ("prefill", "prefill", request.prefill_s, f"{request.prompt_tokens} tokens"),
        ("decode", "decode", request.decode_s, rounds),
    ]
    start_s = 0.0
    for style, name, length_s, note in parts:
        if length_s is None:
            continue
        first = round(TIMELINE_WIDTH * start_s / whole_s) if whole_s else 0
        cells = max(1, round(TIMELINE_WIDTH * length_s / whole_s)) if whole_s else 1
        drawn = (" " * first + glyphs.bar * cells)[:TIMELINE_WIDTH].ljust(TIMELINE_WIDTH)
        yield line(f"{name:<8}", Span(drawn, style), f"{seconds(length_s):>9}  {note}")
        start_s += length_s


def _attempt(attempt: Attempt) -> Iterator[Line]:
    held = ", ".join(
        f"{node} {layers[0]}-{layers[1]}" if layers else node for node, layers in attempt.stages
    )
    yield line(Span(f"ring {attempt.ring}", "bold"), f"  {held}")
    steps = (
        ("submitted", attempt.submitted_s),
        ("started", attempt.started_s),
        ("first token", attempt.first_token_s),
        ("ended", attempt.ended_s),
    )
    told = ", ".join(f"{name} {at_s:.2f} s" for name, at_s in steps if at_s is not None)
    yield line(f"        {told}; {attempt.tokens} tokens")
    if attempt.moved_because:
        yield line(Span(f"        moved on: {attempt.moved_because}", "warning"))
