"""Runs every simulated figure's command of `docs/papers` and writes a page for each of its pages.

    python -m tools.papers --out DIR

`DIR/molink.md` has for each command the rows of `docs/papers/molink.md` that name it, with what
stands there as the paper's figure and as ours, and below it what the command printed now. Nothing
is written into the repository: the pages say how their figures were taken, which is not always with
the defaults. A command that fails is told at the end, and the exit status is 1.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import click

from tools.papers.rows import Row, all_rows, commands_to_run

AT_ONCE = 2
"""Commands at a time; each computes on one core."""

SECONDS_MAX = 1800.0
"""Of one command."""

COLUMNS = 120
"""Width of what they print."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a command did."""

    command: str
    status: int
    seconds: float
    printed: str


def run(command: str) -> Run:
    """Run a command line of `molink` and keep what it prints; one that takes too long fails."""
    program = [sys.executable, "-c", "from molink.cli.main import main; main()"]
    plain = {"COLUMNS": str(COLUMNS), "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1"}
    began = time.monotonic()
    try:
        done = subprocess.run(
            [*program, *command.split()[1:]],
            env=os.environ | plain,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
        status, printed = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        status, printed = -1, f"stopped after {SECONDS_MAX:g} s\n"
    return Run(command, status, time.monotonic() - began, printed)


def page_text(page: str, rows: Iterable[Row], runs: Iterable[Run]) -> str:
    """What the commands of one page printed, each below the rows that name it."""
    parts = [f"# What the commands of docs/papers/{page} print\n"]
    for one in runs:
        named = [row for row in rows if one.command in row.commands]
        if named:
            parts += [f"## `{one.command}`\n", *map(_row_line, named), ""]
            state = "" if one.status == 0 else f", **failed with status {one.status}**"
            parts += [f"{one.seconds:.0f} s{state}\n", f"```\n{one.printed.rstrip()}\n```\n"]
    return "\n".join(parts)


def _row_line(row: Row) -> str:
    return f"- row {row.number}, {row.mechanism}. The paper: {row.papers}. The page: {row.ours}"


@click.command()
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True)
def main(out: Path) -> None:
    """Run the simulated commands of the papers' pages, two at a time, and write what they print."""
    rows = all_rows()
    out.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = []
        for one in pool.map(run, commands_to_run(rows)):
            state = "FAILED" if one.status else "ok"
            click.echo(f"{one.seconds:6.0f} s  {state:6}  {one.command}")
            runs.append(one)
    for page in dict.fromkeys(row.page for row in rows):
        of_page = [row for row in rows if row.page == page]
        (out / page).write_text(page_text(page, of_page, runs), encoding="utf-8")
    sys.exit(any(one.status for one in runs))


if __name__ == "__main__":
    main()
