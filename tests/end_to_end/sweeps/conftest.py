"""Sweeps write what passed into a page: `pytest -m families --page docs/benchmarks/hybrid.md`.

Each test of a sweep is one cell of a table: it says which by the fixture `cell`, and what it found.
A cell whose test failed says so, and where not all were tried a line below the table does.
"""

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.end_to_end.sweeps.table import Cell, Sweep, written

SWEEPS = ("families", "formats")
ALL = pytest.StashKey[list[pytest.Item]]()
CELL = pytest.StashKey["CellOfTest"]()
OUTCOME = pytest.StashKey[str]()
FAILED = "**failed**"


@dataclass
class CellOfTest:
    """Cell that a test fills; called first, with its place."""

    row: str = ""
    column: str = ""
    found: str = ""

    def __call__(self, row: str, column: str) -> None:
        self.row, self.column = row, column


@pytest.fixture
def cell(request) -> CellOfTest:
    return request.node.stash.setdefault(CELL, CellOfTest())


def pytest_addoption(parser):
    parser.addoption("--page", type=Path, help="Page whose table of this sweep is written anew.")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Before any are deselected."""
    config.stash[ALL] = list(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" or report.failed:
        item.stash[OUTCOME] = report.outcome
    return report


def pytest_sessionfinish(session):
    page = session.config.getoption("--page", None)
    for name in SWEEPS if page is not None else ():
        cells = [item for item in session.config.stash[ALL] if item.get_closest_marker(name)]
        tried = [_cell(item) for item in cells if OUTCOME in item.stash]
        if tried:
            count = "all" if len(tried) == len(cells) else f"{len(tried)} of {len(cells)}"
            below = f"{_versions()}; {count} cells were tried"
            changed = written(page.read_text(encoding="utf-8"), Sweep(name, below, tried))
            page.write_text(changed, encoding="utf-8")


def _cell(item: pytest.Item) -> Cell:
    cell = item.stash[CELL]
    failed = item.stash[OUTCOME] == "failed"
    return Cell(cell.row, cell.column, FAILED if failed else cell.found)


def _versions() -> str:
    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "gguf"))
    return f"{datetime.now(UTC):%-d %B %Y}, {libraries}, Python {platform.python_version()}"
