"""The sweeps of the paper's table as pictures: ours as lines, the published values hollow."""

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from molink_sim.paper.experiment import Setting
from molink_sim.paper.rows import Row
from molink_sim.report import Run, Sweep, plot_curves

__all__ = ["draw_paper"]

_AXES: dict[str, tuple[str, Callable[[Setting], float]]] = {
    "rate": ("rate_per_s", lambda setting: setting.rate_per_s),
    "bandwidth": ("bandwidth_mbps", lambda setting: setting.mbps),
    "latency": ("latency_ms", lambda setting: setting.one_way_ms),
}
"""Of each section that is a sweep: the parameter's name in pictures, and where it stands."""


def draw_paper(directory: Path, rows: Sequence[Row]) -> list[Path]:
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
            published = Sweep([_published(row, x, of) for row in found if row.name in _COLUMNS])
            ours = Sweep([_ours(row, x, of) for row in found])
            known = published if published.line(x, "ttft_s.mean") else None
            plot_curves(path, ours, x, published=known, title=_title(section))
            drawn.append(path)
    return drawn


_COLUMNS = ("vllm", "helix", "paper")
"""Systems with published values of their own."""


def _ours(row: Row, x: str, of: Callable[[Setting], float]) -> Run:
    return Run({"system": row.name, x: of(row.setting)}, row.summary)


def _published(row: Row, x: str, of: Callable[[Setting], float]) -> Run:
    means = {figure: {"mean": mean} for figure, mean in asdict(row.published).items()}
    return Run({"system": row.name, x: of(row.setting)}, means)


def _title(section: str) -> str:
    fixed = {
        "rate": "100 Mbps, 30 ms",
        "bandwidth": "0.2 requests/s, 30 ms",
        "latency": "0.2 requests/s, 100 Mbps",
    }
    return f"Qwen-7B on three RTX 4090, {fixed[section]}"
