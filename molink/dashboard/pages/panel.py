"""The figures that users feel, as sparklines of the last minutes; the header; what stands out."""

from collections.abc import Callable, Sequence
from datetime import tzinfo

from molink.dashboard.model.history import History
from molink.dashboard.pages.lines import Glyphs, Line, Style, TextSpan, fitted, line
from molink.findings.finding import Finding, Severity
from molink.findings.series import percentile
from molink.report.figures import clock, duration, per_s, seconds

SPARK_WIDTH = 22
"""Width of a sparkline at 80 columns; wider terminals give it what they have."""

WAITING = frozenset({"stage_lost", "stage_silent", "ring_stands"})
"""Kinds of findings with which answers under way do not go on."""

SEVERITIES: dict[Severity, Style] = {
    Severity.BAD: "bad",
    Severity.WARNING: "warning",
    Severity.NOTE: "accent",
}


def header(
    history: History,
    url: str,
    width: int,
    glyphs: Glyphs,
    zone: tzinfo | None = None,
    note: str = "",
) -> Line:
    """First line: the model, whether it is served, and when that was seen; `note` is on the
    source's mode."""
    state = history.state
    if history.trouble:
        age = history.at_s - history.answered_at_s if history.answered_at_s is not None else None
        serving = TextSpan(
            f"no answer for {duration(age)}" if age is not None else "no answer", "bad"
        )
    elif any(one.kind in WAITING for one in history.findings):
        serving = TextSpan("answers wait", "bad")
    elif state.intake_paused:
        serving = TextSpan("intake paused", "warning")
    else:
        serving = (
            TextSpan("refuses requests", "bad")
            if state.unready_reason
            else TextSpan("serving", "good")
        )
    between = f" {glyphs.between} "
    counts = state.counts()
    here = sum(n for name, n in counts.items() if name not in ("lost", "left"))
    named = f"molink {glyphs.text(state.build.version)}".rstrip()
    left = f"{named}{between}{glyphs.text(state.model)}{between}{here} of {len(state.nodes)} nodes"
    seen = clock(history.answered_at_s or history.at_s, zone)
    right = f"{note}{between}{seen}" if note else seen
    room = width - len(right) - len(serving.text) - 6
    where = f"{left}{between}{glyphs.text(url)}"
    return line(
        TextSpan(fitted(where, room), "title"),
        "  ",
        serving,
        " " * (width - room - 2 - len(serving.text) - len(right)),
        TextSpan(right, "dim"),
    )


def finding_lines(history: History, width: int, most: int, glyphs: Glyphs) -> list[Line]:
    """The worst of what stands out, one line each; one line says that nothing does."""
    found = history.findings
    if not found:
        return [line(TextSpan(" Nothing stands out.", "good"))]
    shown = [_finding(one, width, glyphs) for one in found[:most]]
    if len(found) > most:
        rest = f" {len(found) - most} more: 7 "
        text = fitted(glyphs.text(_sentence(found[most - 1], glyphs)), width - len(rest))
        shown[-1] = line(
            TextSpan(text, SEVERITIES[found[most - 1].severity]), TextSpan(rest, "dim")
        )
    return shown


def _finding(one: Finding, width: int, glyphs: Glyphs) -> Line:
    text = fitted(glyphs.text(_sentence(one, glyphs)), width)
    return line(TextSpan(text, SEVERITIES[one.severity]))


def _sentence(one: Finding, glyphs: Glyphs) -> str:
    mark = glyphs.mark if one.severity is not Severity.NOTE else glyphs.between
    return f" {mark} {one.sentence}"


def panel_lines(history: History, width: int, glyphs: Glyphs) -> list[Line]:
    """Tokens per second, TTFT, TPOT and the requests."""
    if history.requests is None:
        unknown = "This server does not list its requests: update it to see TTFT and TPOT."
        return [_requests(history), line(TextSpan(unknown, "dim"))]
    spark = SPARK_WIDTH + max(0, width - 80)
    planned = _planned(history)
    return [
        _series("tokens/s", history.tokens_per_s(), per_s, spark, glyphs, planned[0]),
        _series("TTFT", history.ttfts_s(), seconds, spark, glyphs, planned[1]),
        _series("TPOT", history.tpots_s(), seconds, spark, glyphs, planned[2]),
        _requests(history),
    ]


def _planned(history: History) -> tuple[str, str, str]:
    """Forecast of the one ring; of several there is no one TTFT."""
    forecasts = [ring.forecast for ring in history.state.rings if ring.forecast is not None]
    if len(forecasts) != 1:
        return "", "", ""
    one = forecasts[0]
    return per_s(one.tokens_per_s), seconds(one.ttft_s), seconds(one.tpot_s)


def _series(
    name: str,
    values: Sequence[float],
    shown: Callable[[float | None], str],
    width: int,
    glyphs: Glyphs,
    planned: str,
) -> Line:
    now = values[-1] if values else None
    return line(
        TextSpan(f"{name:<9}", "bold"),
        TextSpan(glyphs.sparkline(values, width), "accent"),
        f"{shown(now):>9}",
        TextSpan("  p50", "dim"),
        f"{shown(percentile(values, 0.5)):>8}",
        TextSpan("  p95", "dim"),
        f"{shown(percentile(values, 0.95)):>8}",
        TextSpan(f"  plan{planned:>8}" if planned and planned != "-" else "", "dim"),
    )


def _requests(history: History) -> Line:
    state = history.state
    waiting: Style = "warning" if state.waiting else ""
    recent = history.recent()
    ended = [one for one in recent if not one.is_live]
    failed = sum(1 for one in ended if one.finish_reason == "error")
    refused = sum(1 for one in ended if one.finish_reason == "overloaded")
    moved = sum(1 for one in recent if one.moves)
    return line(
        TextSpan("requests ", "bold"),
        TextSpan(f"{state.running} running"),
        ", ",
        TextSpan(f"{state.waiting} waiting", waiting),
        TextSpan(f"   last 5 min: {len(ended)} ended, ", "dim"),
        TextSpan(f"{failed} failed", "bad" if failed else "dim"),
        TextSpan(f", {refused} refused" if refused else "", "warning"),
        TextSpan(", ", "dim"),
        TextSpan(f"{moved} moved", "warning" if moved else "dim"),
    )
