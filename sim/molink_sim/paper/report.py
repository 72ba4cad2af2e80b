"""Published and simulated side by side, on the terminal, in markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from molink_sim.paper.rows import Row
from molink_sim.report import Table

__all__ = ["paper_json", "paper_tables"]

FIGURES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "latency"}

HEAD = (
    *("run", "req/s", "Mbps", "ms"),
    *(f"{name} {what}" for name in FIGURES.values() for what in ("paper", "ours", "error")),
    "finished",
)


def paper_tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each section, in order."""
    sections = list(dict.fromkeys(row.section for row in rows))
    return [
        Table(section, HEAD, [_cells(row) for row in rows if row.section == section])
        for section in sections
    ]


def paper_json(table: int, rows: Sequence[Row], workload: str) -> dict[str, Any]:
    """Ready for `to_json`; errors in percent of the published value."""
    return {"table": table, "workload": workload, "rows": [_as_dict(row) for row in rows]}


def _cells(row: Row) -> list[str]:
    setting = row.setting
    cells = [row.name, f"{setting.rate_per_s:g}", f"{setting.mbps:g}", f"{setting.one_way_ms:g}"]
    for figure in FIGURES:
        cells += [_seconds(getattr(row.published, figure)), _seconds(row.simulated(figure))]
        cells.append(_error(row, figure))
    return [*cells, f"{row.summary['finished']}/{row.summary['requests']}"]


def _error(row: Row, figure: str) -> str:
    """In percent; of MoLink, which is compared with the paper's, the factor."""
    ratio = row.ratio(figure)
    if ratio is None:
        return "-"
    return f"x {ratio:.2f}" if row.compared_with else f"{ratio - 1:+.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _as_dict(row: Row) -> dict[str, Any]:
    setting = row.setting
    return {
        "section": row.section,
        "name": row.name,
        "system": asdict(setting.system),
        "rate_per_s": setting.rate_per_s,
        "bandwidth_mbps": setting.mbps,
        "latency_ms": setting.one_way_ms,
        "seed": setting.seed,
        "published": {figure: getattr(row.published, figure) for figure in FIGURES},
        "published_of": row.compared_with or row.name,
        "simulated": {figure: row.simulated(figure) for figure in FIGURES},
        "error_percent": {figure: _percent(row.ratio(figure)) for figure in FIGURES},
        "summary": row.summary,
    }


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * (ratio - 1), 2)
