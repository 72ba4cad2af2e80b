"""Rows of the pages in `docs/papers`, and which of their commands can be run as they stand.

A row's column *how to see it* is the list of commands: a page that names one more has it run by
`make papers` without a change here. Simulated figures alone are run (`molink sim ...`). Left out
are commands over a file of the reader's (FILE, a trace that the project has no copy of) and all
that need a model or real processes: experiments and tests.
"""

import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PAPERS = Path(__file__).parents[2] / "docs" / "papers"
INDEX = PAPERS / "README.md"

ROW = re.compile(r"\| \d+ \|")
CODE = re.compile(r"`([^`]+)`")
SIMULATED = "molink sim "
OF_THE_READER = {"FILE", "MODEL", "URL", "DIR"}
"""Words that a reader replaces."""


class Row(NamedTuple):
    """One mechanism or figure of a page, as it stands there."""

    page: str
    number: int
    mechanism: str
    where: str
    seen: str
    papers: str
    ours: str
    verdict: str

    @property
    def commands(self) -> list[str]:
        """What is typed to see it, or the paths of tests."""
        return CODE.findall(self.seen)


def pages() -> list[Path]:
    """The pages of all systems, without the index."""
    return sorted(page for page in PAPERS.glob("*.md") if page != INDEX)


def rows_of(page: str, text: str) -> list[Row]:
    """The numbered rows of a page's tables."""
    lines = [line for line in text.splitlines() if ROW.match(line)]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [Row(page, int(number), *rest) for number, *rest in cells]


def all_rows() -> list[Row]:
    """The rows of all pages."""
    return [row for page in pages() for row in rows_of(page.name, page.read_text(encoding="utf-8"))]


def is_run(command: str) -> bool:
    """Whether `make papers` runs it: it is simulated and needs no file."""
    return command.startswith(SIMULATED) and not OF_THE_READER & set(shlex.split(command))


def commands_to_run(rows: Iterable[Row]) -> list[str]:
    """Each command that is run, once, in the order of the pages."""
    return list(dict.fromkeys(one for row in rows for one in row.commands if is_run(one)))
