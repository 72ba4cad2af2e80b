"""Published and simulated side by side: on the terminal, as JSON and as pictures."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from molink_sim.paper.experiment import COMPARED, PaperRow, Setting
from molink_sim.report.curves import plot_curves
from molink_sim.report.summary import Run, Sweep
from molink_sim.report.tables import Table
from molink_sim.scenario import SystemSpec

FIGURES = {"ttft_s": "TTFT", "tpot_s": "TPOT", "latency_s": "latency"}

TITLES = {
    "rate": "Requests per second, at 100 Mbps and 30 ms",
    "bandwidth": "Mbps, at 0.2 requests/s and 30 ms",
    "latency": "One-way ms, at 0.2 requests/s and 100 Mbps",
}
"""Titles of the sections that are sweeps; others are at 0.2 requests/s, 100 Mbps and 30 ms."""


_AXES: dict[str, tuple[str, Callable[[Setting], float]]] = {
    "rate": ("rate_per_s", lambda setting: setting.rate_per_s),
    "bandwidth": ("bandwidth_mbps", lambda setting: setting.mbps),
    "latency": ("latency_ms", lambda setting: setting.one_way_ms),
}
"""Axis of each section that is a sweep: the parameter's name in pictures, and where it stands."""


def paper_tables(rows: Sequence[PaperRow]) -> list[Table]:
    """Tables of the sections, in order, narrow enough for a terminal of 80 columns."""
    sections = list(dict.fromkeys(row.section for row in rows))
    return [
        _table(section, [row for row in rows if row.section == section]) for section in sections
    ]


def _table(section: str, rows: Sequence[PaperRow]) -> Table:
    first = (section,) if section in TITLES else ()
    figures = (f"{name} s: paper, ours" for name in FIGURES.values())
    head = (*first, "run", *figures, "met", "ended")
    return Table(TITLES.get(section, section), head, [_cells(row) for row in rows])


def paper_json(
    table: int, rows: Sequence[PaperRow], workload: str, assumed: Sequence[str] = ()
) -> dict[str, Any]:
    """Ready for `to_json`; errors in percent of the published value."""
    told = {"table": table, "workload": workload, "assumed": list(assumed)}
    return {**told, "rows": [_as_dict(row) for row in rows]}


def _cells(row: PaperRow) -> list[str]:
    varied = {
        "rate": row.setting.rate_per_s,
        "bandwidth": row.setting.mbps,
        "latency": row.setting.one_way_ms,
    }
    cells = [f"{varied[row.section]:g}"] if row.section in varied else []
    figures = [_cell(row, figure) for figure in FIGURES]
    met = {True: "yes", False: "no", None: ""}[row.is_reproduced]
    ended = f"{row.summary['finished']}/{row.summary['requests']}"
    return [*cells, row.name, *figures, met, ended]


def _cell(row: PaperRow, figure: str) -> str:
    """Published, ours and the error; ours alone where nothing is published."""
    ours = _seconds(row.simulated(figure))
    published = getattr(row.published, figure)
    return ours if published is None else f"{_seconds(published)}, {ours} {_error(row, figure)}"


def _error(row: PaperRow, figure: str) -> str:
    """Error in percent; for MoLink, which is compared with the paper's, the factor."""
    ratio = row.ratio(figure)
    if ratio is None:
        return "-"
    return f"x{ratio:.2f}" if row.compared_with else f"{ratio - 1:+.0%}"


def _seconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def _as_dict(row: PaperRow) -> dict[str, Any]:
    setting = row.setting
    return {
        "section": row.section,
        "name": row.name,
        "system": _system(setting.system),
        "rate_per_s": setting.rate_per_s,
        "bandwidth_mbps": setting.mbps,
        "latency_ms": setting.one_way_ms,
        "seed": setting.seed,
        "published": {figure: getattr(row.published, figure) for figure in FIGURES},
        "published_of": row.compared_with or row.name,
        "simulated": {figure: row.simulated(figure) for figure in FIGURES},
        "error_percent": {figure: _percent(row.ratio(figure)) for figure in FIGURES},
        "reproduced": row.is_reproduced,
        "summary": row.summary,
    }


def _system(system: SystemSpec) -> dict[str, Any]:
    """Settings of a system by the names of the command's options."""
    return {"wire" if name == "codec" else name: value for name, value in asdict(system).items()}


def _percent(ratio: float | None) -> float | None:
    return None if ratio is None else round(100 * (ratio - 1), 2)


def draw_paper(directory: Path, rows: Sequence[PaperRow]) -> list[Path]:
    """One picture a sweep, `paper_SECTION.png`; which were drawn. Table 5 has no sweep.

    Raises:
        UserError: without matplotlib.
    """
    directory.mkdir(parents=True, exist_ok=True)
    drawn = []
    for section, (x, of) in _AXES.items():
        found = [row for row in rows if row.section == section]
        if len({of(row.setting) for row in found}) > 1:
            path = directory / f"paper_{section}.png"
            told = [row for row in found if row.name in COMPARED and row.published.ttft_s]
            published = Sweep([_published(row, x, of) for row in told])
            ours = Sweep([_ours(row, x, of) for row in found])
            known = published if published.line(x, "ttft_s.mean") else None
            plot_curves(path, ours, x, published=known, title=_title(section))
            drawn.append(path)
    return drawn


def _ours(row: PaperRow, x: str, of: Callable[[Setting], float]) -> Run:
    return Run({"system": row.name, x: of(row.setting)}, row.summary)


def _published(row: PaperRow, x: str, of: Callable[[Setting], float]) -> Run:
    means = {figure: {"mean": mean} for figure, mean in asdict(row.published).items()}
    return Run({"system": row.name, x: of(row.setting)}, means)


def _title(section: str) -> str:
    fixed = {
        "rate": "100 Mbps, 30 ms",
        "bandwidth": "0.2 requests/s, 30 ms",
        "latency": "0.2 requests/s, 100 Mbps",
    }
    return f"Qwen-7B on three RTX 4090, {fixed[section]}"
