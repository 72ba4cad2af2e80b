"""Writes measured figures into `docs/benchmarks/real.md`, each section between two marks."""

from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path

from molink.errors import UserError
from tools.experiments.harness.experiment import markdown_table
from tools.real.exactness import LLAMA_CPP, Row

__all__ = ["PAGE", "exactness_section", "exactness_table", "with_section", "write_section"]

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks" / "real.md"

NOTHING = "–"

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
    return [row.setting, _greedy(row), *_scores(row), _verdict(row)]


def _greedy(row: Row) -> str:
    if row.greedy is None:
        return NOTHING
    ties = f" and {row.greedy.ties} ties" if row.greedy.ties else ""
    return f"{row.greedy.equal} of {row.greedy.total}{ties}"


def _scores(row: Row) -> list[str]:
    """Loss and divergence, and what they are beside the library's."""
    if row.found is None or row.library is None:
        return [NOTHING] * 5
    loss, own, library = row.found.loss, row.found.divergence, row.library.divergence
    above = f"{100 * (loss / row.reference_loss - 1):+.2f} %"
    beside = (f"{library:.1e}", f"{own / library:.2f}") if library else (NOTHING, NOTHING)
    return [f"{loss:.4f}", above, f"{own:.1e}", *beside]


def _verdict(row: Row) -> str:
    if not row.is_tried:
        return "not tried: no time was left"
    if row.form == LLAMA_CPP:
        return NOTHING
    return "; ".join(row.misses()) or "yes"
