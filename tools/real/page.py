"""Writes measured figures into `docs/benchmarks/real.md`, each section between two marks."""

from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from molink.errors import UserError
from tools.experiments.harness.experiment import markdown_table
from tools.real.exactness import Row

__all__ = ["PAGE", "exactness_section", "exactness_table", "with_section", "write_section"]

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "real.md"

COLUMNS = (
    "setting",
    "greedy tokens equal",
    "loss",
    "above fp32's",
    "divergence, nats",
    "the library's",
    "ratio",
    "right",
)


def with_section(page: str, name: str, text: str) -> str:
    """The page with `text` between the marks of a section. Raises UserError without such marks."""
    begin, end = f"<!-- make real: {name} -->", f"<!-- end of make real: {name} -->"
    before, found, rest = page.partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise UserError(f"the page has no place for figures: write {begin} and {end} into it")
    return f"{before}{begin}\n\n{text.strip()}\n\n{end}{after}"


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Write a section of the page anew."""
    page.write_text(with_section(page.read_text(encoding="utf-8"), name, text), encoding="utf-8")


def exactness_table(rows: Sequence[Row]) -> str:
    """Rows of one model as a table in markdown."""
    return markdown_table(list(COLUMNS), [_cells(row) for row in rows])


def exactness_section(title: str, licence: str, rows: Sequence[Row]) -> str:
    """A model's table, and when and with what it was made."""
    made = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "gguf"))
    below = f"{date.today():%-d %B %Y}, {made}. Licence of the weights: {licence}."
    return f"### {title}\n\n{exactness_table(rows)}\n\n{below}"


def _cells(row: Row) -> list[str]:
    missed = "; ".join(row.misses()) or "yes"
    if row.greedy is None or row.found is None or row.library is None:
        return [row.setting, *["–"] * (len(COLUMNS) - 2), missed]
    ties = f" and {row.greedy.ties} ties" if row.greedy.ties else ""
    above = 100 * (row.found.loss / row.reference_loss - 1)
    ratio = "–"
    if row.library.divergence:
        ratio = f"{row.found.divergence / row.library.divergence:.2f}"
    return [
        row.setting,
        f"{row.greedy.equal} of {row.greedy.total}{ties}",
        f"{row.found.loss:.4f}",
        f"{above:+.2f} %",
        f"{row.found.divergence:.1e}",
        f"{row.library.divergence:.1e}" if row.library.divergence else "–",
        ratio,
        missed,
    ]
