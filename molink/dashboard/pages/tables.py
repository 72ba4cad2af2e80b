"""The views of a cluster's parts: nodes, requests, links, events, forecast, alerts.

Each is a header and rows, wide enough for 80 columns; the last column takes what is left.
"""

from collections.abc import Iterator
from datetime import tzinfo
from functools import lru_cache

from molink.dashboard.model.history import History
from molink.dashboard.pages.columns import Column, shown_layers, table_line
from molink.dashboard.pages.lending import cell_lenders, lending_text
from molink.dashboard.pages.lines import Glyphs, Line, Row, Style, TextSpan, fitted, line
from molink.dashboard.pages.panel import SEVERITIES
from molink.dashboard.pages.people import PEOPLE_COLUMNS
from molink.findings.finding import KINDS
from molink.findings.series import percentile, stage_key
from molink.findings.stages import slow_stages
from molink.report.cluster import RingLink, RingReport
from molink.report.figures import clock, data, duration, mbps, per_s, percent, seconds
from molink.report.nodes import NodeReport
from molink.report.requests import RequestReport

STATES: dict[str, Style] = {
    "serving": "good",
    "loading": "accent",
    "joining": "accent",
    "draining": "warning",
    "paused": "warning",
    "outdated": "bad",
    "lost": "bad",
    "prefill": "prefill",
    "decode": "decode",
    "queued": "warning",
    "overloaded": "warning",
    "error": "bad",
}

ROWS_KEPT = 2048
"""Rows of requests that are kept drawn: most of what a history lists has ended."""

FAR_OFF = 1.5
"""A figure so many times worse than its forecast is marked."""


ABOUT = 1.2
"""Factor within which a figure is as it was forecast."""


NODES = (
    Column("node", 13),
    Column("state", 8),
    Column("ring", 4, right=True, from_columns=100),
    Column("layers", 7, right=True),
    Column("busy", 5, right=True),
    Column("step", 7, right=True),
    Column("upload", 9, right=True),
    Column("given", 8, right=True, from_columns=100),
    Column("why, progress, doubts", 0),
)
REQUESTS = (
    Column("request", 10),
    Column("state", 8),
    Column("age", 6, right=True),
    Column("prompt", 11, right=True),
    Column("answer", 9, right=True),
    Column("TTFT", 7, right=True),
    Column("TPOT", 7, right=True),
    Column("ring", 4, right=True),
    Column("user", 13, from_columns=120),
    Column("note", 0),
)
LINKS = (
    Column("from", 13),
    Column("to", 13),
    Column("rate", 10, right=True),
    Column("RTT", 7, right=True),
    Column("busy", 6, right=True),
    Column("decode", 8, right=True),
    Column("prefill", 8, right=True),
    Column("wire", 0),
)
EVENTS = (Column("time", 8), Column("kind", 12), Column("node", 13), Column("what", 0))
FORECAST = (
    Column("ring", 4, right=True),
    Column("figure", 25),
    Column("forecast", 10, right=True),
    Column("measured", 10, right=True),
    Column("", 1),
    Column("so it is", 0),
)
ALERTS = (Column("since", 6, right=True), Column("what stands out, the worst first", 0))

COLUMNS = {
    "nodes": NODES,
    "requests": REQUESTS,
    "links": LINKS,
    "events": EVENTS,
    "forecast": FORECAST,
    "alerts": ALERTS,
    **PEOPLE_COLUMNS,
}


def header_of(view: str, width: int) -> Line:
    """The titles of a view's columns."""
    columns = COLUMNS[view]
    return table_line(columns, [TextSpan(one.title, "dim") for one in columns], width)


def node_rows(history: History, width: int, glyphs: Glyphs) -> Iterator[Row]:
    """Rows of the nodes; those that need somebody come first."""
    stages = {
        stage.node: (stage.busy_share, history.recent_step_s(stage_key(ring, index)))
        for ring in history.state.rings
        for index, stage in enumerate(ring.stages)
    }
    slow = {one.node for one in slow_stages(history)}
    covered = {
        one.covers or "": _cover(one) for one in history.state.nodes if one.state == "standby"
    }
    order = {"left": 3, "lost": 2, "standby": 1}
    nodes = sorted(history.state.nodes, key=lambda one: (order.get(one.state, 0), one.name))
    for node in nodes:
        busy, step_s = stages.get(node.name, (None, None))
        lent = lending_text(cell_lenders(history, node))
        beside = ", ".join(filter(None, (covered.get(node.name, ""), lent)))
        cells = _node_cells(node, busy, step_s, node.name in slow, beside, glyphs)
        yield Row(table_line(NODES, cells, width), node.id, f"{node.name} {node.state} {node.id}")


