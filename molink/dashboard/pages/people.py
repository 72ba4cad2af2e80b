"""The views about people: whose keys ask, and what each PC has given."""

from collections.abc import Iterator, Sequence

from molink.dashboard.model.history import History
from molink.dashboard.pages.columns import Column, table_line
from molink.dashboard.pages.lines import Glyphs, Row, TextSpan
from molink.findings.series import percentile
from molink.report.figures import data, duration, seconds
from molink.report.requests import KeyReport, RequestReport

KEYS = (
    Column("user", 12),
    Column("runs", 5, right=True),
    Column("waits", 5, right=True),
    Column("5 min", 5, right=True),
    Column("tokens", 8, right=True),
    Column("today", 9, right=True),
    Column("of", 8, right=True),
    Column("TTFT", 7, right=True),
    Column("failures", 0),
)
GIVEN = (
    Column("node", 13),
    Column("here", 8, right=True),
    Column("tokens x layers", 15, right=True),
    Column("share", 6, right=True),
    Column("sent", 9, right=True),
    Column("MoLink", 14),
    Column("state", 0),
)

PEOPLE_COLUMNS = {"keys": KEYS, "given": GIVEN}


def key_rows(history: History, width: int, glyphs: Glyphs) -> Iterator[Row]:
    """One row for each key that has asked within the last minutes or today, the busiest first."""
    by_key: dict[str, list[RequestReport]] = {
        one.id: [] for one in history.keys.values() if one.tokens_today or one.refused_today
    }
    for one in history.recent():
        by_key.setdefault(one.key_id or "", []).append(one)
    known = history.keys
    today = {key: known[key].tokens_today if key in known else 0 for key in by_key}
    for key in sorted(by_key, key=lambda one: (-len(by_key[one]), -today[one])):
        told = known.get(key)
        name = told.name if told is not None and told.name else key or "no key"
        cells = _key_cells(glyphs.text(name), by_key[key], told)
        yield Row(table_line(KEYS, cells, width), key or name, f"{name} {key}")


def _key_cells(
    name: str, asked: Sequence[RequestReport], told: KeyReport | None
) -> list[TextSpan | str]:
    live = [one for one in asked if one.is_live]
    waiting = sum(one.state == "queued" for one in live)
    reasons = [one.finish_reason for one in asked]
    refused, failed = reasons.count("overloaded"), reasons.count("error")
    over = told.refused_today if told is not None else 0
    bad = [f"{n} {what}" for n, what in ((refused, "refused"), (failed, "failed")) if n]
    bad += [f"{over} over limits"] if over else []
    ttft_s = percentile((one.first_token_s for one in asked if one.first_token_s is not None), 0.5)
    quota = told.tokens_per_day if told is not None else None
    is_spent = told is not None and quota is not None and told.tokens_today >= quota
    running, places = len(live) - waiting, told.concurrency if told is not None else None
    return [
        TextSpan(name, "bold"),
        str(running) if places is None else f"{running}/{places}",
        str(waiting),
        str(len(asked)),
        f"{sum(one.prompt_tokens + one.tokens for one in asked):,}",
        TextSpan(f"{told.tokens_today:,}" if told is not None else "-", "bad" if is_spent else ""),
        f"{quota:,}" if quota is not None else "-",
        seconds(ttft_s) if asked else "-",
        TextSpan(", ".join(bad), "warning"),
    ]


def given_rows(history: History, width: int, glyphs: Glyphs) -> Iterator[Row]:
    """One row for each node, who has given most first, with the version that it runs."""
    nodes = history.state.nodes
    whole = sum(one.contribution.token_layers for one in nodes)
    newest = history.state.build.version
    for node in sorted(nodes, key=lambda one: -one.contribution.token_layers):
        gave = node.contribution
        is_other = bool(newest and node.version and node.version != newest)
        cells: list[TextSpan | str] = [
            TextSpan(glyphs.text(node.name), "bold"),
            duration(gave.uptime_s),
            f"{gave.token_layers:,}",
            f"{100 * gave.token_layers / whole:.0f} %" if whole else "-",
            data(gave.bytes_sent),
            TextSpan(glyphs.text(node.version or "-"), "warning" if is_other else ""),
            node.state,
        ]
        yield Row(table_line(GIVEN, cells, width), node.id, f"{node.name} {node.version}")
