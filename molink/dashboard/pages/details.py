"""Details of one node, link or event, as lines; those of a request are in `request_page`."""

import textwrap
from collections.abc import Iterator, Sequence
from datetime import tzinfo

from molink.dashboard.model.history import History
from molink.dashboard.pages.lending import cell_lenders, folds_text, lending_text
from molink.dashboard.pages.lines import Glyphs, Line, TextSpan, field_line, line
from molink.dashboard.pages.request_page import request_lines
from molink.report.capabilities import parts_of
from molink.report.cell import CellPcReport
from molink.report.cluster import RingLink
from molink.report.events import ClusterEvent
from molink.report.figures import (
    data,
    day_and_clock,
    duration,
    mbps,
    percent,
    seconds,
)
from molink.report.nodes import NodeReport, ProfileReport

PATHS_SHOWN = 8
"""Most paths to others that a node's details show: the rest must fit on the screen, too."""

TEXT_WIDTH = 78
"""Width of an event's sentence, so that all of it is seen on the smallest terminal."""


def details(
    history: History, view: str, key: str, glyphs: Glyphs, zone: tzinfo | None = None
) -> list[Line]:
    """Lines with all that is known of a row's subject; empty when it is gone."""
    if view == "requests":
        found = [one for one in history.requests or () if f"{one.id} {one.choice}" == key]
        lines = [one for request in found[:1] for one in request_lines(request, glyphs, zone)]
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
    return [tuple(TextSpan(glyphs.text(span.text), span.style) for span in one) for one in lines]


def _event(event: ClusterEvent, zone: tzinfo | None) -> Iterator[Line]:
    yield line(
        TextSpan(day_and_clock(event.unix_s, zone), "title"), TextSpan(f"  {event.kind}", "accent")
    )
    if event.node:
        yield field_line("node", event.node)
    if event.ring is not None:
        yield field_line("ring", str(event.ring))
    for piece in textwrap.wrap(event.text, TEXT_WIDTH):
        yield line(piece)


def _node(history: History, node: NodeReport) -> Iterator[Line]:
    yield line(TextSpan(node.name, "title"), TextSpan(f"  {node.id}", "dim"))
    yield field_line("state", f"{node.state}{' (drained by the operator)' if node.drained else ''}")
    if node.reason:
        yield field_line("why", node.reason, "warning")
    if node.loaded is not None and node.state == "loading":
        yield field_line("loaded", percent(node.loaded), "accent")
    if node.pc != node.id:
        yield field_line("further device", f"of the PC {node.pc}")
    held = f"{node.layers[0]} to {node.layers[1] - 1}" if node.layers else "none"
    yield field_line("layers", f"{held}, ring {node.ring}" if node.ring is not None else held)
    yield field_line("device", f"{node.device or '-'}, {_memory(node)}")
    yield field_line("MoLink", node.version or "unknown")
    yield from _stage(history, node)
    yield from _lending(cell_lenders(history, node))
    if node.profile is not None:
        yield from _network(node.profile)
    for name, kind in list(node.paths.items())[:PATHS_SHOWN]:
        yield field_line("path", f"{name}: {kind}")
    gave = node.contribution
    given = f"{duration(gave.uptime_s)} here, {gave.token_layers:,} tokens x layers"
    yield field_line("has given", f"{given}, {data(gave.bytes_sent)} sent")
    for doubt in node.doubts:
        yield field_line("doubt", doubt, "warning")


def _lending(lenders: Sequence[CellPcReport]) -> Iterator[Line]:
    if text := lending_text(lenders):
        yield field_line("KV of a cell", text)
    for one in lenders:
        if one.reason:
            yield line(TextSpan(one.reason, "warning"))


def _network(profile: ProfileReport) -> Iterator[Line]:
    cap = f", capped at {mbps(profile.upload_cap_mbps)}" if profile.upload_cap_mbps else ""
    yield field_line("upload", f"{mbps(profile.upload_mbps)}{cap}")
    yield field_line("download", mbps(profile.download_mbps))
    trip = f"{seconds(profile.coordinator_rtt_s)} to the coordinator"
    yield field_line("network", f"{trip}, NAT {profile.nat or 'unknown'}")


def _memory(node: NodeReport) -> str:
    if node.memory is None:
        return "memory not known"
    return f"lends {data(node.memory.lent_bytes)} of {data(node.memory.total_bytes)}"


def _stage(history: History, node: NodeReport) -> Iterator[Line]:
    for ring in history.state.rings:
        for stage in ring.stages:
            if stage.node == node.name:
                step = f"{seconds(stage.decode_step_s or None)} a decode step"
                yield field_line("computes", f"{step}, busy {percent(stage.busy_share)}")
                if stage.micro_batches_held is not None:
                    here = f"{stage.micro_batches_held:.1f} of {ring.circling or 0:.1f}"
                    yield field_line("micro-batches", f"{here} that circle are here, as a mean")
                kv = f"{stage.kv_tokens_used:,} of {stage.kv_tokens_capacity:,} tokens"
                yield field_line("KV cache", f"{kv} ({percent(stage.kv_share)})")
                for shown, part in parts_of(stage):
                    if text := shown.words(part):
                        yield field_line(shown.title, text)
                if folds := folds_text(stage, ring):
                    yield field_line("cut prompts", folds)
                if stage.state_slots_capacity:
                    room = f"room for {stage.state_slots_capacity}"
                    yield field_line("states", f"of {stage.state_slots_used or 0} requests, {room}")
                if stage.frames_refused:
                    yield field_line("refused", f"{stage.frames_refused} messages", "warning")


def _link(history: History, link: RingLink) -> Iterator[Line]:
    yield line(TextSpan(f"{link.source} to {link.target}", "title"))
    yield field_line(
        "rate", f"{mbps(link.rate_mbps)}, {percent(history.link_busy(link.ends))} used"
    )
    delay = None if link.queueing_delay_ms is None else link.queueing_delay_ms / 1000
    yield field_line(
        "round trip", f"{seconds(link.rtt_s)}, and {seconds(delay)} of queueing on the way"
    )
    yield field_line("decode waits", f"{data(link.decode_queued_bytes)} in {link.decode_waiting}")
    yield field_line(
        "prefill waits", f"{data(link.prefill_queued_bytes)} in {link.prefill_waiting}"
    )
    yield field_line("in flight", data(link.in_flight_bytes))
    yield field_line("sent", data(link.bytes_sent))
    if link.wire:
        yield field_line("packed as", f"{link.wire}, {data(link.bytes_saved or 0)} saved")
    if link.foreign_upload:
        yield field_line("shares its line", "with uploads that are not ours", "warning")