def _node_cells(
    node: NodeReport,
    busy: float | None,
    step_s: float | None,
    is_slow: bool,
    beside: str,
    glyphs: Glyphs,
) -> list[TextSpan | str]:
    style: Style = "bad" if is_slow else ""
    layers = shown_layers(node.layers) if node.layers else "-"
    note, note_style = _node_note(node, is_slow, beside, glyphs)
    return [
        TextSpan(glyphs.text(node.name), style or "bold"),
        TextSpan(node.state, STATES.get(node.state, "")),
        str(node.ring) if node.ring is not None else "-",
        layers,
        TextSpan(percent(busy), style),
        TextSpan(seconds(step_s), style),
        mbps((node.profile and node.profile.upload_mbps) or None),
        data(node.contribution.bytes_sent),
        TextSpan(glyphs.text(note), note_style),
    ]


def _node_note(node: NodeReport, is_slow: bool, beside: str, glyphs: Glyphs) -> tuple[str, Style]:
    if node.loaded is not None and node.state == "loading":
        return f"{glyphs.bar_of(node.loaded, 8)} {percent(node.loaded)}", "accent"
    if is_slow:
        return f"{glyphs.mark} has become slow", "bad"
    if node.reason:
        return node.reason, ""
    if node.doubts:
        return f"{glyphs.mark} {node.doubts[0]}", "warning"
    return beside, ""


def _cover(standby: NodeReport) -> str:
    """Sentence about a standby and the node that it covers."""
    note = f"{standby.name} stands by for it"
    if standby.shadow is None:
        return note
    behind = standby.shadow
    return f"{note}, {behind.tokens} tokens ({behind.seconds:.1f} s) behind"


def request_rows(history: History, width: int, glyphs: Glyphs) -> Iterator[Row]:
    """Rows of the requests: live ones first, then those that have ended."""
    for request in history.requests or ():
        known = history.keys.get(request.key_id or "")
        user = known.name if known is not None and known.name else request.key_id or "no key"
        yield _request_row(request, user, width, glyphs)


@lru_cache(ROWS_KEPT)
def _request_row(request: RequestReport, user: str, width: int, glyphs: Glyphs) -> Row:
    """A request that has ended stays the same object, and so does its row."""
    cells = _request_cells(request, user, glyphs)
    found_by = f"{request.id} {request.state} {request.key_id} {request.finish_reason}"
    return Row(table_line(REQUESTS, cells, width), f"{request.id} {request.choice}", found_by)


def _request_cells(request: RequestReport, user: str, glyphs: Glyphs) -> list[TextSpan | str]:
    done, whole = request.prompt_tokens_done, request.prompt_tokens
    prompt = f"{done}/{whole}" if done < whole else str(whole)
    age_s = request.age_s if request.is_live else request.total_s
    failed = request.finish_reason == "error"
    state = request.state if request.is_live else (request.finish_reason or request.state)
    moved = f"moved {request.moves}x" if request.moves else ""
    note = " ".join(filter(None, (moved, request.error)))
    ring = request.attempts[-1].number if request.attempts else None
    return [
        glyphs.text(request.id),
        TextSpan(state, STATES.get(state, "dim")),
        seconds(age_s) if age_s is not None and age_s < 10 else duration(age_s),
        TextSpan(prompt, "prefill" if request.state == "prefill" else ""),
        f"{request.tokens}/{request.answer_tokens_max}",
        seconds(request.first_token_s),
        seconds(request.tpot_s),
        str(ring) if ring is not None else "-",
        glyphs.text(user),
        TextSpan(glyphs.text(note), "bad" if failed else "warning" if moved else ""),
    ]


def link_rows(history: History, width: int, glyphs: Glyphs) -> Iterator[Row]:
    """Rows of the links, ring by ring in the order in which a request meets them."""
    for ring in history.state.rings:
        for link in ring.links:
            if link.source == link.target:
                continue  # A ring of one PC hands over within it.
            cells = _link_cells(history, link, glyphs)
            key = f"{link.source}>{link.target}"
            yield Row(table_line(LINKS, cells, width), key, f"{link.source} {link.target}")


def _link_cells(history: History, link: RingLink, glyphs: Glyphs) -> list[TextSpan | str]:
    busy = history.link_busy(link.ends)
    saved = f", saved {data(link.bytes_saved)}" if (link.bytes_saved or 0) > 0 else ""
    shares = f"{link.wire or ''}{saved}{' shares its line' if link.foreign_upload else ''}"
    return [
        glyphs.text(link.source),
        glyphs.text(link.target),
        mbps(link.rate_mbps),
        seconds(link.rtt_s),
        TextSpan(percent(busy), "warning" if (busy or 0.0) >= 0.9 else ""),
        TextSpan(data(link.decode_queued_bytes), "decode" if link.decode_queued_bytes else "dim"),
        TextSpan(
            data(link.prefill_queued_bytes), "prefill" if link.prefill_queued_bytes else "dim"
        ),
        glyphs.text(shares),
    ]


def event_rows(
    history: History, width: int, glyphs: Glyphs, zone: tzinfo | None = None
) -> Iterator[Row]:
    """The ledger, newest first."""
    for event in reversed(history.events):
        cells: list[TextSpan | str] = [
            clock(event.unix_s, zone),
            TextSpan(event.kind, "accent"),
            glyphs.text(event.node),
            glyphs.text(event.text),
        ]
        yield Row(table_line(EVENTS, cells, width), str(event.seq))


def forecast_rows(history: History, width: int, glyphs: Glyphs) -> Iterator[Row]:
    """Rows of each ring's forecast and its present figures; then each stage's step."""
    for ring in history.state.rings:
        yield from _ring_forecast(history, ring, width)
        for stage in ring.stages:
            node = history.state.nodes_by_name.get(stage.node)
            if node is not None and node.layer_step_s:
                told_s = node.layer_step_s * (stage.layers[1] - stage.layers[0])
                name = f"step of {glyphs.text(stage.node)}"
                yield _compared(ring, name, told_s, stage.decode_step_s or None, width, key=node.id)


def _ring_forecast(history: History, ring: RingReport, width: int) -> Iterator[Row]:
    forecast = ring.forecast
    if forecast is None:
        what = f"Ring {ring.number} has no forecast: its nodes were not measured."
        yield Row(line(TextSpan(what, "dim")))
        return
    served = [
        one
        for one in history.requests or ()
        if [attempt.number for attempt in one.attempts] == [ring.number]
    ]
    tpot_s = percentile((one.tpot_s for one in served if one.tpot_s is not None), 0.5)
    ttft_s = percentile((one.first_token_s for one in served if one.first_token_s is not None), 0.5)
    rate = percentile(history.tokens_per_s(), 0.5) if len(history.state.rings) == 1 else None
    yield _compared(ring, "time per token, p50", forecast.tpot_s, tpot_s, width)
    yield _compared(ring, "time to first token, p50", forecast.ttft_s, ttft_s, width)
    cells: list[TextSpan | str] = [
        str(ring.number),
        "tokens per second",
        per_s(forecast.tokens_per_s),
        per_s(rate),
        "",
        f"{ring.requests.running} of {forecast.users} users",
    ]
    yield Row(table_line(FORECAST, cells, width))
    if forecast.bottleneck:
        what = f"  The plan expects as its bottleneck: {forecast.bottleneck}"
        yield Row(line(TextSpan(fitted(what, width), "dim")))


def _compared(
    ring: RingReport,
    name: str,
    planned_s: float | None,
    seen_s: float | None,
    width: int,
    key: str = "",
) -> Row:
    times = seen_s / planned_s if planned_s and seen_s is not None else None
    style: Style = "bad" if (times or 0.0) >= FAR_OFF else ""
    cells: list[TextSpan | str] = [
        str(ring.number),
        name,
        seconds(planned_s),
        TextSpan(seconds(seen_s), style),
        "",
        TextSpan(_in_words(times), style),
    ]
    return Row(table_line(FORECAST, cells, width), key)


def _in_words(times: float | None) -> str:
    """How many times as long something takes as it was forecast to."""
    if times is None:
        return "-"
    if times <= 0.0 or 1 / ABOUT <= times <= ABOUT:
        return "about as planned"
    factor, word = (times, "slower") if times > 1 else (1 / times, "quicker")
    return f"{factor:.0f} times {word}" if factor >= 9.95 else f"{factor:.1f} times {word}"


def alert_rows(history: History, width: int, glyphs: Glyphs) -> Iterator[Row]:
    """Rows of all that stands out, since when, and what to do about it."""
    for standing in history.standing:
        one = standing.finding
        node = history.state.nodes_by_name.get(one.subject)
        style = SEVERITIES[one.severity]
        since = duration(history.at_s - standing.since_s)
        cells = [TextSpan(since, "dim"), TextSpan(glyphs.text(one.sentence), style)]
        yield Row(table_line(ALERTS, cells, width), node.id if node else one.id, one.sentence)
        helps = TextSpan(glyphs.text(KINDS[one.kind].remedy), "dim")
        yield Row(table_line(ALERTS, ["", helps], width), found_by=one.sentence)
